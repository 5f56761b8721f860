"""Parts of a file's content: together they are the whole, byte for byte as often as one pass reads it, and
none of them splits a checksum.
"""

from __future__ import annotations

import random
import threading
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest
from crc32c import crc32c
from examples import examples
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from ckpt_tools.checksum import (
    Crc32c,
    Deflated,
    Extent,
    Picked,
    Sum,
    blocks,
    compare,
    grid_of,
    mismatches,
)
from ckpt_tools.settings.sample_size import Share, share
from ckpt_tools.storage import BytesSource

PAGE = 64


@pytest.fixture(autouse=True, scope="module")
def small() -> Iterator[None]:
    """Blocks of bytes instead of megabytes."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in (
            (blocks, "MIB", PAGE),
            (blocks, "LEAST", 256),
            (blocks, "LARGEST", 2048),
            (compare, "GAP", 16),
        ):
            patch.setattr(module, name, value)
        yield


class Recorded(BytesSource):
    """Counts how often each byte was read."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.reads, self.lock = Counter[int](), threading.Lock()

    def read(self, offset: int, length: int) -> bytes:
        with self.lock:
            self.reads.update(range(offset, offset + length))
        return super().read(offset, length)


class File(NamedTuple):
    data: bytes
    sums: list[Sum]

    def __repr__(self) -> str:
        return f"{len(self.data)} bytes, {[(s.what, s.pieces) for s in self.sums]}"


PIECES = st.lists(
    st.tuples(
        st.sampled_from(["gap", "crc", "two", "hash", "deflated", "double", "empty"]), st.integers(0, 900)
    ),
    max_size=25,
)


def made(pieces: Sequence[tuple[str, int]], scattered: bool, whole: bool) -> File:
    """A file of pieces, each under a checksum or none; ``scattered``: one more sum over the first and the
    last byte of the middle third, ``whole``: one over all.
    """
    data, sums, chance = b"", list[Sum](), random.Random(1)
    for kind, n in pieces:
        at, body = len(data), chance.randbytes(n)
        if kind == "deflated":
            packer = zlib.compressobj(wbits=-15)
            packed = packer.compress(body) + packer.flush()
            sums.append(Sum("d", zlib.crc32(body), (Deflated(at, len(packed), n),), at))
            data += packed
            continue
        data += body
        if kind == "crc":
            sums.append(Sum("c", zlib.crc32(body), (Extent(at, n),), at))
        elif kind == "two":
            half = n // 2
            sums.append(
                Sum(
                    "t",
                    zlib.crc32(b"x" + body[half:] + body[:half]),
                    (b"x", Extent(at + half, n - half), Extent(at, half)),
                    at,
                )
            )
        elif kind in ("hash", "double"):
            sums.append(Sum("h", crc32c(body), (Extent(at, n),), at, hash=Crc32c))
        if kind == "double":
            sums.append(Sum("e", zlib.crc32(body), (Extent(at, n),), at))
        if kind == "empty":
            sums.append(Sum("0", 0, (Extent(at, 0),), at))
    third = len(data) // 3
    if scattered and third > 2:
        sums.append(
            Sum(
                "s",
                zlib.crc32(data[third : third + 1] + data[2 * third : 2 * third + 1]),
                (Extent(third, 1), Extent(2 * third, 1)),
                third,
            )
        )
    if whole and data:
        sums.append(Sum("w", crc32c(data), (Extent(0, len(data)),), 0, hash=Crc32c))
    return File(data, sums)


FILES = st.builds(made, PIECES, st.booleans(), st.booleans())
LONG = made([("gap", 40_000)], False, False)
RECORDS = made([("crc", 500), ("gap", 70)] * 60, False, False)


def numbers(home: int, s: Share, count: int) -> list[int]:
    return [k for k in range(count) if s.has(home, k)]


def here(source: Recorded, file: File, picked: Picked | None) -> list[Sum]:
    if picked is not None and not picked.numbers:
        return []
    return [s for s, _ in mismatches(source, file.sums, jobs=1, gaps=True, picked=picked)]


