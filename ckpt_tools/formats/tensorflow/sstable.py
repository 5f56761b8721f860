"""The sorted table of TensorFlow's (and LevelDB's) files: blocks with a CRC-32C each, then a footer with the
place of the blocks' index. Its numbers and protobuf messages are read from bytes in memory: flat and bounded.

    data block … | metaindex block (always empty) | index block: last key or a bit beyond -> (offset, size) of
    a data block | footer

A block is entries, restart offsets (u32) and their number (u32), followed by a type byte and the masked
CRC-32C over the block and its type byte. The footer has 48 bytes: (offset, size) of the metaindex and of the
index as varints, zeros, eight bytes of magic. The writer leaves no gaps, and packs a number into as few bytes
as it takes.
Facts: tensorflow/core/lib/io/{table_builder,block_builder,format}.cc, core/lib/core/coding.cc of TensorFlow
1.0 to 2.21; protobuf's encoding guide; checked against real files.

The index of a TensorFlow bundle is such a table: one header, and one entry per tensor or slice of a tensor.

Facts: tensorflow/core/protobuf/tensor_bundle.proto,
framework/{types,tensor_shape,tensor_slice,versions}.proto, util/saved_tensor_slice_util.cc (keys of slices)
and lib/strings/ordered_code.cc of TensorFlow 2.21; checked against files of tf.train.Saver with partitioned
variables and of MaxShardSizePolicy. A field that holds its default (0) is not written.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Generator, Iterator
from typing import NamedTuple

from ckpt_tools.checksum import CRC32C, Crc32c, Extent, Sum
from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Damage
from ckpt_tools.model.finding import Finding
from ckpt_tools.storage import Source

MAGIC = bytes.fromhex("57fb808b247547db")
FOOTER, TRAILER = 48, 5
MAX_BLOCK = 64 << 20
"""Bytes; the writer begins a new block after 256 KiB, but one entry is never split."""
MAX_KEYS = 32 << 20
"""Bytes of all keys together, or 16 times the file's size if that is more: prefixes are shared, so a small
hostile file could hold huge keys.
"""
_TAIL = 64 * 1024
_U32 = struct.Struct("<I")
_EMPTY = struct.pack("<II", 0, 1)
"""The block without entries, which has one restart nevertheless."""
_MASK_DELTA = 0xA282EAD8


def unmask_crc(stored: int) -> int:
    """Return a CRC-32C as before TensorFlow rotated it and added a constant (core/lib/hash/crc32c.h)."""
    rotated = (stored - _MASK_DELTA) & 0xFFFFFFFF
    return (rotated >> 17) | (rotated << 15) & 0xFFFFFFFF


def read_varint(data: bytes, at: int, end: int, base: int = 0) -> tuple[int, int]:
    """Return the unsigned 64-bit number at ``at``, and its end; ``base`` is the file offset of ``data``."""
    if at < end and data[at] < 0x80:  # nearly all are one byte
        return data[at], at + 1
    value = 0
    for i in range(min(10, end - at)):
        byte = data[at + i]
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            if value >> 64 or not byte:
                break
            return value, at + i + 1
    raise Damage("bad-header", "a number is not a valid varint, or is cut off", base + at)


def read_fields(data: bytes, base: int) -> Iterator[tuple[int, int | bytes]]:
    """Yield (number, value) of each field of a message; fields with a length have bytes as value."""
    at, end = 0, len(data)
    while at < end:
        begin = at
        key, at = read_varint(data, at, end, base)
        kind = key & 7
        if not key >> 3 or kind not in (0, 1, 2, 5):
            raise Damage("bad-header", f"{key:#x} is not a field of a message", base + begin)
        if kind == 0:
            value, at = read_varint(data, at, end, base)
            yield key >> 3, value
            continue
        length = 8 if kind == 1 else 4
        if kind == 2:
            length, at = read_varint(data, at, end, base)
        if length > end - at:
            raise Damage("bad-header", f"a field of {length} bytes reaches beyond its message", base + begin)
        content = data[at : at + length]
        at += length
        yield key >> 3, content if kind == 2 else int.from_bytes(content, "little")


class Entry(NamedTuple):
    """One entry of a table; ``at`` is the offset of ``value`` in the file."""

    key: bytes
    value: bytes
    at: int


class _Handle(NamedTuple):
    offset: int
    size: int

    @property
    def stop(self) -> int:
        return self.offset + self.size + TRAILER


def has_footer(source: Source) -> bool:
    """Return whether the file ends with the magic of a table's footer."""
    return source.size >= FOOTER and source.read(source.size - len(MAGIC), len(MAGIC)) == MAGIC


