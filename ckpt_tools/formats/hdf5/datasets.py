"""Arrays of HDF5: their types and shapes, where their bytes lie, and what protects the bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from ckpt_tools.checksum import Extent, Sum
from ckpt_tools.findings import finding
from ckpt_tools.formats.common.decode import add_decoding
from ckpt_tools.formats.common.format import Damage
from ckpt_tools.formats.common.tensors import MAX_SCALARS, PROGRESS, is_single, remember, scalar
from ckpt_tools.formats.hdf5.blocks import UNDEFINED, Blocks, Fields, Fletcher32, make_damage
from ckpt_tools.formats.hdf5.groups import read_records, read_tree
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Guard, Tensor

# ---- The datatype and the dataspace message: the type of the elements, and their number.

_INTEGER, _FLOAT, _COMPOUND, _ENUM, _VARIABLE, _ARRAY, _COMPLEX = 0, 1, 6, 8, 9, 10, 11
_NAMED = {2: "time", 3: "bytes", 4: "bitfield", 5: "opaque", 7: "reference", _COMPLEX: "complex"}
_UNITS = {_COMPLEX: 8}
_FLOATS = {(2, 5): "float16", (2, 8): "bfloat16", (4, 8): "float32", (8, 11): "float64"}
_FLOATS |= {(1, 5): "float8_e5m2", (1, 4): "float8_e4m3fn"}
MAX_RANK = 32


def read_type(f: Fields) -> tuple[str, int]:
    """Return (name, bytes per element) of the type in a datatype message. Raise Damage."""
    head, low, middle, _ = f.numbers(1, 1, 1, 1)
    kind, version, size = head & 15, head >> 4, f.number(4)
    if not 1 <= version <= 5 or kind > _COMPLEX or not size:
        raise f.make_damage(f"class {kind}, version {version}, {size} bytes")
    order = "big-endian " if low & 1 and size > 1 else ""
    if kind == _INTEGER:
        return f"{order}{'' if low & 8 else 'u'}int{8 * size}", size
    if kind == _FLOAT:
        exponent = f.numbers(2, 2, 1, 1)[3]
        return order + _FLOATS.get((size, exponent), f"float{8 * size}e{exponent}"), size
    if kind == _VARIABLE:
        return "string" if low & 15 == 1 else "variable length", size
    if kind in (_ENUM, _COMPOUND):
        return _name_composite(f, kind, size, low + 256 * middle), size
    return "array" if kind == _ARRAY else f"{_NAMED[kind]}{size * _UNITS.get(kind, 1)}", size


def _name_composite(f: Fields, kind: int, size: int, members: int) -> str:
    """Return a type's name: h5py stores bool as an enumeration of two, complex as compounds of r and i."""
    if kind == _COMPOUND:
        is_complex = f.data[f.at :].startswith(b"r\0") and b"i\0" in f.data and size in (8, 16)
        return f"complex{8 * size}" if is_complex else f"compound{size}"
    if f.data[f.at : f.at + 1] and f.data[f.at] & 15 != _INTEGER:
        raise f.make_damage("an enumeration of what is not an integer")
    base, _ = read_type(f)
    return "bool" if size == 1 and members == 2 else base


def read_space(f: Fields) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return an array's shape and largest shape by a dataspace message, (0,) if it is null. Raise Damage."""
    version, rank, flags = f.numbers(1, 1, 1)
    kind = f.number(5) and 0 if version == 1 else f.number(1)  # version 1 has reserved bytes instead
    if version not in (1, 2) or rank > MAX_RANK or kind > 2:
        raise f.make_damage(f"version {version}, rank {rank}, kind {kind}")
    if kind == 2:
        return (0,), (0,)
    shape = tuple(f.numbers(*[8] * rank))
    return shape, tuple(f.numbers(*[8] * rank)) if flags & 1 else shape


_DEFLATE, _SHUFFLE, _FLETCHER = 1, 2, 3
_FILES = 4
"""Most external files of one array that findings name."""
_NAMES = 256
"""Filters from this number on may have a name."""
_SINGLE, _IMPLICIT, _FIXED, _EXTENSIBLE, _RECORDS = 1, 2, 3, 4, 5
_INDEX_PARAMETERS = {_SINGLE: 0, _IMPLICIT: 0, _FIXED: 1, _EXTENSIBLE: 5, _RECORDS: 6}
_EDGES_PLAIN, _SINGLE_FILTERED = 1, 2


