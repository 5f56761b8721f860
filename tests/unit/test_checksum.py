"""Stored checksums over arbitrary pieces: right whatever the threads and the order, every byte read once,
memory flat.
"""

from __future__ import annotations

import errno
import hashlib
import os
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
from ckpt_tools.checksum.compare import UNIT
from ckpt_tools.checksum.sums import ASKED, Piece, covered, shifted, xxh3
from ckpt_tools.storage import BytesSource, ShortRead, Stopped, Window
from ckpt_tools.storage.local import BUFFER, HeldSource, LocalSource


class Counting(BytesSource):
    """Remembers how often each byte was delivered."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.times = bytearray(len(data))
        self.lock = threading.Lock()

    def read(self, offset: int, length: int) -> bytes:
        with self.lock:
            for i in range(offset, min(offset + length, self.size)):
                self.times[i] += 1
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
    assert [(x, y, s.what) for x, y, s in covered([b, a])] == [(10, 20, "a")]
    assert [(x, y, s.what) for x, y, s in covered([b, a], certain=False)] == [(10, 20, "a"), (20, 25, "b")]
    assert shifted(b, 5) == Sum("b", 0, (Extent(20, 10),), 5, otherwise=(Extent(20, 5),))


def test_a_window_is_a_source_that_ends_where_it_ends() -> None:
    w = Window(BytesSource(DATA), 100, 50)
    assert (w.size, w.read(10, 40)) == (50, DATA[110:150])
    into = bytearray(5)
    w.readinto(45, memoryview(into))
    assert bytes(into) == DATA[145:150]
    for offset, length in ((11, 40), (-1, 2), (51, 1)):
        with pytest.raises(ShortRead):
            w.read(offset, length)
