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
from ckpt_tools.formats.hdf5.blocks import UNDEFINED, Blocks, Fields, Fletcher32, bad
from ckpt_tools.formats.hdf5.groups import read_records, read_tree
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Guard, Tensor

# ---- The datatype and the dataspace message: what the elements are, and how many.

_INTEGER, _FLOAT, _COMPOUND, _ENUM, _VARIABLE, _ARRAY, _COMPLEX = 0, 1, 6, 8, 9, 10, 11
_NAMED = {2: "time", 3: "bytes", 4: "bitfield", 5: "opaque", 7: "reference", _COMPLEX: "complex"}
_UNITS = {_COMPLEX: 8}
_FLOATS = {(2, 5): "float16", (2, 8): "bfloat16", (4, 8): "float32", (8, 11): "float64"}
_FLOATS |= {(1, 5): "float8_e5m2", (1, 4): "float8_e4m3fn"}
MAX_RANK = 32


class Elements(NamedTuple):
    """A type of elements by the name that other formats give it, and the bytes of one."""

    name: str
    size: int


class Space(NamedTuple):
    """The shape of an array, and the largest it may grow to."""

    shape: tuple[int, ...]
    most: tuple[int, ...]


def read_type(f: Fields) -> Elements:
    """The type in a datatype message. Raises Damage."""
    head, low, middle, _ = f.numbers(1, 1, 1, 1)
    kind, version, size = head & 15, head >> 4, f.number(4)
    if not 1 <= version <= 5 or kind > _COMPLEX or not size:
        raise f.wrong(f"class {kind}, version {version}, {size} bytes")
    order = "big-endian " if low & 1 and size > 1 else ""
    if kind == _INTEGER:
        return Elements(f"{order}{'' if low & 8 else 'u'}int{8 * size}", size)
    if kind == _FLOAT:
        exponent = f.numbers(2, 2, 1, 1)[3]
        return Elements(order + _FLOATS.get((size, exponent), f"float{8 * size}e{exponent}"), size)
    if kind == _VARIABLE:
        return Elements("string" if low & 15 == 1 else "variable length", size)
    if kind in (_ENUM, _COMPOUND):
        return Elements(_name_members(f, kind, size, low + 256 * middle), size)
    return Elements("array" if kind == _ARRAY else f"{_NAMED[kind]}{size * _UNITS.get(kind, 1)}", size)


def _name_members(f: Fields, kind: int, size: int, members: int) -> str:
    """h5py keeps truth values as an enumeration of two, and complex numbers as pairs called r and i."""
    if kind == _COMPOUND:
        pair = f.data[f.at :].startswith(b"r\0") and b"i\0" in f.data
        return f"complex{8 * size}" if pair and size in (8, 16) else f"compound{size}"
    if f.data[f.at : f.at + 1] and f.data[f.at] & 15 != _INTEGER:
        raise f.wrong("an enumeration of what is not an integer")
    base = read_type(f)
    return "bool" if size == 1 and members == 2 else base.name


def read_space(f: Fields) -> Space:
    """The shapes in a dataspace message; one without any element is (0,). Raises Damage."""
    version, rank, flags = f.numbers(1, 1, 1)
    kind = f.number(5) and 0 if version == 1 else f.number(1)
    if version not in (1, 2) or rank > MAX_RANK or kind > 2:
        raise f.wrong(f"version {version}, rank {rank}, kind {kind}")
    if kind == 2:
        return Space((0,), (0,))
    now = tuple(f.numbers(*[8] * rank))
    return Space(now, tuple(f.numbers(*[8] * rank)) if flags & 1 else now)


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


def read_filters(f: Fields) -> tuple[int, ...]:
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


def report_elsewhere(what: str, other: str, offset: int) -> Finding:
    """What to say of what another file holds: the library follows any name, and gives zeros for nothing."""
    out = other.startswith(("/", "\\")) or ".." in other.replace("\\", "/").split("/") or other[1:2] == ":"
    why = f"{what} {other[:200]!r}, which its loader reads as its own, or as zeros where nothing is there"
    return finding("path-escape" if out else "external-data", why, offset=offset)


