"""Where the chunks of an HDF5 array lie: B-trees, and the arrays that took their place in HDF5 1.10."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ckpt_tools.formats.hdf5.blocks import UNDEFINED, Blocks, Fields, bad
from ckpt_tools.formats.hdf5.groups import read_records, read_tree
from ckpt_tools.model.report import Guard


class Chunk(NamedTuple):
    """``size`` is -1 where it is that of its elements; bit i of ``mask``: filter i was left out."""

    address: int
    size: int
    mask: int


def read_chunk_tree(
    blocks: Blocks, address: int, what: str, grid: tuple[int, ...], rank: int
) -> Iterator[Chunk]:
    """From a B-tree, version 1. ``grid`` is the shape of a chunk and the bytes of an element."""
    last: tuple[int, ...] = ()
    for row in read_tree(blocks, address, what, kind=1, key=8 + 8 * len(grid), rank=rank):
        for key, child in zip(row[:-1:2], row[1::2], strict=True):
            f = Fields(key, address, what)
            size, mask, *place = f.numbers(4, 4, *[8] * len(grid))
            here = tuple(place)
            if here <= last or any(at % n for at, n in zip(here, grid, strict=True)):
                raise f.wrong(f"a chunk at {here} after {last}")
            last = here
            yield Chunk(int.from_bytes(child, "little"), size, mask)


def read_chunk_records(blocks: Blocks, address: int, what: str, rank: int) -> Iterator[Chunk]:
    """From a B-tree, version 2. Its records of kind 10 are plain, those of kind 11 of filtered chunks."""
    for kind, data in read_records(blocks, address, what):
        f = Fields(data, address, what)
        if kind == 10:
            yield Chunk(f.number(8), -1, 0)
        elif kind == 11 and 12 + 8 * rank < len(data) <= 20 + 8 * rank:
            at, size, mask = f.numbers(8, len(data) - 12 - 8 * rank, 4)
            yield Chunk(at, size, mask)
        else:
            raise f.wrong(f"a record of kind {kind}, {len(data)} bytes")


class _Items:
    """The elements of an array whose header is at ``f``: so many bytes each, and filtered or not."""

    def __init__(self, blocks: Blocks, f: Fields) -> None:
        self.blocks, self.what, self.home = blocks, f.what, f.file_at
        f.expect(0, "version")
        self.filtered, self.width = f.numbers(1, 1)
        if self.filtered > 1 or (not 12 < self.width <= 20 if self.filtered else self.width != 8):
            raise f.wrong(f"elements of kind {self.filtered}, {self.width} bytes each")

    def read(self, f: Fields, number: int) -> Iterator[Chunk]:
        """The next chunks that were allocated."""
        for _ in range(number):
            at, size, mask = f.numbers(8, self.width - 12, 4) if self.filtered else (f.number(8), -1, 0)
            if at != UNDEFINED:
                yield Chunk(at, size, mask)

    def read_pages(self, at: int, written: bytes, elements: int, per_page: int) -> Iterator[Chunk]:
        """From the pages of a data block, each with its checksum; ``written`` has a bit for each."""
        for i in range(-(-elements // per_page)):
            number, what = min(per_page, elements - i * per_page), f"a page of {self.what}"
            length = number * self.width + 4
            if written[i // 8] & (0x80 >> i % 8):
                yield from self.read(self.blocks.summed(at, length, what), number)
            else:
                what = f"{what} that was never written"
                self.blocks.take(at, length, what)
                self.blocks.anatomy.explain(at, length, what, Guard.UNPROTECTED)
            at += length

    def open_block(self, address: int, signature: bytes, length: int) -> Fields:
        """A block that belongs to this array, past its prefix."""
        data = self.blocks.summed(address, length, self.what, signature)
        data.expect(0, "version")
        data.expect(self.filtered, "kind of elements")
        data.expect(self.home, "array", 8)
        return data


def read_fixed_array(blocks: Blocks, address: int, what: str) -> Iterator[Chunk]:
    """From a fixed array: one element for each chunk that the array can have."""
    head = blocks.summed(address, 28, what, b"FAHD")
    items = _Items(blocks, head)
    page_bits, count, at = head.numbers(1, 8, 8)
    if at == UNDEFINED:
        return
    per_page = 1 << min(page_bits, 64)
    paged = count > per_page
    held = (-(-count // per_page) + 7) // 8 if paged else count * items.width
    if held > blocks.end:
        raise head.wrong(f"{held} bytes of elements in a file of {blocks.end}")
    f = items.open_block(at, b"FADB", 14 + held + 4)
    if paged:
        yield from items.read_pages(at + 14 + held + 4, f.take(held), count, per_page)
    else:
        yield from items.read(f, count)


class _Extensible(NamedTuple):
    """The numbers of an extensible array's header."""

    max_bits: int
    in_index: int
    least: int
    """Elements in the smallest data block."""
    pointers: int
    """Pointers to data blocks in the smallest super block."""
    page_bits: int

    @property
    def offset_size(self) -> int:
        return (self.max_bits + 7) // 8

    def blocks_of(self, super_block: int) -> tuple[int, int]:
        """How many data blocks a super block has, and how many elements each."""
        return 1 << super_block // 2, (1 << (super_block + 1) // 2) * self.least