def _find_end(source: Source) -> Generator[Finding, None, int]:
    """Return where the footer ends: at the file's end, or, with a finding, behind the last magic before."""
    if has_footer(source):
        return source.size
    tail = source.read(max(0, source.size - _TAIL), min(source.size, _TAIL))
    last = tail[-len(MAGIC) :]
    near = len(last) == len(MAGIC) and sum((a ^ b).bit_count() for a, b in zip(last, MAGIC, strict=True)) <= 2
    if near and source.size >= FOOTER:
        why = f"the file ends with {last.hex()}, which is not quite the magic {MAGIC.hex()}"
        yield finding("bad-header", why, offset=source.size - len(MAGIC))
        return source.size
    found = tail.rfind(MAGIC)
    end = source.size - len(tail) + found + len(MAGIC)
    if found < 0 or end < FOOTER:
        why = "the file does not end with the footer of a table: it was cut, or its end was never written"
        raise Damage("truncated", why, source.size)
    yield finding("trailing-data", f"{source.size - end} bytes follow the end of the table", offset=end)
    return end


def _read_handle(data: bytes, at: int, base: int) -> tuple[_Handle, int]:
    """Return the handle at ``at``, two varints, and where it ends; ``data`` lies at ``base`` of the file."""
    offset, at = read_varint(data, at, len(data), base)
    size, at = read_varint(data, at, len(data), base)
    return _Handle(offset, size), at


def _read_footer(
    source: Source, end: int, anatomy: Anatomy
) -> Generator[Finding, None, tuple[_Handle, _Handle]]:
    """Return the handles of the metaindex and of the index. Raise Damage."""
    start = end - FOOTER
    raw = source.read(start, FOOTER - len(MAGIC))
    anatomy.explain(start, FOOTER, "footer: where the metaindex and the index lie")
    meta, at = _read_handle(raw, 0, start)
    index, at = _read_handle(raw, at, start)
    if raw[at:].strip(b"\0"):
        yield finding("odd-header", "the unused bytes of the footer are not zero", offset=start + at)
    if index.stop != start:
        where = f"{index.offset} + {index.size}, which does not end where the footer begins"
        raise Damage("bad-header", f"the index block lies at {where}", start)
    if meta.stop != index.offset:
        where = f"{meta.offset} + {meta.size}, which does not end where the index begins"
        yield finding("bad-header", f"the metaindex lies at {where}", offset=start)
        meta = _Handle(index.offset, -TRAILER)  # only the index tells where the data blocks end
    return meta, index


def _read_block(
    source: Source, where: _Handle, what: str, anatomy: Anatomy
) -> Generator[Finding, None, bytes | None]:
    """Return the contents of a block, or None after a finding that makes them unreliable."""
    if where.size > MAX_BLOCK:
        why = f"{what} has {where.size} bytes; at most {MAX_BLOCK} are read"
        yield finding("too-complex", why, offset=where.offset)
        return None
    raw = source.read(where.offset, where.size + TRAILER)
    stored, at = unmask_crc(int.from_bytes(raw[-4:], "little")), where.offset + where.size
    crc = Crc32c()
    crc.update(raw[:-4])
    anatomy.explain(at + 1, 4, f"checksum of {what}")
    checksum = Sum(what, stored, (Extent(where.offset, where.size + 1),), at + 1, hash=CRC32C)
    if crc.digest() != stored:
        anatomy.failed.append(checksum)
        anatomy.explain(where.offset, where.size + 1, what)
        why = f"{what}: computed {crc.digest():08x}, stored {stored:08x}"
        yield finding("crc-mismatch", why, offset=at + 1)
        return None
    anatomy.sums.append(checksum)
    if raw[where.size] == 1:
        why = f"{what} is compressed with Snappy, which no TensorFlow writes here: it was not read"
        yield finding("too-complex", why, offset=at)
    elif raw[where.size]:
        yield finding("bad-header", f"{what} is of the unknown type {raw[where.size]}", offset=at)
    else:
        return raw[: where.size]
    return None


def _read_entries(data: bytes, base: int) -> Iterator[Entry]:
    """Yield the entries of a block; its restarts must name entries with whole keys. Raise Damage."""
    size = len(data)
    count = int.from_bytes(data[-4:], "little")
    end = size - 4 * (count + 1)
    if size < 8 or not count or end < 0:
        raise Damage("bad-header", f"a block of {size} bytes says that it has {count} restarts", base)
    seen, key, at = 0, b"", 0  # restarts seen
    while at < end:
        begin = at
        shared, at = read_varint(data, at, end, base)
        own, at = read_varint(data, at, end, base)
        length, at = read_varint(data, at, end, base)
        if seen < count and (restart := _U32.unpack_from(data, end + 4 * seen)[0]) <= begin:
            if restart != begin or shared:
                why = f"restart {seen} of a block is not where a whole key begins"
                raise Damage("bad-header", why, base + begin)
            seen += 1
        if shared > len(key) or own + length > end - at:
            why = f"an entry of {shared} + {own} + {length} bytes reaches beyond what there is"
            raise Damage("bad-header", why, base + begin)
        key = key[:shared] + data[at : at + own]
        yield Entry(key, data[at + own : at + own + length], base + at + own)
        at += own + length
    if seen != count and data != _EMPTY:
        raise Damage("bad-header", f"{count - seen} restarts of a block lie beyond its entries", base + end)


