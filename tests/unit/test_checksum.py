"""Stored checksums over arbitrary pieces: right whatever the threads and the order, every byte read once,
memory flat; and as stores keep them: of parts that were joined, and of the checksums of parts.
"""

from __future__ import annotations

import errno
import hashlib
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import tracemalloc
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from ckpt_tools.checksum import CRC32, CRC32C, Crc, Crc32c, Deflated, Extent, Sum, compare, mismatches
from ckpt_tools.checksum.combine import CRC64NVME
from ckpt_tools.checksum.compare import UNIT
from ckpt_tools.checksum.store_sums import (
    CRCS,
    WorkedOut,
    add_whole_checksums,
    can_work_out,
    choose_sum,
    combine_crcs,
    compare_sums,
    compute_composite,
    sum_chunks,
)
from ckpt_tools.checksum.sums import ASKED, CHUNK, ChunkDigests, Piece, chunks, find_covered, shift_sum, xxh3
from ckpt_tools.model.seal import NAMES, StoreChecksum, StoreChecksums
from ckpt_tools.storage import BytesSource, ShortRead, Stopped, Window
from ckpt_tools.storage.local import BUFFER, HeldSource, LocalSource


class Counting(BytesSource):
    """Remembers how often each byte was delivered."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.times, self.lock = bytearray(len(data)), threading.Lock()

    def read(self, offset: int, length: int) -> bytes:
        with self.lock:
            self.times[offset : offset + length] = bytes(n + 1 for n in self.times[offset : offset + length])
        return super().read(offset, length)


class Zeros:
    """A file of zeros that takes no memory."""

    def __init__(self, size: int) -> None:
        self.size, self.bytes_read, self.path = size, 0, ""
        self.threads: set[int] = set()

    def read(self, offset: int, length: int) -> bytes:
        self.bytes_read += length
        return bytes(length)

    def readinto(self, offset: int, buffer: memoryview) -> None:
        self.bytes_read += len(buffer)
        self.threads.add(threading.get_ident())


def sha256(data: bytes) -> Sum:
    return Sum("SHA-256", hashlib.sha256(data).digest(), (Extent(0, len(data)),), 0, hash=hashlib.sha256)


DATA = bytes(range(256)) * 20


@contextmanager
def in_memory(data: bytes) -> Iterator[HeldSource]:
    """A file of which all will be read."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        with HeldSource(file.name) as source:
            assert source.whole() == data
            yield source


def deflated(data: bytes) -> bytes:
    c = zlib.compressobj(9, zlib.DEFLATED, -15)
    return c.compress(data) + c.flush()


@st.composite
def questions(draw: Any) -> tuple[bytes, list[Sum]]:
    """Some bytes, and true sums over pieces of them that do not overlap, in any order, with literal bytes
    between.
    """
    data = draw(st.binary(min_size=1, max_size=300))
    marks = sorted(draw(st.sets(st.integers(0, len(data)), max_size=8)))
    extents = draw(st.permutations([Extent(a, b - a) for a, b in pairwise(marks)]))
    sums = []
    while extents:
        n = draw(st.integers(1, len(extents)))
        mine, extents = extents[:n], extents[n:]
        pieces: list[Piece] = [p for e in mine for p in (e, draw(st.binary(max_size=3)))]
        joined = b"".join(p if isinstance(p, bytes) else data[p.offset : p.offset + p.length] for p in pieces)  # type: ignore[union-attr]
        how: Crc | type[Crc32c] = draw(st.sampled_from([CRC32, CRC32C, Crc32c]))
        value = (zlib.crc32 if how is CRC32 else crc32c)(joined)
        sums.append(Sum("sum", value, tuple(pieces), 0, hash=how))
    if draw(st.booleans()):
        sums.append(sha256(data))
    return data, sums


@pytest.mark.slow
@examples(300)
@given(
    questions(),
    st.sampled_from([1, 2, 5]),
    st.booleans(),
    st.integers(0, 10_000),
    st.sampled_from([7, 64, UNIT]),
)
def test_true_sums_match_and_every_flip_shows(
    asked: tuple[bytes, list[Sum]], jobs: int, gaps: bool, bit: int, unit: int
) -> None:
    data, sums = asked
    with pytest.MonkeyPatch.context() as m:
        m.setattr(compare, "UNIT", unit)
        m.setattr(compare, "INLINE", 0)
        assert list(mismatches(BytesSource(data), sums, jobs=jobs, gaps=gaps)) == []
        at = bit // 8 % len(data)
        damaged = data[:at] + bytes([data[at] ^ 1 << bit % 8]) + data[at + 1 :]
        found = list(mismatches(BytesSource(damaged), sums, jobs=jobs, gaps=gaps))
        wrong = [id(s) for s, _ in found]
        for s in sums:
            extents = (p for p in s.pieces if not isinstance(p, bytes))
            assert (id(s) in wrong) == any(p.offset <= at < p.offset + p.length for p in extents)
        with in_memory(damaged) as source:
            assert list(mismatches(source, sums, jobs=jobs, gaps=gaps)) == found


