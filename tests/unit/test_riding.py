"""Digests of chunks and CRCs over the same bytes: each byte is read once, whoever reads, and each sum is what it
would be by itself.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
import xxhash
from crc32c import crc32c
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from ckpt_tools.checksum import CRC32, CRC32C, Extent, Sum, mismatches
from ckpt_tools.checksum import chunks as chunks_module
from ckpt_tools.checksum import work as work_module
from ckpt_tools.checksum.chunks import ChunkDigests
from ckpt_tools.checksum.sums import ASKED, xxh3
from ckpt_tools.storage import opened

SIZE = 5 << 20
TILE = 2 << 20


def tiles(hash_: object, expected: object) -> list[Sum]:
    extents = [Extent(at, min(TILE, SIZE - at)) for at in range(0, SIZE, TILE)]
    return [Sum(f"chunk {e.offset}", expected(e), (e,), e.offset, hash=hash_) for e in extents]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("riding") / "data"
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
@pytest.mark.parametrize("record", [4 << 10, 300_000], ids=["many", "few"])
def test_the_crc_of_a_chunk_is_joined_from_those_of_its_records(monkeypatch, file, record) -> None:
    data, counted = file.read_bytes(), 0
    extents = [Extent(at, min(record, SIZE - at)) for at in range(0, SIZE, record)]
    records = [Sum("r", zlib.crc32(data[e.offset : e.offset + e.length]), (e,), 0) for e in extents]

    def crc32(part: memoryview, value: int) -> int:
        nonlocal counted
        counted += len(part)
        return zlib.crc32(part, value)

    monkeypatch.setattr(work_module, "crc32", crc32)
    monkeypatch.setattr(chunks_module, "crc32", None)  # that of chunks by themselves
    with opened(str(file)) as source:
        asked = [*records, *tiles(ChunkDigests, lambda e: ASKED)]
        found = {s.offset: got for s, got in mismatches(source, asked)}
    assert list(found) == list(range(0, SIZE, TILE)), "no record differs"
    crcs = {at: zlib.crc32(data[at : at + TILE]).to_bytes(4, "big") for at in found}
    assert {at: got[16:20] for at, got in found.items()} == crcs
    assert counted == SIZE, "each byte once"


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, TILE - 1, TILE, SIZE - 1])
def test_one_changed_bit_is_in_one_chunk_and_every_crc_over_it(tmp_path, file, at) -> None:
    data = bytearray(file.read_bytes())
    chunks = tiles(xxh3, lambda e: xxhash.xxh3_128_digest(data[e.offset : e.offset + e.length]))
    crcs = [
        Sum("all", zlib.crc32(data), (Extent(0, SIZE),), 0),
        Sum("head", zlib.crc32(data[:9]), (Extent(0, 9),), 0),
    ]
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