def _check_keys(
    entries: Iterator[Entry], bound: Entry, last: bytes | None, left: int
) -> Generator[Entry, None, int]:
    """Yield entries; their keys must rise from ``last`` to ``bound``; return the bytes left for more keys."""
    key: bytes | None = None
    for entry in entries:
        left -= len(entry.key)
        if left < 0:
            why = "the keys are much longer than the file: no more of them are read"
            raise Damage("too-complex", why, entry.at)
        if last is not None and entry.key <= last:
            why = f"the key {entry.key[:200]!r} is not beyond the one before it"
            raise Damage("bad-header", why, entry.at)
        last = key = entry.key
        yield entry
    if key is None or key > bound.key:
        why = f"the index says that a block ends before {bound.key[:200]!r}, but it does not"
        raise Damage("bad-header", why, bound.at)
    return left


def read_table(source: Source, anatomy: Anatomy) -> Iterator[Finding | Entry | None]:
    """Yield every entry in the order of keys, and findings; None stands for the entries of an unreliable
    block. Reads the file once, block by block. Raise Damage.
    """
    end = yield from _find_end(source)
    meta, where = yield from _read_footer(source, end, anatomy)
    if meta.size >= 0:
        data = yield from _read_block(source, meta, "the metaindex block", anatomy)
        if data is not None and data != _EMPTY:
            why = "the metaindex block is not empty, as it always is"
            yield finding("odd-header", why, offset=meta.offset)
    index = yield from _read_block(source, where, "the index block", anatomy)
    if index is None:
        yield None
        return
    at, left, last = 0, max(MAX_KEYS, 16 * source.size), None
    for bound in _read_entries(index, where.offset):
        block, used = _read_handle(bound.value, 0, bound.at)
        if used != len(bound.value) or block.offset != at or block.stop > meta.offset:
            why = f"a data block lies at {block.offset} + {block.size}; the one before it ends at {at}"
            raise Damage("bad-header", why, bound.at)
        at = block.stop
        data = yield from _read_block(source, block, "a block of entries", anatomy)
        if data is None:
            yield None
        else:
            left = yield from _check_keys(_read_entries(data, block.offset), bound, last, left)
        last = bound.key  # keys of the next block are larger
    if meta.size >= 0 and at != meta.offset:
        why = f"the blocks that the index names end at {at}, the metaindex begins at {meta.offset}"
        yield finding("bad-header", why, offset=at)


_NAMES = (
    "1 float32 4,2 float64 8,3 int32 4,4 uint8 1,5 int16 2,6 int8 1,7 string 0,8 complex64 8,9 int64 8,"
    "10 bool 1,11 qint8 1,12 quint8 1,13 qint32 4,14 bfloat16 2,15 qint16 2,16 quint16 2,17 uint16 2,"
    "18 complex128 16,19 float16 2,21 variant 0,22 uint32 4,23 uint64 8,24 float8_e5m2 1,25 float8_e4m3fn 1,"
    "26 float8_e4m3fnuz 1,27 float8_e4m3b11fnuz 1,28 float8_e5m2fnuz 1,29 int4 1,30 uint4 1,31 int2 1,"
    "32 uint2 1,33 float4_e2m1fn 1"
)
_ROWS = (row.split() for row in _NAMES.split(","))
_DTYPES = {int(number): (name, int(size)) for number, name, size in _ROWS}
"""DataType -> name and bytes per element (0: elements vary). Types of less than a byte take a whole byte."""
MAX_DIMS = 254
"""TensorFlow's own limit."""

Extents = tuple[tuple[int, int] | None, ...]
"""(start, length) in elements for each dimension; None is the whole dimension."""


class Header(NamedTuple):
    """One bundle's header, the value of the key ""; ``order`` is the data's byte order: "little" or "big"."""

    shards: int
    order: str
    producer: int
    min_consumer: int


class Item(NamedTuple):
    """One tensor or slice: ``size`` bytes at ``offset`` of shard ``shard``, with the CRC-32C ``crc``.
    An element has ``item_size`` bytes, 0 if elements vary, None if the type is unknown. A tensor
    with ``slices`` has no bytes of its own. ``at`` is the offset of the entry's value in the index.
    """

    key: bytes
    name: str
    dtype: str
    item_size: int | None
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc: int
    slices: tuple[Extents, ...]
    at: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.elements * (self.item_size or 0) if self.slices else self.size