@pytest.mark.parametrize("jobs", [1, 3])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("how", [CRC32C, Crc32c])
def test_every_byte_is_read_once(
    jobs: int, whole: bool, how: Crc | type[Crc32c], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("UNIT", 100), ("INLINE", 0), ("GAP", 1)):
        monkeypatch.setattr(compare, name, value)
    data = DATA + BODY + DATA
    sums = [
        Sum("a", zlib.crc32(DATA[10:2000]), (Extent(10, 1990),), 0),
        Sum("b", crc32c(DATA[2500:4000]), (Extent(2500, 1500),), 0, hash=how),
        Sum("c", zlib.crc32(DATA[:500]), (Deflated(len(DATA), len(BODY), 500),), 0),
    ]
    source = Counting(data)
    assert list(mismatches(source, sums + [sha256(data)] * whole, jobs=jobs, gaps=True)) == []
    assert set(source.times) == {1}


@pytest.mark.slow
@pytest.mark.parametrize("crc", [CRC32, CRC32C])
def test_memory_is_flat_and_large_ranges_are_split_over_threads(crc: Crc) -> None:
    source, expected = Zeros(8 * UNIT + 5), 0
    for n in (UNIT,) * 8 + (5,):
        expected = crc.update(bytes(n), expected)
    tracemalloc.start()
    sums = [Sum("z", expected, (Extent(0, source.size),), 0, hash=crc)]
    assert list(mismatches(source, sums, jobs=4)) == []
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert source.bytes_read == source.size and peak < 8 << 20 and len(source.threads) > 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("iscsi", "taken"),
    [
        ("def iscsi(data, initial): return 7", True),
        ("def iscsi(data, initial): raise TypeError('memoryview')", False),  # of old, and slow as well
    ],
)
def test_fastcrc_is_taken_where_it_can_be(tmp_path: Path, iscsi: str, taken: bool) -> None:
    (tmp_path / "fastcrc").mkdir()
    (tmp_path / "fastcrc" / "__init__.py").touch()
    (tmp_path / "fastcrc" / "crc32.py").write_text(iscsi)
    code = "from ckpt_tools.checksum import CRC32C; print(CRC32C.update(b'123456789', 0))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], check=True, env=env, capture_output=True)
    assert int(done.stdout) == (7 if taken else 0xE3069283)


# ---- a small file, of which all is in memory


