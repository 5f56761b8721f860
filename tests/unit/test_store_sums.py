"""Checksums as stores keep them: of parts that were joined, of the checksums of parts, and worked out of bytes
that are read once for everything.
"""

from __future__ import annotations

import hashlib
import pickle
import threading
import zlib
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from ckpt_tools.checksum import Extent, Sum, mismatches
from ckpt_tools.checksum.combine import CRC32C, CRC64NVME
from ckpt_tools.checksum.store_sums import (
    CRCS,
    WorkedOut,
    add_whole_checksums,
    can_work_out,
    combined,
    compared,
    composite,
    of_chunks,
    to_work_out,
)
from ckpt_tools.checksum.sums import ASKED, CHUNK, ChunkDigests, chunks, xxh3
from ckpt_tools.model.seal import NAMES, StoreChecksum, StoreChecksums
from ckpt_tools.storage import BytesSource


class Counting(BytesSource):
    """Remembers how often each byte was delivered."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.times, self.lock = bytearray(len(data)), threading.Lock()

    def read(self, offset: int, length: int) -> bytes:
        with self.lock:
            self.times[offset : offset + length] = bytes(n + 1 for n in self.times[offset : offset + length])
        return super().read(offset, length)


def tiles(size: int, tile: int, how: Any) -> list[Sum]:
    """The sums of a seal."""
    extents = [Extent(at, min(tile, size - at)) for at in range(0, size, tile)]
    return [Sum("seal", ASKED, (e,), e.offset, hash=how) for e in extents]


CHECK = b"123456789"
REFERENCE = {"crc32": "cbf43926", "crc32c": "e3069283", "crc64nvme": "ae8b14860a799888"}
"""Of CHECK, as the catalogue of parametrised CRC algorithms has them."""
ALGORITHMS = sorted(NAMES)
BYTES = st.binary(min_size=1, max_size=2000)
PARTS = st.lists(BYTES, min_size=1, max_size=6)


def whole(algorithm: str, data: bytes) -> bytes:
    """By other code than what is tested: bit by bit, or hashlib."""
    if algorithm not in CRCS:
        return hashlib.new(algorithm, data).digest()
    polys = {"crc32": (0xEDB88320, 32), "crc32c": (0x82F63B78, 32), "crc64nvme": (0x9A6C9329AC4BC9B5, 64)}
    poly, width = polys[algorithm]
    ones = (1 << width) - 1
    value = ones
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ poly if value & 1 else value >> 1
    return (value ^ ones).to_bytes(width // 8, "big")


def of_parts(algorithm: str, parts: list[bytes], *, told: bool = False) -> StoreChecksum:
    """The composite checksum of an upload in parts."""
    values = tuple(whole(algorithm, p) for p in parts)
    value = whole(algorithm, b"".join(values))
    return StoreChecksum(algorithm, value, tuple(map(len, parts)), values if told else ())


@pytest.mark.parametrize("algorithm", CRCS)
def test_reference_values(algorithm: str) -> None:
    assert whole(algorithm, CHECK).hex() == REFERENCE[algorithm]
    crc = CRCS[algorithm]
    assert f"{crc.update(CHECK, 0):x}" == REFERENCE[algorithm]
    assert f"{crc.update(CHECK[4:], crc.update(CHECK[:4], 0)):x}" == REFERENCE[algorithm]


@pytest.mark.parametrize("algorithm", CRCS)
@given(parts=PARTS)
@examples(40)
def test_crcs_of_parts_combine_to_that_of_the_whole(algorithm: str, parts: list[bytes]) -> None:
    told = [(whole(algorithm, p), len(p)) for p in parts]
    assert combined(algorithm, told) == whole(algorithm, b"".join(parts))


@given(first=st.integers(0, (1 << 64) - 1), zeros=st.integers(1, 1 << 45))
@examples(40)
def test_long_ranges_combine(first: int, zeros: int) -> None:
    """awscrt's own combination is another implementation of the same."""
    from awscrt.checksums import combine_crc64nvme

    assert CRC64NVME.combine(first, 5, zeros) == combine_crc64nvme(first, 5, zeros)


@pytest.mark.share(2, "slow")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("in_parts", [False, True])
@pytest.mark.parametrize("sealed", [False, True], ids=["records alone", "sealed"])
@given(data=st.data())
@examples(12)
def test_each_byte_is_read_once_whatever_else_is_worked_out(algorithm, in_parts, sealed, data) -> None:
    parts = data.draw(PARTS if in_parts else st.lists(BYTES, min_size=1, max_size=1))
    body = b"".join(parts)
    of = of_parts(algorithm, parts) if in_parts else StoreChecksum(algorithm, whole(algorithm, body))
    cut = data.draw(st.integers(0, len(body)))
    records = [Sum("record", zlib.crc32(body[:cut]), (Extent(0, cut),), 0)] if cut else []
    records += [Sum("other", 1 ^ zlib.crc32(body[cut:]), (Extent(cut, len(body) - cut),), cut)]
    out, source = WorkedOut(of, len(body)), Counting(body)
    sums = [*records, *(tiles(len(body), 700, xxh3) if sealed else ()), *out.sums]
    told = list(out.collect(mismatches(source, sums, jobs=data.draw(st.integers(1, 2)), gaps=True)))
    assert out.value == of.value
    assert {s.what for s, _ in told} - {"seal"} == {"other"}
    assert set(source.times) == {1}


def test_a_read_that_was_stopped_says_nothing() -> None:
    out = WorkedOut(StoreChecksum("crc32", whole("crc32", CHECK)), len(CHECK))
    assert out.value is None
    for s in out.sums:
        pickle.loads(pickle.dumps(s.hash))  # it can be sent to other machines


