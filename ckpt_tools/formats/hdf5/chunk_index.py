"""Where the chunks of an HDF5 array lie: B-trees, and the arrays that took their place in HDF5 1.10."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ckpt_tools.formats.common.format import Damage
from ckpt_tools.formats.hdf5.blocks import UNDEFINED, Blocks, Fields
from ckpt_tools.formats.hdf5.new_groups import records
from ckpt_tools.formats.hdf5.old_groups import tree
from ckpt_tools.model.report import Guard


class Chunk(NamedTuple):
    """One chunk: ``size`` is -1 where it is that of its elements, and bit i of ``mask`` says that filter i
    was left out.
    """

    address: int
    size: int
    mask: int


def by_tree(blocks: Blocks, address: int, what: str, grid: tuple[int, ...], rank: int) -> Iterator[Chunk]:
    """From a B-tree, version 1, whose keys are in the order of the places. ``grid`` is the shape of a
    chunk and the bytes of an element.
    """
    last: tuple[int, ...] = ()
    for row in tree(blocks, address, what, kind=1, key=8 + 8 * len(grid), rank=rank):
        for key, child in zip(row[:-1:2], row[1::2], strict=True):
            f = Fields(key, address, what)
            size, mask, *place = f.numbers(4, 4, *[8] * len(grid))
            here = tuple(place)
            if here <= last or any(at % n for at, n in zip(here, grid, strict=True)):
                raise f.wrong(f"a chunk at {here} after {last}")
            last = here
            yield Chunk(int.from_bytes(child, "little"), size, mask)


def by_records(blocks: Blocks, address: int, what: str, rank: int) -> Iterator[Chunk]:
    """From a B-tree, version 2. Its records of kind 10 are plain, those of kind 11 of filtered chunks."""
    for kind, data in records(blocks, address, what):
        f = Fields(data, address, what)
        if kind == 10:
            yield Chunk(f.number(8), -1, 0)
        elif kind == 11 and 12 + 8 * rank < len(data) <= 20 + 8 * rank:
            at, size, mask = f.numbers(8, len(data) - 12 - 8 * rank, 4)
            yield Chunk(at, size, mask)
        else:
            raise f.wrong(f"a record of kind {kind}, {len(data)} bytes")


class _Items(NamedTuple):
    """How the elements of an array are written: so many bytes each, and filtered or not."""

    blocks: Blocks
    what: str
    width: int
    filtered: bool
    home: int

    def read(self, f: Fields, number: int) -> Iterator[Chunk]:
        """The next chunks that were allocated."""
        for _ in range(number):
            if self.filtered:
                at, size, mask = f.numbers(8, self.width - 12, 4)
            else:
                at, size, mask = f.number(8), -1, 0
            if at != UNDEFINED:
                yield Chunk(at, size, mask)

    def page(self, address: int, number: int) -> Iterator[Chunk]:
        """A page of a data block: elements and their checksum."""
        what = f"a page of {self.what}"
        data = self.blocks.summed(address, number * self.width + 4, what)
        yield from self.read(Fields(data, address, what), number)

    def unwritten(self, address: int, number: int) -> None:
        """The place of a page that was never written."""
        what, length = f"a page of {self.what} that was never written", number * self.width + 4
        self.blocks.take(address, length, what)
        self.blocks.anatomy.explain(address, length, what, Guard.UNPROTECTED)

    def block(self, address: int, signature: bytes, length: int) -> Fields:
        """A block that belongs to this array, past its prefix."""
        data = Fields(self.blocks.summed(address, length, self.what, signature), address, self.what, 4)
        data.expect(0, "version")
        data.expect(self.filtered, "kind of elements")
        data.expect(self.home, "array", 8)
        return data


def _items(blocks: Blocks, f: Fields, what: str) -> _Items:
    f.expect(0, "version")
    filtered, width = f.numbers(1, 1)
    if filtered > 1 or (not 12 < width <= 20 if filtered else width != 8):
        raise f.wrong(f"elements of kind {filtered}, {width} bytes each")
    return _Items(blocks, what, width, bool(filtered), f.file_at)


def _bits(bitmap: bytes, number: int) -> list[bool]:
    return [bool(bitmap[i // 8] & (0x80 >> i % 8)) for i in range(number)]


def by_fixed_array(blocks: Blocks, address: int, what: str) -> Iterator[Chunk]:
    """From a fixed array: one element for each chunk that the array can have."""
    head = Fields(blocks.summed(address, 28, what, b"FAHD"), address, what, 4)
    items = _items(blocks, head, what)
    page_bits, count, at = head.numbers(1, 8, 8)
    if at == UNDEFINED:
        return
    per_page = 1 << min(page_bits, 64)
    if count <= per_page:
        f = items.block(at, b"FADB", 14 + _bounded(blocks, head, count * items.width) + 4)
        yield from items.read(f, count)
        return
    pages = -(-count // per_page)
    bitmap = _bounded(blocks, head, -(-pages // 8))
    f = items.block(at, b"FADB", 14 + bitmap + 4)
    at += 14 + bitmap + 4
    for i, written in enumerate(_bits(f.take(bitmap), pages)):
        number = min(per_page, count - i * per_page)
        if written:
            yield from items.page(at, number)
        else:
            items.unwritten(at, number)
        at += number * items.width + 4


def _bounded(blocks: Blocks, f: Fields, length: int) -> int:
    if length > blocks.end:
        raise f.wrong(f"{length} bytes of elements in a file of {blocks.end}")
    return length


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


def by_extensible_array(blocks: Blocks, address: int, what: str) -> Iterator[Chunk]:
    """From an extensible array: the index block has the first elements, its data blocks the next, and super
    blocks tell where further ones lie.
    """
    head = Fields(blocks.summed(address, 72, what, b"EAHD"), address, what, 4)
    items = _items(blocks, head, what)
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
    index = items.block(at, b"EAIB", length)
    yield from items.read(index, array.in_index)
    for s in range(first):
        number, size = array.blocks_of(s)
        for _ in range(number):
            yield from _data_block(items, array, index.number(8), size, None)
    for s in range(first, first + supers):
        yield from _super_block(items, array, index.number(8), s)


def _super_block(items: _Items, array: _Extensible, address: int, which: int) -> Iterator[Chunk]:
    if address == UNDEFINED:
        return
    number, size = array.blocks_of(which)
    pages = size >> array.page_bits if size > 1 << array.page_bits else 0
    bitmap = -(-pages // 8)
    head = 14 + array.offset_size + number * bitmap
    if head + 8 * number > items.blocks.end:
        raise Damage("bad-header", f"a super block of {items.what} for {number} blocks"[:500], address)
    f = items.block(address, b"EASB", head + 8 * number + 4)
    f.take(array.offset_size)
    written = [f.take(bitmap) for _ in range(number)]
    for one in written:
        yield from _data_block(items, array, f.number(8), size, one if pages else None)


def _data_block(
    items: _Items, array: _Extensible, address: int, size: int, written: bytes | None
) -> Iterator[Chunk]:
    """``written`` has a bit for each page of a block that is read page by page, else it is None."""
    if address == UNDEFINED:
        return
    head = 14 + array.offset_size
    if written is None:
        f = items.block(address, b"EADB", head + size * items.width + 4)
        f.take(array.offset_size)
        yield from items.read(f, size)
        return
    items.block(address, b"EADB", head + 4)
    at, per_page = address + head + 4, 1 << array.page_bits
    for present in _bits(written, size // per_page):
        if present:
            yield from items.page(at, per_page)
        else:
            items.unwritten(at, per_page)
        at += per_page * items.width + 4