@pytest.mark.slow
@given(file=FILES, parts=st.integers(1, 9), home=st.integers(0, 2**64), hurt=st.integers(0, 2**30))
@example(file=LONG, parts=7, home=3, hurt=0)
@example(file=RECORDS, parts=2, home=0, hurt=5)
@examples(150)
def test_all_parts_are_the_whole_and_none_is_read_twice(file: File, parts: int, home: int, hurt: int) -> None:
    data = bytearray(file.data)
    if data:
        data[hurt % len(data)] ^= 1
    whole = Recorded(bytes(data))
    wrong = here(whole, file, None)
    grid = grid_of(file.sums, len(data))
    if not len(grid):
        assert whole.reads.total() == 0
        return
    assert all(grid.lengths)
    one = any(
        s.pieces == (Extent(0, len(data)),) for s in file.sums
    )  # then the file is one block, and checksums that are not in its order cost a second pass
    assert sum(grid.lengths) == whole.reads.total() or (one and len(grid) == 1)
    together, found, done = Counter[int](), list[Sum](), list[int]()
    for n in range(1, parts + 1):
        source, picked = Recorded(bytes(data)), Picked(grid, numbers(home, share(f"{n}/{parts}"), len(grid)))
        said = here(source, file, picked)
        assert one or source.reads.total() == sum(grid.lengths[k] for k in picked.numbers)
        assert {grid.at(at) for at in source.reads} <= picked.numbers
        assert (
            one
            or {grid.at(p.offset) for s in said for p in s.pieces if not isinstance(p, bytes)}
            == picked.damaged
        )
        together += source.reads
        found += said
        done += picked.done
    assert together == whole.reads
    assert sorted(done) == list(range(len(grid)))
    assert Counter(s.what + str(s.offset) for s in found) == Counter(s.what + str(s.offset) for s in wrong)


@pytest.mark.parametrize("file", [LONG, RECORDS], ids=["no checksum", "records"])
@pytest.mark.parametrize("parts", [2, 3, 7])
def test_parts_of_one_large_file_are_alike(file: File, parts: int) -> None:
    grid = grid_of(file.sums, len(file.data))
    shares = [
        sum(grid.lengths[k] for k in numbers(5, share(f"{n}/{parts}"), len(grid))) / sum(grid.lengths)
        for n in range(1, parts + 1)
    ]
    assert len(grid) > 5 * parts and max(shares) - min(shares) < 0.25 / parts + 2 / len(grid)


def test_a_block_is_cut_where_a_page_begins() -> None:
    grid = grid_of([], 40_000)
    assert all(start % PAGE == 0 for start in grid.starts) and len(grid) > 40


def test_the_grid_depends_on_the_file_alone_and_is_bounded() -> None:
    assert len(grid_of([], 1 << 20)) == 1 << 9  # of 2048 bytes, the largest
    assert [len(grid_of([], n)) for n in (0, 15, 16, 256, 300, 400)] == [0, 0, 1, 1, 1, 2]
    huge = [Sum("one", 0, (Extent(0, 100_000),), 0)]
    assert list(grid_of(huge, 100_000).lengths) == [100_000]


@pytest.mark.parametrize("jobs", [1, 3])
def test_what_was_read_before_a_stop_is_known(jobs: int) -> None:
    from ckpt_tools.storage import Stopped

    file, read = replace_sum(RECORDS, 0), [0]
    grid = grid_of(file.sums, len(file.data))

    def progress(n: int) -> None:
        read[0] += n
        if read[0] > 9000:
            raise Stopped

    picked = Picked(grid, range(len(grid)))
    assert picked.done == frozenset()
    with pytest.raises(Stopped):
        list(
            mismatches(
                BytesSource(file.data), file.sums, jobs=jobs, gaps=True, progress=progress, picked=picked
            )
        )
    assert 0 < len(picked.done) < len(grid) and sum(grid.lengths[k] for k in picked.done) <= 9000
    assert picked.damaged == {0}


def replace_sum(file: File, i: int) -> File:
    return File(file.data, [replace(s, expected=1) if j == i else s for j, s in enumerate(file.sums)])


@pytest.mark.parametrize(
    ("text", "size", "part"),
    [
        ("2/7", None, (2, 7)),
        (" 1 / 1 ", None, (1, 1)),
        ("50GiB", 50 << 30, (0, 0)),
        (1000, 1000, (0, 0)),
        ("2k", 2048, (0, 0)),
    ],
)
def test_shares(text: object, size: int | None, part: tuple[int, int]) -> None:
    got = share(text)
    assert (got.size, (got.part, got.parts), got.fraction) == (size, part, None)


@pytest.mark.parametrize(("text", "is_"), [("10%", 0.1), ("0.5 %", 0.005), ("100%", 1.0)])
def test_percent(text: str, is_: float) -> None:
    fraction = share(text).fraction
    assert fraction is not None and float(fraction) == is_


@pytest.mark.parametrize(
    "text",
    [
        "0/3",
        "4/3",
        "1/0",
        "0%",
        "101%",
        "-1%",
        "",
        "half",
        "1/2/3",
        "0",
        0,
        True,
        None,
        0.5,
        "1/9999999",
        "٣/٤",
    ],
)
def test_what_is_no_share(text: object) -> None:
    with pytest.raises(ValueError, match=r"say|at most"):
        share(text)