def test_a_composite_whose_parts_are_told_gives_that_of_the_whole() -> None:
    parts = [b"a" * 11, b"b" * 7, b"c"]
    body = b"".join(parts)
    for algorithm in CRCS:
        told = StoreChecksums("s3://b/k", len(body), (of_parts(algorithm, parts, told=True),))
        (of,) = (s for s in add_whole_checksums(told).sums if s.whole)
        assert (of.algorithm, of.value) == (algorithm, whole(algorithm, body))
    for wrong in (
        of_parts("sha256", parts, told=True),
        of_parts("crc32", parts),
        StoreChecksum("crc32", b"\0\0\0\0", (11, 7, 1), of_parts("crc32", parts, told=True).part_values),
        of_parts("crc32", parts[:2], told=True),
    ):
        told = StoreChecksums("s3://b/k", len(body), (wrong,))
        assert add_whole_checksums(told) == told


@pytest.mark.slow
@given(full=st.integers(0, 3), rest=st.integers(1, 5))
@examples(4)
def test_a_composite_follows_from_a_seal_whose_chunks_are_its_parts(full: int, rest: int) -> None:
    body, size = memoryview(bytes(range(256)) * ((CHUNK >> 8) * full) + b"z" * rest), full * CHUNK + rest
    crcs = [CRC32C.update(body[e.offset : e.offset + e.length], 0).to_bytes(4, "big") for e in chunks(size)]
    for n in (1, 2):
        lengths = tuple(min(n * CHUNK, size - at) for at in range(0, size, n * CHUNK))
        values, at = [], 0
        for length in lengths:
            values.append(CRC32C.update(body[at : at + length], 0).to_bytes(4, "big"))
            at += length
        of = StoreChecksum("crc32c", composite("crc32c", values), lengths)
        assert of_chunks(of, size, crcs) == of.value
    assert of_chunks(StoreChecksum("crc32c", b"", (1, size - 1)), size, crcs) is None or size == 2
    for algorithm, lengths in (("crc32c", (size, 0)), ("sha256", (size,)), ("crc32c", (size + 1,))):
        assert of_chunks(StoreChecksum(algorithm, b"", lengths), size, crcs) is None


def test_what_is_compared_with_digests_of_the_whole() -> None:
    def told(*sums: StoreChecksum) -> StoreChecksums:
        return StoreChecksums("s3://b/k", 9, sums)

    crc, sha, tag = (StoreChecksum(a, whole(a, CHECK)) for a in ("crc32c", "sha256", "md5"))
    weak = StoreChecksum("md5", tag.value, weak=True)
    known = {a: whole(a, CHECK) for a in ("crc32c", "sha256", "md5")}
    other = {a: whole(a, b"987654321") for a in known}
    said = StoreChecksum("md5", tag.value, claimed=True)
    of_two = StoreChecksum("crc32c", crc.value, (5, 4))
    for sums, digests, expected in (
        ((crc, sha), known, (True, sha.algorithm)),  # the strongest is named
        ((crc, sha), {**known, "crc32c": other["crc32c"]}, (False, crc.algorithm)),  # one that differs wins
        ((weak,), other, None),  # an ETag that differs is no evidence
        ((weak,), known, (True, weak.algorithm)),
        ((said,), known, None),  # what an uploader said proves no bytes
        ((said,), other, (False, said.algorithm)),
        ((), known, None),
        ((sha,), {"crc32": known["crc32c"]}, None),
        ((of_two,), known, None),  # a composite is another
    ):
        found = compared(told(*sums), digests)
        assert (found and found[:2]) == expected, sums


def test_which_is_worked_out() -> None:
    def chosen(*sums: StoreChecksum, to_prove: bool = True) -> StoreChecksum | None:
        return to_work_out(StoreChecksums("s3://b/k", 9, sums), to_prove=to_prove)

    crc, sha = StoreChecksum("crc64nvme", b""), StoreChecksum("sha256", b"")
    parts = of_parts("crc32", [CHECK])
    tag = StoreChecksum("md5", b"", weak=True)
    assert chosen(tag, sha, crc, parts) == crc
    assert chosen(tag, parts) == parts
    assert chosen(tag) == tag and chosen(tag, to_prove=False) is None
    said = StoreChecksum("md5", b"", claimed=True)
    assert chosen(said) is None and chosen(said, to_prove=False) == said
    assert chosen(StoreChecksum("crc32", b"", (4, 4)), StoreChecksum("xxh9", b"")) is None
    assert chosen() is None


def test_without_its_package_a_checksum_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_work_out("crc64nvme")
    monkeypatch.setattr("ckpt_tools.checksum.store_sums.find_spec", lambda _: None)
    assert not can_work_out("crc64nvme") and can_work_out("crc32c")
    assert to_work_out(StoreChecksums("", 9, (StoreChecksum("crc64nvme", b""),)), to_prove=True) is None


@pytest.mark.parametrize("tile", [3000, 1 << 20], ids=["several chunks", "one chunk"])
@pytest.mark.parametrize("in_parts", [False, True])
def test_a_seals_own_digests_carry_a_crc(tile: int, in_parts: bool) -> None:
    data = bytes(range(256)) * 40
    of = StoreChecksum("crc32c", whole("crc32c", data))
    if in_parts:
        of = of_parts("crc32c", [data[:5000], data[5000:]])
    seal = tiles(len(data), tile, ChunkDigests)
    out, source = WorkedOut(of, len(data)), Counting(data)
    list(out.collect(mismatches(source, [*seal, *out.sums], jobs=1)))
    assert out.value == of.value and set(source.times) == {1}