class Array(NamedTuple):
    """One array; an element has ``item`` bytes. ``filters`` are numbers in the order of writing, ``external``
    the files with its bytes.
    """

    name: str
    dtype: str
    item: int
    shape: tuple[int, ...]
    max_shape: tuple[int, ...]
    filters: tuple[int, ...]
    external: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.item

    @property
    def what(self) -> str:
        return repr(self.name[:200])


class _Grid(NamedTuple):
    """One chunked layout: ``shape`` is that of a chunk, then the bytes of an element."""

    shape: tuple[int, ...]
    plain_edges: bool = False

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape)


def read_filters(f: Fields) -> tuple[int, ...]:
    """Return the numbers of the filters in a filter pipeline message. Raise Damage."""
    version, number = f.numbers(1, 1)
    if version not in (1, 2) or number > 32:
        raise f.make_damage(f"version {version}, {number} filters")
    f.take(6 if version == 1 else 0)
    filters = []
    for _ in range(number):
        filters.append(kind := f.number(2))
        name_size = f.number(2) if version == 1 or kind >= _NAMES else 0
        _, values = f.numbers(2, 2)
        f.take(-(-name_size // 8) * 8 if version == 1 else name_size)
        f.take(4 * (values + (values % 2 if version == 1 else 0)))
    return tuple(filters)


def report_external(what: str, other: str, offset: int) -> Finding:
    """Return the finding about data in another file: HDF5 opens any name, and reads zeros if it is absent."""
    parts = other.replace("\\", "/").split("/")
    escapes = other.startswith(("/", "\\")) or ".." in parts or other[1:2] == ":"
    why = f"{what} {other[:200]!r}, which its loader reads as its own, or as zeros where nothing is there"
    return finding("path-escape" if escapes else "external-data", why, offset=offset)


class Arrays:
    """One file's check of arrays; ``bare_bytes`` counts the bytes that no checksum covers."""

    def __init__(self, blocks: Blocks, rank: int) -> None:
        self.blocks, self.rank, self.bare_bytes = blocks, rank, 0

    def check(self, array: Array, f: Fields) -> Iterator[Finding]:
        """Check one array; ``f`` are the fields of its layout message. Raise Damage."""
        version, kind = f.numbers(1, 1)
        size, at = array.nbytes, None
        if version in (1, 2):  # HDF5 before 1.6.3
            text = f"{array.what} is not looked at: its layout has version {version}"
            yield finding("too-complex", text, offset=f.file_at, severity=Severity.NOTE)
        elif version not in (3, 4, 5) or kind > 3:
            raise f.make_damage(f"version {version}, class {kind}")
        elif kind == 0:
            size = f.number(2)
            at = f.file_at + f.at
            f.take(size)
        elif kind == 3:
            yield report_external(f"{array.what} is a virtual view of", "arrays of other files", f.file_at)
        elif array.external:
            for other in array.external[:_FILES]:
                yield report_external(f"the elements of {array.what} lie in", other, f.file_at)
        elif kind == 2:
            yield from self._check_chunks(array, f, version)
            return
        else:
            at, size = f.numbers(8, 8)
            if at == UNDEFINED:  # nothing was written: every element has the fill value
                at, size = None, array.nbytes
            else:
                self.blocks.add_span(at, size, f"elements of {array.what}")
                self._explain_bare_bytes(array.what, at, size)
        if size != array.nbytes:
            why = f"{array.what}, {array.dtype} {array.shape}, has {size} bytes, not {array.nbytes}"
            if kind == 0:
                raise Damage("tensor-size", why[:500], f.file_at)
            yield finding("tensor-size", why[:500], offset=f.file_at)
        self._add(array, at)

    def _add(self, array: Array, at: int | None = None, pieces: tuple[tuple[int, int], ...] = ()) -> None:
        """Add an array to the tensors of ``anatomy``, and its value to the metadata if it is one number."""
        anatomy, shape, dtype = self.blocks.anatomy, array.shape, array.dtype
        anatomy.tensors.append(Tensor(array.name, dtype, shape, array.nbytes, at, pieces=pieces))
        wanted = len(anatomy.metadata) < MAX_SCALARS or array.name in PROGRESS
        if at is not None and wanted and is_single(dtype, shape):
            remember(anatomy.metadata, array.name, scalar(self.blocks.source.read(at, array.nbytes), dtype))

    def _explain_bare_bytes(self, what: str, at: int, size: int) -> None:
        """Count and explain elements of ``what``, ``size`` bytes at ``at``, that no checksum covers."""
        self.bare_bytes += size
        text = f"elements of {what}: no checksum covers them"
        self.blocks.anatomy.explain(at, size, text, Guard.UNPROTECTED)

    def _check_chunks(self, array: Array, f: Fields, version: int) -> Iterator[Finding]:
        """Check the chunks of an array one by one, and add the array as a tensor."""
        grid, chunks = self._read_index(array, f, version)
        plain, pieces = grid.shape[-1] == array.item and not array.filters, list[tuple[int, int]]()
        for chunk in chunks:
            size = grid.nbytes if chunk.size < 0 else chunk.size
            self.blocks.add_span(chunk.address, size, f"a chunk of {array.what}")
            yield from self._check_chunk(array, grid, chunk._replace(size=size))
            if plain:
                pieces.append((chunk.address, size))
        shape = array.shape
        in_order = shape and grid.shape[1:-1] == shape[1:] and shape[0] == len(pieces) * grid.shape[0]
        if pieces and in_order:  # joined, the chunks are the array's rows
            self._add(array, pieces[0][0], tuple(pieces) if len(pieces) > 1 else ())
        else:
            self._add(array)

    def _read_index(self, array: Array, f: Fields, version: int) -> tuple[_Grid, Iterator[Chunk]]:
        """Return the shape of an array's chunks, and the chunks as their index lists them. Raise Damage."""
        blocks, what = self.blocks, f"the chunks of {array.what}"
        if version == 3:
            number, at = f.numbers(1, 8)
            grid = _Grid(self._read_shape(array, f, [4] * number))
            empty = at == UNDEFINED
            return grid, iter(()) if empty else read_chunk_tree(blocks, at, what, grid.shape, self.rank)
        flags, number, width = f.numbers(1, 1, 1)
        grid = _Grid(self._read_shape(array, f, [width] * number), bool(flags & _EDGES_PLAIN))
        index = f.number(1)
        if index not in _INDEX_PARAMETERS:
            raise f.make_damage(f"an index of kind {index}")
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
        # an implicit index: all chunks that the array may ever have lie one after another
        number = math.prod(-(-n // c) for n, c in zip(array.max_shape, grid.shape, strict=False))
        if number * grid.nbytes > blocks.end:
            raise make_damage(f"{array.what} has {number} chunks of {grid.nbytes} bytes", at)
        return grid, (Chunk(at + i * grid.nbytes, -1, 0) for i in range(number))

    def _read_shape(self, array: Array, f: Fields, widths: list[int]) -> tuple[int, ...]:
        """Read numbers of these ``widths`` (bytes): the shape of a chunk, then the bytes of an element."""
        numbers = f.numbers(*widths)
        if len(numbers) != len(array.shape) + 1 or 0 in numbers:
            raise f.make_damage(f"chunks of shape {numbers} of an array of shape {array.shape}")
        return tuple(numbers)

    def _check_chunk(self, array: Array, grid: _Grid, chunk: Chunk) -> Iterator[Finding]:
        """Check the bytes of one chunk by its filters; add its Fletcher-32 to the checksums. Raise Damage."""
        at, size, what = chunk.address, chunk.size, f"a chunk of {array.what}"
        source, anatomy = self.blocks.source, self.blocks.anatomy
        filters = [kind for i, kind in enumerate(array.filters) if not chunk.mask >> i & 1]
        if grid.plain_edges and filters:  # chunks at the edge were written without filters
            self._explain_bare_bytes(what, at, size)
            return
        has_sum = bool(filters) and filters[-1] == _FLETCHER
        if has_sum:
            filters.pop()
            size -= 4
            if size < 0:
                raise make_damage(f"{what} has no room for its Fletcher-32", at)
            stored, text, covered = source.read(at + size, 4), f"Fletcher-32 of {what}", (Extent(at, size),)
            anatomy.sums.append(Sum(text, stored, covered, at + size, hash=Fletcher32))
            anatomy.explain(at + size, 4, text)
        if filters and filters[-1] == _DEFLATE:
            keeps_size = set(filters[:-1]) <= {_SHUFFLE, _FLETCHER}
            inflated = grid.nbytes + 4 * filters.count(_FLETCHER) if keeps_size else None
            yield from add_decoding(source, anatomy, "zlib", what, Extent(at, size), size=inflated)
            if not has_sum:
                text = f"deflated elements of {what}, with a checksum over what they inflate into"
                anatomy.explain(at, size, text, Guard.UNPROTECTED)
        elif size != grid.nbytes and set(filters) <= {_SHUFFLE}:
            why = f"{what} has {size} bytes, where its shape needs {grid.nbytes}"
            raise Damage("tensor-size", why[:500], at)
        elif not has_sum:
            self._explain_bare_bytes(what, at, size)


class Chunk(NamedTuple):
    """One chunk; ``size`` -1 stands for the size of its elements, bit i of ``mask`` for skipped filter i."""

    address: int
    size: int
    mask: int


def read_chunk_tree(
    blocks: Blocks, address: int, what: str, grid: tuple[int, ...], rank: int
) -> Iterator[Chunk]:
    """Yield chunks from a B-tree of version 1; ``grid`` is a chunk's shape, then the bytes of an element."""
    last: tuple[int, ...] = ()
    for key, child in read_tree(blocks, address, what, kind=1, key=8 + 8 * len(grid), rank=rank):
        f = Fields(key, address, what)
        size, mask, *numbers = f.numbers(4, 4, *[8] * len(grid))
        offsets = tuple(numbers)
        if offsets <= last or any(at % n for at, n in zip(offsets, grid, strict=True)):
            raise f.make_damage(f"a chunk at {offsets} after {last}")
        last = offsets
        yield Chunk(child, size, mask)


def read_chunk_records(blocks: Blocks, address: int, what: str, rank: int) -> Iterator[Chunk]:
    """Yield chunks from a B-tree of version 2: records of kind 10 are plain chunks, of kind 11 filtered."""
    for kind, data in read_records(blocks, address, what):
        f = Fields(data, address, what)
        if kind == 10:
            yield Chunk(f.number(8), -1, 0)
        elif kind == 11 and 12 + 8 * rank < len(data) <= 20 + 8 * rank:
            at, size, mask = f.numbers(8, len(data) - 12 - 8 * rank, 4)
            yield Chunk(at, size, mask)
        else:
            raise f.make_damage(f"a record of kind {kind}, {len(data)} bytes")


class _ElementReader:
    """Reads an index of chunks (fixed or extensible array, HDF5 1.10 on) with header ``f``: an element of
    ``width`` bytes for each chunk.
    """

    def __init__(self, blocks: Blocks, f: Fields) -> None:
        self.blocks, self.what, self.header_at = blocks, f.what, f.file_at
        f.expect(0, "version")
        self.filtered, self.width = f.numbers(1, 1)
        if self.filtered > 1 or (not 12 < self.width <= 20 if self.filtered else self.width != 8):
            raise f.make_damage(f"elements of kind {self.filtered}, {self.width} bytes each")

    def read(self, f: Fields, number: int) -> Iterator[Chunk]:
        """Yield the allocated chunks among the next ``number`` elements."""
        for _ in range(number):
            at, size, mask = f.numbers(8, self.width - 12, 4) if self.filtered else (f.number(8), -1, 0)
            if at != UNDEFINED:
                yield Chunk(at, size, mask)

    def read_pages(self, at: int, bitmap: bytes, elements: int, per_page: int) -> Iterator[Chunk]:
        """Yield chunks from a data block's pages at ``at``; in ``bitmap`` bits are set for written pages."""
        for i in range(-(-elements // per_page)):
            number, what = min(per_page, elements - i * per_page), f"a page of {self.what}"
            length = number * self.width + 4
            if bitmap[i // 8] & (0x80 >> i % 8):
                yield from self.read(self.blocks.read_summed(at, length, what), number)
            else:
                what = f"{what} that was never written"
                self.blocks.add_span(at, length, what)
                self.blocks.anatomy.explain(at, length, what, Guard.UNPROTECTED)
            at += length

    def read_block(self, address: int, signature: bytes, length: int) -> Fields:
        """Return the fields of a block of this index, from the byte behind its prefix on. Raise Damage."""
        data = self.blocks.read_summed(address, length, self.what, signature)
        data.expect(0, "version")
        data.expect(self.filtered, "kind of elements")
        data.expect(self.header_at, "array", 8)
        return data


def read_fixed_array(blocks: Blocks, address: int, what: str) -> Iterator[Chunk]:
    """Yield chunks from a fixed array, which has one element for each possible chunk. Raise Damage."""
    head = blocks.read_summed(address, 28, what, b"FAHD")
    elements = _ElementReader(blocks, head)
    page_bits, count, at = head.numbers(1, 8, 8)
    if at == UNDEFINED:
        return
    per_page = 1 << min(page_bits, 64)
    paged = count > per_page
    body = (-(-count // per_page) + 7) // 8 if paged else count * elements.width  # page bits, or elements
    if body > blocks.end:
        raise head.make_damage(f"{body} bytes of elements in a file of {blocks.end}")
    f = elements.read_block(at, b"FADB", 14 + body + 4)
    if paged:
        yield from elements.read_pages(at + 14 + body + 4, f.take(body), count, per_page)
    else:
        yield from elements.read(f, count)


class _Extensible(NamedTuple):
    """One extensible array's header: numbers of bits, of elements and of pointers."""

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

    def count_blocks(self, super_block: int) -> tuple[int, int]:
        """Return the number of data blocks of a super block, and the number of elements in each."""
        return 1 << super_block // 2, (1 << (super_block + 1) // 2) * self.least


def read_extensible_array(blocks: Blocks, address: int, what: str) -> Iterator[Chunk]:
    """Yield chunks of an extensible array: first elements in the index block, others in further blocks."""
    head = blocks.read_summed(address, 72, what, b"EAHD")
    elements = _ElementReader(blocks, head)
    array = _Extensible(*head.numbers(1, 1, 1, 1, 1))
    sizes = array.least, array.pointers
    if not 0 < array.max_bits <= 64 or any(n == 0 or n & (n - 1) for n in sizes) or array.page_bits > 64:
        raise head.make_damage(f"{array}")
    at = head.numbers(*[8] * 7)[6]
    if at == UNDEFINED:
        return
    first = 2 * (array.pointers.bit_length() - 1)  # the super blocks whose data blocks the index block names
    direct = sum(array.count_blocks(s)[0] for s in range(first))
    supers = max(1 + array.max_bits - (array.least.bit_length() - 1) - first, 0)
    length = 14 + array.in_index * elements.width + 8 * (direct + supers) + 4
    index = elements.read_block(at, b"EAIB", length)
    yield from elements.read(index, array.in_index)
    for s in range(first):
        number, size = array.count_blocks(s)
        for _ in range(number):
            yield from _read_data_block(elements, array, index.number(8), size, None)
    for s in range(first, first + supers):
        yield from _read_super_block(elements, array, index.number(8), s)


def _read_super_block(
    elements: _ElementReader, array: _Extensible, address: int, super_block: int
) -> Iterator[Chunk]:
    """Yield the chunks in a super block: bitmaps of written pages, then addresses of data blocks."""
    if address == UNDEFINED:
        return
    number, size = array.count_blocks(super_block)
    pages = size >> array.page_bits if size > 1 << array.page_bits else 0
    bitmap_size = -(-pages // 8)
    head = 14 + array.offset_size + number * bitmap_size
    if head + 8 * number > elements.blocks.end:
        raise make_damage(f"a super block of {elements.what} for {number} blocks", address)
    f = elements.read_block(address, b"EASB", head + 8 * number + 4)
    f.take(array.offset_size)
    bitmaps = [f.take(bitmap_size) for _ in range(number)]
    for bitmap in bitmaps:
        yield from _read_data_block(elements, array, f.number(8), size, bitmap if pages else None)


def _read_data_block(
    elements: _ElementReader, array: _Extensible, address: int, size: int, bitmap: bytes | None
) -> Iterator[Chunk]:
    """Yield the chunks in a data block; ``bitmap`` marks its written pages, None if it has no pages."""
    if address == UNDEFINED:
        return
    head = 14 + array.offset_size
    if bitmap is None:
        f = elements.read_block(address, b"EADB", head + size * elements.width + 4)
        f.take(array.offset_size)
        yield from elements.read(f, size)
    else:
        elements.read_block(address, b"EADB", head + 4)
        yield from elements.read_pages(address + head + 4, bitmap, size, 1 << array.page_bits)
