"""Stored checksums over arbitrary pieces: right whatever the threads and the order, every byte read once,
memory flat.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import tracemalloc
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import xxhash
from crc32c import crc32c
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from ckpt_tools.checksum import (
    CRC32,
    CRC32C,
    UNIT,
    Crc,
    Crc32c,
    Deflated,
    Extent,
    Piece,
    Sum,
    combine,
    compare,
    covered,
    mismatches,
    shifted,
)
from ckpt_tools.checksum.chunks import ChunkDigests
from ckpt_tools.checksum.sums import ASKED, xxh3
from ckpt_tools.storage import BytesSource, Window, opened


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
        found = [id(s) for s, _ in mismatches(BytesSource(damaged), sums, jobs=jobs, gaps=gaps)]
        for s in sums:
            extents = (p for p in s.pieces if not isinstance(p, bytes))
            assert (id(s) in found) == any(p.offset <= at < p.offset + p.length for p in extents)


@given(
    data=st.binary(max_size=3000),
    cuts=st.lists(st.integers(0, 3000), max_size=6),
    crc=st.sampled_from([CRC32, CRC32C]),
)
def test_the_crcs_of_parts_make_that_of_the_whole(data: bytes, cuts: list[int], crc: Crc) -> None:
    whole = {"CRC-32": zlib.crc32, "CRC-32C": crc32c}[crc.name](data)
    joined = 0
    for a, b in pairwise([0, *sorted(min(c, len(data)) for c in cuts), len(data)]):
        joined = crc.combine(joined, crc.update(data[a:b], 0), b - a)
    assert joined == whole


@given(a=st.integers(0, 2**32 - 1), b=st.integers(0, 2**32 - 1), length=st.integers(0, 2**50))
def test_joined_as_isal_joins(a: int, b: int, length: int) -> None:
    """The arithmetic of our own, which CRC-32C has and CRC-32 where there is no isal."""
    isal = pytest.importorskip("isal.isal_zlib")
    assert combine.combine(0xEDB88320, a, b, length) == isal.crc32_combine(a, b, length)


@pytest.mark.parametrize("jobs", [1, 3])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("how", [CRC32C, Crc32c])
def test_every_byte_is_read_once(
    jobs: int, whole: bool, how: Crc | type[Crc32c], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "UNIT", 100)
    monkeypatch.setattr(compare, "INLINE", 0)
    monkeypatch.setattr(compare, "GAP", 1)
    body = deflated(DATA[:500])
    data = DATA + body + DATA
    sums = [
        Sum("a", zlib.crc32(DATA[10:2000]), (Extent(10, 1990),), 0),
        Sum("b", crc32c(DATA[2500:4000]), (Extent(2500, 1500),), 0, hash=how),
        Sum("c", zlib.crc32(DATA[:500]), (Deflated(len(DATA), len(body), 500),), 0),
    ]
    source = Counting(data)
    assert list(mismatches(source, sums + [sha256(data)] * whole, jobs=jobs, gaps=True)) == []
    assert set(source.times) == {1}


def test_a_whole_sum_beside_pieces_out_of_order_is_still_right() -> None:
    pieces = (Extent(3000, 100), Extent(10, 50))
    odd = Sum("odd", crc32c(DATA[3000:3100] + DATA[10:60]), pieces, 0, hash=Crc32c)
    assert list(mismatches(BytesSource(DATA), [odd, sha256(DATA)])) == []
    other = bytearray(DATA)
    other[4000] ^= 1
    assert [s.what for s, _ in mismatches(BytesSource(bytes(other)), [odd, sha256(DATA)])] == ["SHA-256"]


@pytest.mark.slow
@pytest.mark.parametrize("crc", [CRC32, CRC32C])
def test_memory_is_flat_and_large_ranges_are_split_over_threads(crc: Crc) -> None:
    size = 8 * UNIT + 5
    source = Zeros(size)
    expected = 0
    for n in (UNIT,) * 8 + (5,):
        expected = crc.update(bytes(n), expected)
    tracemalloc.start()
    assert list(mismatches(source, [Sum("z", expected, (Extent(0, size),), 0, hash=crc)], jobs=4)) == []
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert source.bytes_read == size
    assert peak < 8 << 20
    assert len(source.threads) > 1


WITHOUT = "import sys; sys.modules['fastcrc'] = None\n"


@pytest.mark.slow
def test_a_crc32c_without_that_extension_does(tmp_path: Path) -> None:
    (tmp_path / "crc32c.py").write_text("def crc32c(data, value): return value + len(data)")
    code = f"{WITHOUT}from ckpt_tools.checksum import CRC32C; assert CRC32C.update(b'ab', 40) == 42"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": str(tmp_path)})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("iscsi", "taken"),
    [
        ("def iscsi(data, initial): return 7", True),
        ("def iscsi(data, initial): raise TypeError('memoryview')", False),  # of old, and slow as well
        ("from fastcrc.fastcrc import nothing", False),
    ],
)
def test_fastcrc_is_taken_where_it_can_be(tmp_path: Path, iscsi: str, taken: bool) -> None:
    (tmp_path / "fastcrc").mkdir()
    (tmp_path / "fastcrc" / "__init__.py").touch()
    (tmp_path / "fastcrc" / "crc32.py").write_text(iscsi)
    code = "from ckpt_tools.checksum import CRC32C; print(CRC32C.update(b'123456789', 0))"
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    env = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run([sys.executable, "-c", code], check=True, env=env, capture_output=True)
    assert int(done.stdout) == (7 if taken else 0xE3069283)


def test_what_is_covered() -> None:
    a = Sum("a", 0, (Extent(10, 10), b"xy"), 0)
    b = Sum("b", 0, (Extent(15, 10),), 0, otherwise=(Extent(15, 5),))
    assert [(x, y, s.what) for x, y, s in covered([b, a])] == [(10, 20, "a")]
    assert [(x, y, s.what) for x, y, s in covered([b, a], certain=False)] == [(10, 20, "a"), (20, 25, "b")]
    assert shifted(b, 5) == Sum("b", 0, (Extent(20, 10),), 5, otherwise=(Extent(20, 5),))


def test_a_window_is_a_source_that_ends_where_it_ends() -> None:
    from ckpt_tools.storage import ShortRead

    w = Window(BytesSource(DATA), 100, 50)
    assert (w.size, w.read(10, 40)) == (50, DATA[110:150])
    into = bytearray(5)
    w.readinto(45, memoryview(into))
    assert bytes(into) == DATA[145:150]
    for offset, length in ((11, 40), (-1, 2), (51, 1)):
        with pytest.raises(ShortRead):
            w.read(offset, length)


# ---- digests of chunks and CRCs over the same bytes


SIZE = 5 << 20
TILE = 2 << 20


def tiles(hash_: object, expected: object) -> list[Sum]:
    extents = [Extent(at, min(TILE, SIZE - at)) for at in range(0, SIZE, TILE)]
    return [Sum(f"chunk {e.offset}", expected(e), (e,), e.offset, hash=hash_) for e in extents]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("several") / "data"
    path.write_bytes(b"".join(i.to_bytes(4, "little") for i in range(SIZE // 4)))
    return path


RANGES = st.lists(st.tuples(st.integers(0, SIZE - 1), st.integers(1, SIZE)), max_size=6)


@pytest.mark.slow
@given(ranges=RANGES, jobs=st.integers(1, 3), castagnoli=st.booleans())
@examples(25)
def test_each_sum_is_what_it_would_be_by_itself(file, ranges, jobs, castagnoli) -> None:
    data = file.read_bytes()
    crc, of = (CRC32C, crc32c) if castagnoli else (CRC32, zlib.crc32)
    extents = [Extent(at, min(n, SIZE - at)) for at, n in ranges]
    right = [Sum("r", of(data[e.offset : e.offset + e.length]), (e,), 0, hash=crc) for e in extents]
    wrong = [Sum("w", 1 ^ of(data[e.offset : e.offset + e.length]), (e,), 1, hash=crc) for e in extents]
    chunks = tiles(ChunkDigests, lambda e: ASKED)
    with opened(str(file)) as source:
        got = dict(mismatches(source, [*right, *wrong, *chunks], jobs=jobs, gaps=True))
    assert set(got) == {*wrong, *chunks}
    assert [got[s] for s in wrong] == [s.expected ^ 1 for s in wrong]
    for s in chunks:
        (e,) = s.pieces
        part = data[e.offset : e.offset + e.length]
        crcs = zlib.crc32(part).to_bytes(4, "big") + crc32c(part).to_bytes(4, "big")
        assert got[s] == xxhash.xxh3_128_digest(part) + crcs


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, TILE - 1, TILE, SIZE - 1])
def test_one_changed_bit_is_in_one_chunk_and_every_crc_over_it(tmp_path, file, at) -> None:
    data = bytearray(file.read_bytes())
    chunks = tiles(xxh3, lambda e: xxhash.xxh3_128_digest(data[e.offset : e.offset + e.length]))
    crcs = [Sum("all", zlib.crc32(data), (Extent(0, SIZE),), 0)]
    crcs += [Sum("head", zlib.crc32(data[:9]), (Extent(0, 9),), 0)]
    data[at] ^= 64
    path = tmp_path / "data"
    path.write_bytes(data)
    with opened(str(path)) as source:
        wrong = {s.what for s, _ in mismatches(source, [*crcs, *chunks], jobs=2)}
        assert source.bytes_read == SIZE, "each byte once"
    assert wrong == {"all", f"chunk {at // TILE * TILE}", *(["head"] if at < 9 else [])}


@pytest.mark.slow
def test_a_page_of_zeros_is_shown_to_who_watches(tmp_path) -> None:
    path, seen = tmp_path / "data", list[int]()
    path.write_bytes(b"x" * (1 << 20) + bytes(4096) + b"x" * ((4 << 20) - 4096))

    def watch(_at: int, part: memoryview | bytes) -> None:
        seen.append(bytes(part).count(0))

    with opened(str(path)) as source:
        list(mismatches(source, tiles(ChunkDigests, lambda e: ASKED), jobs=2, gaps=True, watch=watch))
    assert sum(seen) == 4096