class Arrays:
    """Checks the arrays of one file; ``bare`` counts the bytes that nothing protects."""

    def __init__(self, blocks: Blocks, rank: int) -> None:
        self.blocks, self.rank, self.bare = blocks, rank, 0

    def check(self, array: Array, f: Fields) -> Iterator[Finding]:
        """One array by the fields of its layout. Raises Damage."""
        version, kind = f.numbers(1, 1)
        size, at = array.nbytes, None
        if version in (1, 2):  # HDF5 before 1.6.3
            text = f"{array.what} is not looked at: its layout has version {version}"
            yield finding("too-complex", text, offset=f.file_at, severity=Severity.NOTE)
        elif version not in (3, 4, 5) or kind > 3:
            raise f.wrong(f"version {version}, class {kind}")
        elif kind == 0:
            size = f.number(2)
            at = f.file_at + f.at
            f.take(size)
        elif kind == 3:
            yield report_elsewhere(f"{array.what} is a virtual view of", "arrays of other files", f.file_at)
        elif array.external:
            for other in array.external[:_FILES]:
                yield report_elsewhere(f"the elements of {array.what} lie in", other, f.file_at)
        elif kind == 2:
            yield from self._check_chunked(array, f, version)
            return
        else:
            at, size = f.numbers(8, 8)
            if at == UNDEFINED:  # nothing was written: every element has the fill value
                at, size = None, array.nbytes
            else:
                self.blocks.take(at, size, f"elements of {array.what}")
                self._explain_bare(array.what, at, size)
        if size != array.nbytes:
            why = f"{array.what}, {array.of.name} {array.space.shape}, has {size} bytes, not {array.nbytes}"
            if kind == 0:
                raise Damage("tensor-size", why[:500], f.file_at)
            yield finding("tensor-size", why[:500], offset=f.file_at)
        self._note(array, at)

    def _note(self, array: Array, at: int | None = None, pieces: tuple[tuple[int, int], ...] = ()) -> None:
        """List an array as a tensor, and its value if it is one number."""
        anatomy, shape, dtype = self.blocks.anatomy, array.space.shape, array.of.name
        anatomy.tensors.append(Tensor(array.name, dtype, shape, array.nbytes, at, pieces=pieces))
        wanted = len(anatomy.metadata) < MAX_SCALARS or array.name in PROGRESS
        if at is not None and wanted and is_single(dtype, shape):
            remember(anatomy.metadata, array.name, scalar(self.blocks.source.read(at, array.nbytes), dtype))

    def _explain_bare(self, what: str, at: int, size: int) -> None:
        self.bare += size
        text = f"elements of {what}: no checksum covers them"
        self.blocks.anatomy.explain(at, size, text, Guard.UNPROTECTED)

    def _check_chunked(self, array: Array, f: Fields, version: int) -> Iterator[Finding]:
        grid, found = self._read_index(array, f, version)
        plain, pieces = grid.shape[-1] == array.of.size and not array.filters, list[tuple[int, int]]()
        for chunk in found:
            size = grid.nbytes if chunk.size < 0 else chunk.size
            self.blocks.take(chunk.address, size, f"a chunk of {array.what}")
            yield from self._check_chunk(array, grid, chunk._replace(size=size))
            if plain:
                pieces.append((chunk.address, size))
        shape = array.space.shape
        whole = shape and grid.shape[1:-1] == shape[1:] and shape[0] == len(pieces) * grid.shape[0]
        if pieces and whole:
            self._note(array, pieces[0][0], tuple(pieces) if len(pieces) > 1 else ())
        else:
            self._note(array)

    def _read_index(self, array: Array, f: Fields, version: int) -> tuple[_Grid, Iterator[Chunk]]:
        """The grid of the chunks, and where they lie."""
        blocks, what = self.blocks, f"the chunks of {array.what}"
        if version == 3:
            number, at = f.numbers(1, 8)
            grid = _Grid(self._read_shape(array, f, [4] * number))
            none = at == UNDEFINED
            return grid, iter(()) if none else read_chunk_tree(blocks, at, what, grid.shape, self.rank)
        flags, number, width = f.numbers(1, 1, 1)
        grid = _Grid(self._read_shape(array, f, [width] * number), bool(flags & _EDGES_PLAIN))
        index = f.number(1)
        if index not in _INDEX_PARAMETERS:
            raise f.wrong(f"an index of kind {index}")
        f.take(_INDEX_PARAMETERS[index])
        size, mask = f.numbers(8, 4) if index == _SINGLE and flags & _SINGLE_FILTERED else (-1, 0)
        at = f.number(8)
        if at == UNDEFINED:
            return grid, iter(())
        if index == _SINGLE:
            return grid, iter((Chunk(at, size, mask),))
        if index == _FIXED:
            return grid, read_fixed_array(blocks, at, what)
        if index == _EXTENSIBLE:
            return grid, read_extensible_array(blocks, at, what)
        if index == _RECORDS:
            return grid, read_chunk_records(blocks, at, what, len(grid.shape) - 1)
        number = math.prod(-(-n // c) for n, c in zip(array.space.most, grid.shape, strict=False))
        if number * grid.nbytes > blocks.end:
            raise bad(f"{array.what} has {number} chunks of {grid.nbytes} bytes", at)
        return grid, (Chunk(at + i * grid.nbytes, -1, 0) for i in range(number))

    def _read_shape(self, array: Array, f: Fields, widths: list[int]) -> tuple[int, ...]:
        numbers = f.numbers(*widths)
        if len(numbers) != len(array.space.shape) + 1 or 0 in numbers:
            raise f.wrong(f"chunks of shape {numbers} of an array of shape {array.space.shape}")
        return tuple(numbers)

    def _check_chunk(self, array: Array, grid: _Grid, chunk: Chunk) -> Iterator[Finding]:
        """What protects the bytes of one chunk."""
        at, size, what = chunk.address, chunk.size, f"a chunk of {array.what}"
        source, anatomy = self.blocks.source, self.blocks.anatomy
        left = [kind for i, kind in enumerate(array.filters) if not chunk.mask >> i & 1]
        if grid.plain_edges and left:  # a chunk at the edge is as it would be without filters
            self._explain_bare(what, at, size)
            return
        summed = bool(left) and left[-1] == _FLETCHER
        if summed:
            left.pop()
            size -= 4
            if size < 0:
                raise bad(f"{what} has no room for its Fletcher-32", at)
            stored, text, place = source.read(at + size, 4), f"Fletcher-32 of {what}", (Extent(at, size),)
            anatomy.sums.append(Sum(text, stored, place, at + size, hash=Fletcher32))
            anatomy.explain(at + size, 4, text)
        if left and left[-1] == _DEFLATE:
            fixed = set(left[:-1]) <= {_SHUFFLE, _FLETCHER}
            inflated = grid.nbytes + 4 * left.count(_FLETCHER) if fixed else None
            yield from decoding(source, anatomy, "zlib", what, Extent(at, size), size=inflated)
            if not summed:
                text = f"deflated elements of {what}, with a checksum over what they inflate into"
                anatomy.explain(at, size, text, Guard.UNPROTECTED)
        elif size != grid.nbytes and set(left) <= {_SHUFFLE}:
            why = f"{what} has {size} bytes, where its shape needs {grid.nbytes}"
            raise Damage("tensor-size", why[:500], at)
        elif not summed:
            self._explain_bare(what, at, size)


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