BODY = deflated(DATA[:500])
PAGES = DATA[:4096] + bytes(8192) + BODY + DATA
PLAIN = [
    Sum("head", zlib.crc32(PAGES[:4000]), (Extent(0, 4000),), 0),
    Sum("wrong", 7, (Extent(100, 50), b"and", Extent(13_000, 200)), 0, hash=CRC32C),
    Sum("odd", 7, (Extent(100, 50),), 0, otherwise=(Extent(0, 4000),)),
    Sum("SHA-256", b"wrong", (Extent(15_000, 40),), 0, hash=hashlib.sha256),
    Sum("both", b"wrong", (Extent(15_500, 40), Extent(15_100, 40)), 0, hash=hashlib.sha256),
]
INFLATED = Sum("inflated", 7, (Deflated(12_288, len(BODY), 500),), 0)
KINDS = {
    "plain": PLAIN,
    "none": [],
    "deflated": [*PLAIN, INFLATED],
    "damaged": [Sum("inflated", 7, (Deflated(12_288, len(BODY) - 1, 500),), 0)],
    "asked": [*PLAIN[:-1], Sum("all", ASKED, (Extent(0, len(PAGES)),), 0, hash=xxh3)],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gaps", [False, True])
def test_a_file_in_memory_is_compared_as_any_other(tmp_path: Path, kind: str, gaps: bool) -> None:
    """What differs, what nobody covers, and how many bytes were read for it."""
    path, told = tmp_path / "data", []
    path.write_bytes(PAGES)
    for make in (LocalSource, HeldSource):
        took, seen = list[int](), bytearray(len(PAGES))

        def watch(at: int, part: memoryview | bytes, seen: bytearray = seen) -> None:
            seen[at : at + len(part)] = b"\1" * len(part)

        with make(str(path)) as source:
            found = mismatches(source, KINDS[kind], jobs=1, gaps=gaps, watch=watch, progress=took.append)
            wrong = [(s.what, str(got)) for s, got in found]
            told.append((wrong, source.bytes_read, sum(took), bytes(seen)))
    assert told[0] == told[1]


def test_sums_that_say_more_than_there_is_in_memory() -> None:
    beyond = Sum("beyond", 7, (Extent(0, len(DATA) + 1),), 0)
    with in_memory(DATA) as source, pytest.raises(ShortRead) as e:
        list(mismatches(source, [beyond]))
    assert e.value.offset + e.value.got == len(DATA)


def test_what_was_found_in_memory_counts_although_time_is_over() -> None:
    def stop(_n: int) -> None:
        raise Stopped

    found = list[str]()
    with in_memory(PAGES) as source, pytest.raises(Stopped):
        found.extend(s.what for s, _ in mismatches(source, PLAIN[:2], progress=stop))
    assert found == ["wrong"]


def test_what_cannot_be_read_in_one_go_is_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A medium error in one page: what lies elsewhere is read, and the error is met where it is."""
    (tmp_path / "data").write_bytes(PAGES)
    real, bad = os.pread, 9000

    def pread(fd: int, n: int, at: int) -> bytes:
        if at <= bad < at + n:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd, n, at)

    monkeypatch.setattr(os, "pread", pread)
    with HeldSource(str(tmp_path / "data")) as source:
        assert source.read(100, 50) == PAGES[100:150]
        assert (source.whole(), source.bytes_read) == (b"", 50)
        with pytest.raises(OSError, match="Input/output"):
            source.read(8999, 2)
        assert list(mismatches(source, PLAIN[:1])) == []


@pytest.mark.parametrize("size", [10, BUFFER + 1])
def test_reads_of_a_file_in_memory_are_those_of_the_system(tmp_path: Path, size: int) -> None:
    path, told = tmp_path / "data", []
    for make in (LocalSource, HeldSource):
        path.write_bytes(DATA[:10])
        os.truncate(path, size)
        with make(str(path)) as source:
            for offset, length in ((0, 10), (3, 0), (size, 0), (-1, 2), (0, -1), (size - 1, 2), (size, 1)):
                try:
                    told.append((make, source.read(offset, length)))
                except (ShortRead, OSError) as e:
                    told.append((make, str(e)))
            os.truncate(path, 5)  # what is in memory stays: whether it is still the file is asked in the end
            assert (source.changed(), source.identity()) == (True, None)
    half = len(told) // 2
    assert [what for _, what in told[:half]] == [what for _, what in told[half:]]


def test_what_is_covered() -> None:
    a = Sum("a", 0, (Extent(10, 10), b"xy"), 0)
    b = Sum("b", 0, (Extent(15, 10),), 0, otherwise=(Extent(15, 5),))
    assert [(x, y, s.what) for x, y, s in find_covered([b, a])] == [(10, 20, "a")]
    assert [(x, y, s.what) for x, y, s in find_covered([b, a], certain=False)] == [
        (10, 20, "a"),
        (20, 25, "b"),
    ]
    assert shift_sum(b, 5) == Sum("b", 0, (Extent(20, 10),), 5, otherwise=(Extent(20, 5),))


def test_a_window_is_a_source_that_ends_where_it_ends() -> None:
    w = Window(BytesSource(DATA), 100, 50)
    assert (w.size, w.read(10, 40)) == (50, DATA[110:150])
    into = bytearray(5)
    w.readinto(45, memoryview(into))
    assert bytes(into) == DATA[145:150]
    for offset, length in ((11, 40), (-1, 2), (51, 1)):
        with pytest.raises(ShortRead):
            w.read(offset, length)


# ---- as stores keep them


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
    assert combine_crcs(algorithm, told) == whole(algorithm, b"".join(parts))


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
        of = StoreChecksum("crc32c", compute_composite("crc32c", values), lengths)
        assert sum_chunks(of, size, crcs) == of.value
    assert sum_chunks(StoreChecksum("crc32c", b"", (1, size - 1)), size, crcs) is None or size == 2
    for algorithm, lengths in (("crc32c", (size, 0)), ("sha256", (size,)), ("crc32c", (size + 1,))):
        assert sum_chunks(StoreChecksum(algorithm, b"", lengths), size, crcs) is None


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
        found = compare_sums(told(*sums), digests)
        assert (found and found[:2]) == expected, sums


def test_which_is_worked_out() -> None:
    def chosen(*sums: StoreChecksum, to_prove: bool = True) -> StoreChecksum | None:
        return choose_sum(StoreChecksums("s3://b/k", 9, sums), to_prove=to_prove)

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
    assert choose_sum(StoreChecksums("", 9, (StoreChecksum("crc64nvme", b""),)), to_prove=True) is None


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
