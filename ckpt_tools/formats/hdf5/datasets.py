"""Arrays of HDF5: what they are, where their bytes lie, and what protects those."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from ckpt_tools.checksum import Extent, Sum
from ckpt_tools.findings import finding
from ckpt_tools.formats.common.decode import decoding
from ckpt_tools.formats.common.format import Damage
from ckpt_tools.formats.common.tensors import MAX_SCALARS, PROGRESS, is_single, remember, scalar
from ckpt_tools.formats.hdf5.blocks import UNDEFINED, Blocks, Fields
from ckpt_tools.formats.hdf5.checksums import Fletcher32
from ckpt_tools.formats.hdf5.datatypes import Elements, Space
from ckpt_tools.formats.hdf5.new_groups import records
from ckpt_tools.formats.hdf5.old_groups import tree
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Guard
from ckpt_tools.model.tensor import Tensor

# ---- Where the chunks of an HDF5 array lie: B-trees, and the arrays that took their place in HDF5 1.10.


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


_DEFLATE, _SHUFFLE, _FLETCHER = 1, 2, 3
_FILES = 4
"""External files of one array that are named."""
_NAMES = 256
"""Filters from this number on may have a name."""
_SINGLE, _IMPLICIT, _FIXED, _EXTENSIBLE, _RECORDS = 1, 2, 3, 4, 5
_INDEX_PARAMETERS = {_SINGLE: 0, _IMPLICIT: 0, _FIXED: 1, _EXTENSIBLE: 5, _RECORDS: 6}
_EDGES_PLAIN, _SINGLE_FILTERED = 1, 2


class Array(NamedTuple):
    """One array: ``filters`` are the numbers of what its chunks go through, in the order of writing.
    ``external``: the names of the other files in which its bytes lie.
    """

    name: str
    of: Elements
    space: Space
    filters: tuple[int, ...]
    external: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.space.shape) * self.of.size

    @property
    def what(self) -> str:
        return repr(self.name[:200])


class _Grid(NamedTuple):
    """A chunked layout: the shape of a chunk with the bytes of an element as its last number."""

    shape: tuple[int, ...]
    plain_edges: bool = False

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape)


def filters(f: Fields) -> tuple[int, ...]:
    """The numbers in a filter pipeline message. Raises Damage."""
    version, number = f.numbers(1, 1)
    if version not in (1, 2) or number > 32:
        raise f.wrong(f"version {version}, {number} filters")
    f.take(6 if version == 1 else 0)
    found = []
    for _ in range(number):
        found.append(kind := f.number(2))
        named = f.number(2) if version == 1 or kind >= _NAMES else 0
        _, values = f.numbers(2, 2)
        f.take(-(-named // 8) * 8 if version == 1 else named)
        f.take(4 * (values + (values % 2 if version == 1 else 0)))
    return tuple(found)


def elsewhere(what: str, other: str, offset: int) -> Finding:
    """What to say of a name for what another file holds: the library follows it, wherever it leads, and gives
    zeros where nothing is there.
    """
    out = other.startswith(("/", "\\")) or ".." in other.replace("\\", "/").split("/") or other[1:2] == ":"
    why = f"{what} {other[:200]!r}, which its loader reads as its own, or as zeros where nothing is there"
    return finding("path-escape" if out else "external-data", why, offset=offset)


class Arrays:
    """Checks the arrays of one file. ``rank`` is that of its B-trees of chunks; ``bare`` counts the bytes
    that neither a checksum nor their encoding protects.
    """

    def __init__(self, blocks: Blocks, rank: int) -> None:
        self.blocks, self.rank, self.bare = blocks, rank, 0

    def check(self, array: Array, f: Fields) -> Iterator[Finding]:
        """One array by the fields of its layout. Raises Damage."""
        version, kind = f.numbers(1, 1)
        if version in (1, 2):  # HDF5 before 1.6.3
            yield self._not_read(array, f, f"its layout has version {version}")
        elif version not in (3, 4, 5) or kind > 3:
            raise f.wrong(f"version {version}, class {kind}")
        elif kind == 0:
            self._compact(array, f)
        elif kind == 3:
            self._note(array)
            yield elsewhere(f"{array.what} is a virtual view of", "arrays of other files", f.file_at)
        elif array.external:
            self._note(array)
            for other in array.external[:_FILES]:
                yield elsewhere(f"the elements of {array.what} lie in", other, f.file_at)
        elif kind == 1:
            yield from self._contiguous(array, f)
        else:
            yield from self._chunked(array, f, version)

    def _not_read(self, array: Array, f: Fields, why: str) -> Finding:
        self._note(array)
        text = f"{array.what} is not looked at: {why}"
        return finding("too-complex", text, offset=f.file_at, severity=Severity.NOTE)

    def _note(self, array: Array, at: int | None = None, pieces: tuple[tuple[int, int], ...] = ()) -> None:
        """List an array as a tensor, and its value if it is one number."""
        anatomy, shape, dtype = self.blocks.anatomy, array.space.shape, array.of.name
        anatomy.tensors.append(Tensor(array.name, dtype, shape, array.nbytes, at, pieces=pieces))
        wanted = len(anatomy.metadata) < MAX_SCALARS or array.name in PROGRESS
        if at is not None and wanted and is_single(dtype, shape):
            remember(anatomy.metadata, array.name, scalar(self.blocks.source.read(at, array.nbytes), dtype))

    def _compact(self, array: Array, f: Fields) -> None:
        size = f.number(2)
        at = f.file_at + f.at
        f.take(size)
        if size != array.nbytes:
            raise Damage("tensor-size", self._sizes(array, size), f.file_at)
        self._note(array, at)

    def _sizes(self, array: Array, size: int) -> str:
        return f"{array.what}, {array.of.name} {array.space.shape}, has {size} bytes, not {array.nbytes}"[
            :500
        ]

    def _contiguous(self, array: Array, f: Fields) -> Iterator[Finding]:
        at, size = f.numbers(8, 8)
        if at == UNDEFINED:  # nothing was written: every element has the fill value
            self._note(array)
            return
        self.blocks.take(at, size, f"elements of {array.what}")
        self._plain(array.what, at, size)
        if size != array.nbytes:
            yield finding("tensor-size", self._sizes(array, size), offset=f.file_at)
        self._note(array, at)

    def _plain(self, what: str, at: int, size: int) -> None:
        self.bare += size
        text = f"elements of {what}: no checksum covers them"
        self.blocks.anatomy.explain(at, size, text, Guard.UNPROTECTED)

    def _chunked(self, array: Array, f: Fields, version: int) -> Iterator[Finding]:
        grid, found = self._old_index(array, f) if version == 3 else self._new_index(array, f)
        plain, pieces = grid.shape[-1] == array.of.size and not array.filters, list[tuple[int, int]]()
        for chunk in found:
            size = grid.nbytes if chunk.size < 0 else chunk.size
            self.blocks.take(chunk.address, size, f"a chunk of {array.what}")
            yield from self._chunk(array, grid, chunk._replace(size=size))
            if plain:
                pieces.append((chunk.address, size))
        shape = array.space.shape
        whole = shape and grid.shape[1:-1] == shape[1:] and shape[0] == len(pieces) * grid.shape[0]
        if pieces and whole:
            self._note(array, pieces[0][0], tuple(pieces) if len(pieces) > 1 else ())
        else:
            self._note(array)

    def _old_index(self, array: Array, f: Fields) -> tuple[_Grid, Iterator[Chunk]]:
        number, at = f.numbers(1, 8)
        grid = _Grid(self._shape(array, f, f.numbers(*[4] * number)))
        if at == UNDEFINED:
            return grid, iter(())
        return grid, by_tree(self.blocks, at, f"the chunks of {array.what}", grid.shape, self.rank)

    def _shape(self, array: Array, f: Fields, numbers: list[int]) -> tuple[int, ...]:
        if len(numbers) != len(array.space.shape) + 1 or 0 in numbers:
            raise f.wrong(f"chunks of shape {numbers} of an array of shape {array.space.shape}")
        return tuple(numbers)

    def _new_index(self, array: Array, f: Fields) -> tuple[_Grid, Iterator[Chunk]]:
        flags, number, width = f.numbers(1, 1, 1)
        grid = _Grid(self._shape(array, f, f.numbers(*[width] * number)), bool(flags & _EDGES_PLAIN))
        index, blocks, what = f.number(1), self.blocks, f"the chunks of {array.what}"
        if index not in _INDEX_PARAMETERS:
            raise f.wrong(f"an index of kind {index}")
        f.take(_INDEX_PARAMETERS[index])
        size, mask = f.numbers(8, 4) if index == _SINGLE and flags & _SINGLE_FILTERED else (-1, 0)
        at = f.number(8)
        if at == UNDEFINED:
            return grid, iter(())
        if index == _SINGLE:
            return grid, iter((Chunk(at, size, mask),))
        if index == _IMPLICIT:
            return grid, self._implicit(array, grid, at)
        if index == _FIXED:
            return grid, by_fixed_array(blocks, at, what)
        if index == _EXTENSIBLE:
            return grid, by_extensible_array(blocks, at, what)
        return grid, by_records(blocks, at, what, len(grid.shape) - 1)

    def _implicit(self, array: Array, grid: _Grid, at: int) -> Iterator[Chunk]:
        """All chunks one after the other."""
        number = math.prod(-(-n // c) for n, c in zip(array.space.most, grid.shape, strict=False))
        if number * grid.nbytes > self.blocks.end:
            why = f"{array.what} has {number} chunks of {grid.nbytes} bytes"
            raise Damage("bad-header", why[:500], at)
        return (Chunk(at + i * grid.nbytes, -1, 0) for i in range(number))

    def _chunk(self, array: Array, grid: _Grid, chunk: Chunk) -> Iterator[Finding]:
        """What protects the bytes of one chunk."""
        at, size, what = chunk.address, chunk.size, f"a chunk of {array.what}"
        left = [kind for i, kind in enumerate(array.filters) if not chunk.mask >> i & 1]
        if grid.plain_edges and left:  # a chunk at the edge is as it would be without filters
            self._plain(what, at, size)
            return
        summed = bool(left) and left[-1] == _FLETCHER
        if summed:
            left.pop()
            size -= 4
            self._fletcher(what, at, size)
        if left and left[-1] == _DEFLATE:
            yield from self._deflated(what, Extent(at, size), grid, left[:-1], summed)
        elif size != grid.nbytes and set(left) <= {_SHUFFLE}:
            why = f"{what} has {size} bytes, where its shape needs {grid.nbytes}"
            raise Damage("tensor-size", why[:500], at)
        elif not summed:
            self._plain(what, at, size)

    def _deflated(
        self, what: str, extent: Extent, grid: _Grid, before: list[int], summed: bool
    ) -> Iterator[Finding]:
        """A chunk that zlib made of what the filters ``before`` it gave."""
        source, anatomy = self.blocks.source, self.blocks.anatomy
        fixed = set(before) <= {_SHUFFLE, _FLETCHER}
        inflated = grid.nbytes + 4 * before.count(_FLETCHER) if fixed else None
        yield from decoding(source, anatomy, "zlib", what, extent, size=inflated)
        if not summed:
            text = f"deflated elements of {what}, with a checksum over what they inflate into"
            anatomy.explain(extent.offset, extent.length, text, Guard.UNPROTECTED)

    def _fletcher(self, what: str, at: int, size: int) -> None:
        if size < 0:
            raise Damage("bad-header", f"{what} has no room for its Fletcher-32"[:500], at)
        anatomy, stored = self.blocks.anatomy, self.blocks.source.read(at + size, 4)
        text = f"Fletcher-32 of {what}"
        anatomy.sums.append(Sum(text, stored, (Extent(at, size),), at + size, hash=Fletcher32))
        anatomy.explain(at + size, 4, text)