def read_extensible_array(blocks: Blocks, address: int, what: str) -> Iterator[Chunk]:
    """From an extensible array: the index block has the first elements, data and super blocks the others."""
    head = blocks.summed(address, 72, what, b"EAHD")
    items = _Items(blocks, head)
    array = _Extensible(*head.numbers(1, 1, 1, 1, 1))
    sizes = array.least, array.pointers
    if not 0 < array.max_bits <= 64 or any(n == 0 or n & (n - 1) for n in sizes) or array.page_bits > 64:
        raise head.wrong(f"{array}")
    at = head.numbers(*[8] * 7)[6]
    if at == UNDEFINED:
        return
    first = 2 * (array.pointers.bit_length() - 1)  # the super blocks whose data blocks the index block names
    direct = sum(array.blocks_of(s)[0] for s in range(first))
    supers = max(1 + array.max_bits - (array.least.bit_length() - 1) - first, 0)
    length = 14 + array.in_index * items.width + 8 * (direct + supers) + 4
    index = items.open_block(at, b"EAIB", length)
    yield from items.read(index, array.in_index)
    for s in range(first):
        number, size = array.blocks_of(s)
        for _ in range(number):
            yield from _read_data_block(items, array, index.number(8), size, None)
    for s in range(first, first + supers):
        yield from _read_super_block(items, array, index.number(8), s)


def _read_super_block(items: _Items, array: _Extensible, address: int, which: int) -> Iterator[Chunk]:
    if address == UNDEFINED:
        return
    number, size = array.blocks_of(which)
    pages = size >> array.page_bits if size > 1 << array.page_bits else 0
    bitmap = -(-pages // 8)
    head = 14 + array.offset_size + number * bitmap
    if head + 8 * number > items.blocks.end:
        raise bad(f"a super block of {items.what} for {number} blocks", address)
    f = items.open_block(address, b"EASB", head + 8 * number + 4)
    f.take(array.offset_size)
    written = [f.take(bitmap) for _ in range(number)]
    for one in written:
        yield from _read_data_block(items, array, f.number(8), size, one if pages else None)


def _read_data_block(
    items: _Items, array: _Extensible, address: int, size: int, written: bytes | None
) -> Iterator[Chunk]:
    """``written`` has a bit for each page of a block that is read page by page, else it is None."""
    if address == UNDEFINED:
        return
    head = 14 + array.offset_size
    if written is None:
        f = items.open_block(address, b"EADB", head + size * items.width + 4)
        f.take(array.offset_size)
        yield from items.read(f, size)
    else:
        items.open_block(address, b"EADB", head + 4)
        yield from items.read_pages(address + head + 4, written, size, 1 << array.page_bits)