def _check_number(value: int | bytes, base: int) -> int:
    """Return the value of a field that must be a non-negative int64. Raise Damage."""
    if isinstance(value, bytes) or value >> 63:
        raise Damage("bad-header", "a field is not a number, or a negative one", base)
    return value


def _read_message(value: int | bytes, at: int) -> Iterator[tuple[int, int | bytes]]:
    """Return the fields of a value that must be a message. Raise Damage."""
    if isinstance(value, int):
        raise Damage("bad-header", "a field is a number where a message belongs", at)
    return read_fields(value, at)


def read_header(value: bytes, at: int) -> Header:
    """Return the bundle's header, a BundleHeaderProto at byte ``at`` of the file. Raise Damage."""
    fields = dict(read_fields(value, at))
    version = dict(_read_message(fields.get(3, b""), at))
    order = {0: "little", 1: "big"}.get(_check_number(fields.get(2, 0), at))
    if order is None:
        raise Damage("bad-header", f"the byte order is {fields[2]!r}; there are only 0 and 1", at)
    shards = _check_number(fields.get(1, 0), at)
    if not 0 < shards < 1 << 31:
        raise Damage("bad-header", f"the bundle says that it has {shards} shards", at)
    return Header(shards, order, _check_number(version.get(1, 0), at), _check_number(version.get(2, 0), at))


def read_item(entry: Entry) -> Item:
    """Return the tensor or slice that an entry's value, a BundleEntryProto, describes. Raise Damage."""
    at, slices, fields = entry.at, list[Extents](), dict[int, int | bytes]()
    for field, value in read_fields(entry.value, at):
        if field != 7:
            fields[field] = value
            continue
        extents = list[tuple[int, int] | None]()
        for number, content in _read_message(value, at):  # a TensorSliceProto
            if number == 1:
                e = dict(_read_message(content, at))
                extents.append((_check_number(e.get(1, 0), at), _check_number(e[2], at)) if 2 in e else None)
        slices.append(tuple(extents))
    kind, dims, elements = _check_number(fields.get(1, 0), at), list[int](), 1
    for field, content in _read_message(fields.get(2, b""), at):  # a TensorShapeProto
        if field == 2:
            dims.append(_check_number(dict(_read_message(content, at)).get(1, 0), at))
            elements *= max(1, dims[-1])
            if len(dims) > MAX_DIMS or elements >> 63:
                raise Damage("bad-header", f"a shape of more than {MAX_DIMS} dimensions or 2^63 elements", at)
        elif field == 3 and content:
            raise Damage("bad-header", "a tensor without a rank", at)
    if not kind:
        raise Damage("bad-header", f"{entry.key[:200]!r} has no element type", at)
    dtype, size = _DTYPES.get(kind, (f"type {kind}", None))
    name = entry.key.decode("utf-8", "backslashreplace")
    shard, offset, length, crc = (_check_number(fields.get(field, 0), at) for field in (3, 4, 5, 6))
    crc = unmask_crc(crc)
    return Item(entry.key, name, dtype, size, tuple(dims), shard, offset, length, crc, tuple(slices), at)


def slice_shape(extents: Extents, full: tuple[int, ...], at: int) -> tuple[int, ...]:
    """Return the shape of a slice. Raise Damage if the slice does not lie inside the shape ``full``."""
    pairs = list(zip(extents, full, strict=False))
    if len(extents) != len(full) or any(e is not None and e[0] + e[1] > n for e, n in pairs):
        raise Damage("bad-header", f"a slice {extents} does not lie inside the shape {full}"[:300], at)
    return tuple(n if e is None else e[1] for e, n in pairs)


def _encode_signed(value: int) -> bytes:
    """Encode as OrderedCode::WriteSignedNumIncreasing: one leading 1 per byte; inverted for negatives."""
    bits = (~value if value < 0 else value).bit_length()
    length = bits // 7 + 1
    return ((value & ((1 << 8 * length) - 1)) ^ (((1 << length) - 1) << (7 * length))).to_bytes(length, "big")


def slice_key(name: bytes, extents: Extents) -> bytes:
    """Return a slice's key in the index (checkpoint::EncodeTensorNameSlice): name, rank, starts, lengths."""
    if b"\0" in name or b"\xff" in name:
        name = b"".join({0: b"\0\xff", 0xFF: b"\xff\0"}.get(b, bytes((b,))) for b in name)
    rank = bytes((1, len(extents))) if extents else b"\0"
    return b"\0" + name + b"\0\1" + rank + b"".join(_encode_signed(x) for e in extents for x in e or (0, -1))
