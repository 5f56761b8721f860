"""Single flipped bits in every format that stores CRCs: found from the CRC alone, exactly."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from good_files import copied, rows
from timed import same_times

from ckpt_tools import guard
from ckpt_tools.checksum.combine import CRC32, CRC32C, Crc, Flip, flipped_bit, longest, odds
from ckpt_tools.guard.repair.mending import Bench, Damaged, extents_of, length_of, mend
from ckpt_tools.model.selection import ReadOptions
from ckpt_tools.reading.opening import open_session

EACH = rows(pytest.mark.exhaustive, lambda path: "crc" in path.name)
BITS = int(os.environ.get("REPAIRED_BITS", "12"))
"""Random bits of each file; REPAIRED_BITS=1000 -m "exhaustive or not exhaustive" is the long run."""
LARGEST = 512 << 10


def bench_of(root: Path) -> Bench:
    s = open_session(str(root), ReadOptions())
    s.add_members()
    for part in s.parts:
        s.indexes.claims(part.path)
    return Bench(s)


def places(look: Damaged) -> list[int]:
    """Every bit that a CRC of a record below 512 KiB covers, as it lies in the file."""
    # what two readings differ in is not certain
    sums = (
        s for s in look.sums if isinstance(s.hash, Crc) and length_of(s) <= LARGEST and s.otherwise is None
    )
    found = [e for s in sums for e in extents_of(s) or ()]
    return [8 * at + bit for e in found for at in range(e.offset, e.offset + e.length) for bit in range(8)]


def mended(bench: Bench, path: Path, bits: list[int]) -> tuple[bytes | None, float]:
    """The file after these bits of it were flipped and it was repaired; None where nothing is proposed."""
    whole = path.read_bytes()
    data = bytearray(whole)
    for bit in bits:
        data[bit // 8] ^= 1 << bit % 8
    with same_times(path):
        path.write_bytes(data)
        found = mend(bench, bench.look(str(path)))
        path.write_bytes(whole)
    if found is None:
        return None, 0
    for at, value in found.bits.items():
        data[at] = value
    return bytes(data), found.odds


@pytest.mark.share(36)
@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
@pytest.mark.parametrize("good", EACH)
def test_a_flipped_bit_is_flipped_back(good: Path, sealed: bool, tmp_path: Path) -> None:
    root = copied(good, tmp_path / "run")
    if sealed:
        guard.seal(root)
    bench, chance = bench_of(root), random.Random(good.name)
    for path in sorted(p for p in root.rglob("*") if p.is_file() and ".ckpt-seal" not in str(p)):
        look = bench.look(str(path))
        if look.is_damaged or not path.stat().st_size:
            continue
        bits = places(look) if not bench.find_sealed(str(path)) else range(8 * path.stat().st_size)
        for bit in chance.sample(bits, min(BITS, len(bits))):
            after, odds_of = mended(bench, path, [bit])
            assert after == path.read_bytes(), (path.name, bit)
            assert odds_of <= 0.001 and (not odds_of or not bench.find_sealed(str(path)))


@pytest.mark.parametrize("crc", [CRC32, CRC32C], ids=lambda c: c.name)
@pytest.mark.parametrize("length", [1, 3, 4, 5, 1000, 65_537])
def test_each_bit_has_its_own_difference(crc: Crc, length: int) -> None:
    chance = random.Random(length)
    data = bytearray(chance.randbytes(length))
    right = crc.update(bytes(data), 0)
    for at in {0, length - 1, *(chance.randrange(length) for _ in range(20))}:
        for bit in range(8):
            data[at] ^= 1 << bit
            assert flipped_bit(crc, crc.update(bytes(data), 0) ^ right, length) == Flip(at, bit)
            data[at] ^= 1 << bit
    assert all(flipped_bit(crc, 1 << bit, length) is None for bit in range(32)), "the CRC itself was hit"
    assert flipped_bit(crc, 0, length) is None


@pytest.mark.exhaustive
@pytest.mark.share(2)
@pytest.mark.parametrize("crc", [CRC32, CRC32C], ids=lambda c: c.name)
def test_a_random_difference_is_a_bit_as_often_as_the_odds_say(crc: Crc) -> None:
    length, tries, chance = 16 << 20, 400, random.Random(0)
    hits = sum(flipped_bit(crc, chance.getrandbits(32), length) is not None for _ in range(tries))
    share = odds(length)
    assert abs(hits / tries - share) < 4 * (share / tries) ** 0.5
    assert flipped_bit(crc, 1, longest(crc) + 1) is None
