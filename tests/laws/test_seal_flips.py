"""Single flipped bits against seals: in a good file of every format, at every border of chunks, and in the seal
itself, with every digest; and in every format that stores CRCs: found from the CRC alone, exactly, and flipped back.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import FORMAT_FILES
from run_helpers import flip, megatron
from timed import same_times

from ckpt_tools import guard
from ckpt_tools.api import verify
from ckpt_tools.checksum import sums
from ckpt_tools.checksum.combine import CRC32, CRC32C, Crc, Flip, find_flipped_bit, find_longest, odds
from ckpt_tools.formats import FORMATS
from ckpt_tools.formats.seals.document import NAME, find_base
from ckpt_tools.guard.repair.mending import Bench, Damaged, extents_of, length_of, mend
from ckpt_tools.inspection.check import inspect
from ckpt_tools.inspection.indexes import Indexes
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.report import Level, Report
from ckpt_tools.model.selection import ReadOptions
from ckpt_tools.reading.opening import open_session

LEFTOVERS = ("_CHECKPOINT_METADATA", "process_0")
"""Alone they are what is left of a save."""
FOUND = {f.name: sorted((FORMAT_FILES / f.name / "good").glob("*")) for f in FORMATS if f.name != "seal"}
GOOD = {
    name: some for name, found in FOUND.items() if (some := [p for p in found if p.name not in LEFTOVERS])
}


def copied(good: Path, root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    if good.is_dir():
        shutil.copytree(good, root / good.name, symlinks=True)
    else:
        shutil.copy2(good, root)
    return root


EACH = [
    pytest.param(path, id=f"{name}/{path.name}", marks=() if path == some[0] else pytest.mark.slow)
    for name, some in GOOD.items()
    for path in some
]
ONE_OF_EACH = {name: some[0] for name, some in GOOD.items()}
BITS = 48
FEW = 8
"""Random bits of each file where the first and the last byte have one bit each as well."""
DIGESTS = ("xxh3", "sha256", "blake3")
WITH_DIGESTS = [
    pytest.param(good, how, id=f"{name}-{how}", marks=() if i in (0, n % 6) else pytest.mark.exhaustive)
    for n, (name, good) in enumerate(ONE_OF_EACH.items())
    for i, how in enumerate(DIGESTS)
]
"""How a digest is made does not depend on the format: each is tried with a sixth of them, but for that of every
day, and each format with that.
"""


def sealed(root: Path, digest: str = "xxh3") -> dict[Path, list[Path]]:
    """Every file that a seal names, with the seals that do."""
    if digest == "blake3":
        pytest.importorskip("blake3")
    named: dict[Path, list[Path]] = {}
    for one in guard.seal(root, digest=digest).checkpoints:
        if one.state == "sealed":
            seal = Path(one.seal)
            for row in json.loads(seal.read_text())["files"]:
                named.setdefault(Path(find_base(str(seal))) / row["path"], []).append(seal)
    return named


def report(path: Path, seals: list[Path], level: Level = Level.CONTENT) -> Report:
    """What is said of a file at a question of its own, which reads the seals anew."""
    indexes = Indexes((), {str(seal): find_base(str(seal)) for seal in seals})
    return inspect(str(path), level, claims=indexes.claims(str(path)))[0]


def flipped(path: Path, bits: Iterator[int]) -> Iterator[int]:
    """The file with one bit after the other flipped, its times as they were; each is flipped back."""
    for bit in bits:
        flip(path, bit // 8, 1 << bit % 8)
        yield bit
        flip(path, bit // 8, 1 << bit % 8)


def some_bits(name: str, size: int, bits: int = BITS) -> Iterator[int]:
    """The first and the last bits, and some between them."""
    chance = random.Random(name)
    last, step = max(0, 8 * size - 8), 1 if bits == BITS else 7
    ends = (*range(0, 8, step), *range(last, 8 * size, step))
    return iter(sorted({*ends, *(chance.randrange(8 * size) for _ in range(bits))}))


def unseen(path: Path, seals: list[Path], bits: Iterator[int]) -> list[int]:
    return [bit for bit in flipped(path, bits) if report(path, seals).verdict is not Verdict.BROKEN]


@pytest.mark.share(6)
@pytest.mark.parametrize("bits", [FEW, pytest.param(BITS, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(("good", "digest"), WITH_DIGESTS)
def test_a_flipped_bit_in_any_format_is_seen(good: Path, digest: str, bits: int, tmp_path: Path) -> None:
    named = sealed(copied(good, tmp_path / "run"), digest)
    assert named
    for path, seals in named.items():
        if size := path.stat().st_size:
            assert not unseen(path, seals, some_bits(path.name, size, bits)), path.name


@pytest.mark.exhaustive
@pytest.mark.parametrize("good", EACH)
def test_every_bit_of_small_files(good: Path, tmp_path: Path) -> None:
    for path, seals in sealed(copied(good, tmp_path / "run")).items():
        size = path.stat().st_size
        bits = iter(range(8 * size)) if size <= 4096 else some_bits(path.name, size)
        assert not unseen(path, seals, bits), path.name


@pytest.mark.share(3)
@pytest.mark.parametrize(("good", "digest"), WITH_DIGESTS)
def test_a_bit_at_every_border_of_chunks(
    good: Path, digest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums, "CHUNK", 512)
    for path, seals in sealed(copied(good, tmp_path / "run"), digest).items():
        size = path.stat().st_size
        borders = list(range(512, size, 512))[:16]
        bits = [8 * at + bit for at in borders for bit in (-1, 0)]
        for bit in flipped(path, iter(bits)):
            said = report(path, seals)
            assert said.verdict is Verdict.BROKEN, (path.name, bit)
            places = [f.offset for f in said.findings if f.code == "seal-mismatch"]
            assert places in ([], [bit // 8 // 512 * 512]) or digest != "xxh3", (path.name, bit)


def test_at_level_structure_sizes_and_lost_files_are_seen(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run")
    named = sealed(root)
    path = next(iter(named))
    with same_times(path):
        path.write_bytes(path.read_bytes() + b"x")
    assert "seal-mismatch" in {f.code for f in report(path, named[path], Level.STRUCTURE).findings}
    path.unlink()
    found = verify(root, level=Level.STRUCTURE)
    assert "seal-missing" in {f.code for row in found.files for f in row.report.findings}


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_every_flipped_bit_and_every_cut_of_a_seal_is_seen(every: bool, tmp_path: Path) -> None:
    """One bit of each byte, which takes turns, and a cut at every third; every single one by night."""
    root = megatron(tmp_path / "run", steps=(10,))
    named = sealed(root)
    seal = root / f"iter_0000010/{NAME}"
    whole = seal.read_bytes()
    path = next(iter(named))
    bits = range(8 * len(whole)) if every else (8 * at + at % 8 for at in range(len(whole)))
    for bit in flipped(seal, iter(bits)):
        assert_useless(path, seal, f"bit {bit}")
    for size in range(0, len(whole), 1 if every else 3):
        seal.write_bytes(whole[:size])
        assert_useless(path, seal, f"cut to {size}")
    seal.write_bytes(whole)
    assert not report(path, [seal]).findings or report(path, [seal]).verdict is Verdict.OK


def assert_useless(path: Path, seal: Path, what: str) -> None:
    indexes = Indexes((), {str(seal): find_base(str(seal))})
    seals = indexes.seals
    assert not seals.claims(str(path)), what
    assert [f.code for f in seals.about[find_base(str(seal))]] == ["seal-broken"], what
    said = inspect(str(seal), Level.CONTENT, claims=indexes.claims(str(seal)))[0]
    assert [f.code for f in said.findings] == ["seal-broken"], (what, said.findings)


BY_DAY = [GOOD[name][0] for name in ("ocdbt", "ollama", "torch_zip")] + [
    p for p in GOOD["orbax_tree"] if "zarr2" in p.name
]
STORED = [
    pytest.param(path, id=f"{name}/{path.name}", marks=() if path in BY_DAY else pytest.mark.exhaustive)
    for name, some in GOOD.items()
    for path in some
]
TRIED = int(os.environ.get("REPAIRED_BITS", "12"))
"""Random bits of each file; REPAIRED_BITS=1000 -m "exhaustive or not exhaustive" is the long run."""
LARGEST = 512 << 10


def bench_of(root: Path) -> Bench:
    s = open_session(str(root), ReadOptions())
    s.add_members()
    for part in s.parts:
        s.indexes.claims(part.path)
    return Bench(s)


def covered_bits(look: Damaged) -> list[int]:
    """Every bit that a CRC of a record below 512 KiB covers, as it lies in the file."""
    crcs = (s for s in look.sums if isinstance(s.hash, Crc) and length_of(s) <= LARGEST)
    # what two readings differ in is not certain
    found = [e for s in crcs if s.otherwise is None for e in extents_of(s) or ()]
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


@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
@pytest.mark.parametrize("good", STORED)
def test_a_flipped_bit_is_flipped_back(good: Path, sealed: bool, tmp_path: Path) -> None:
    root = copied(good, tmp_path / "run")
    if sealed:
        guard.seal(root)
    bench, chance = bench_of(root), random.Random(good.name)
    for path in sorted(p for p in root.rglob("*") if p.is_file() and ".ckpt-seal" not in str(p)):
        look = bench.look(str(path))
        if look.is_damaged or not path.stat().st_size:
            continue
        is_sealed = bench.list_sealed_crcs(str(path), path.stat().st_size)
        bits = range(8 * path.stat().st_size) if is_sealed else covered_bits(look)
        for bit in {*bits[:1], *bits[-1:], *chance.sample(bits, min(TRIED, len(bits)))}:
            after, odds_of = mended(bench, path, [bit])
            assert after == path.read_bytes(), (path.name, bit)
            assert odds_of <= 0.001 and (not odds_of or not is_sealed)


@pytest.mark.parametrize("crc", [CRC32, CRC32C], ids=lambda c: c.name)
@pytest.mark.parametrize("length", [1, 3, 4, 5, 1000, 65_537])
def test_each_bit_has_its_own_difference(crc: Crc, length: int) -> None:
    chance = random.Random(length)
    data = bytearray(chance.randbytes(length))
    right = crc.update(bytes(data), 0)
    for at in {0, length - 1, *(chance.randrange(length) for _ in range(20))}:
        for bit in range(8):
            data[at] ^= 1 << bit
            assert find_flipped_bit(crc, crc.update(bytes(data), 0) ^ right, length) == Flip(at, bit)
            data[at] ^= 1 << bit
    assert all(find_flipped_bit(crc, 1 << bit, length) is None for bit in range(32)), "the CRC itself was hit"
    assert find_flipped_bit(crc, 0, length) is None


@pytest.mark.exhaustive
@pytest.mark.share(2)
@pytest.mark.parametrize("crc", [CRC32, CRC32C], ids=lambda c: c.name)
def test_a_random_difference_is_a_bit_as_often_as_the_odds_say(crc: Crc) -> None:
    length, tries, chance = 16 << 20, 400, random.Random(0)
    hits = sum(find_flipped_bit(crc, chance.getrandbits(32), length) is not None for _ in range(tries))
    share = odds(length)
    assert abs(hits / tries - share) < 4 * (share / tries) ** 0.5
    assert find_flipped_bit(crc, 1, find_longest(crc) + 1) is None
