"""What a TensorFlow bundle's index says: one header, and one entry per tensor or slice of a tensor.

Facts: tensorflow/core/protobuf/tensor_bundle.proto,
framework/{types,tensor_shape,tensor_slice,versions}.proto, util/saved_tensor_slice_util.cc (keys of slices)
and lib/strings/ordered_code.cc of TensorFlow 2.21; checked against files of tf.train.Saver with partitioned
variables and of MaxShardSizePolicy. A field that holds its default (0) is not written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from ckpt_tools.formats.common.format import Damage
from ckpt_tools.formats.tensorflow.sstable import Entry, read_fields, unmask_crc

_NAMES = (
    "1 float32 4,2 float64 8,3 int32 4,4 uint8 1,5 int16 2,6 int8 1,7 string 0,8 complex64 8,9 int64 8,"
    "10 bool 1,11 qint8 1,12 quint8 1,13 qint32 4,14 bfloat16 2,15 qint16 2,16 quint16 2,17 uint16 2,"
    "18 complex128 16,19 float16 2,21 variant 0,22 uint32 4,23 uint64 8,24 float8_e5m2 1,25 float8_e4m3fn 1,"
    "26 float8_e4m3fnuz 1,27 float8_e4m3b11fnuz 1,28 float8_e5m2fnuz 1,29 int4 1,30 uint4 1,31 int2 1,"
    "32 uint2 1,33 float4_e2m1fn 1"
)
_ROWS = (row.split() for row in _NAMES.split(","))
_DTYPES = {int(number): (name, int(size)) for number, name, size in _ROWS}
"""DataType -> name and bytes per element (0: it varies). Types of less than a byte take a whole one."""
MAX_DIMS = 254
"""TensorFlow's own limit."""

Extents = tuple[tuple[int, int] | None, ...]
"""(start, length) in elements of each dimension; None is all of it."""


class Header(NamedTuple):
    """The value of the key "". ``order`` is that of the bytes in the data: "little" or "big"."""

    shards: int
    order: str
    producer: int
    min_consumer: int


class Item(NamedTuple):
    """One tensor or slice: ``size`` bytes at ``offset`` of shard ``shard``, with the CRC-32C ``crc``.
    ``item`` is the size of one element in bytes, 0 when that varies, None when the type is not known. A
    tensor with ``slices`` has no bytes of its own. ``at`` is where in the index this was said.
    """

    key: bytes
    name: str
    dtype: str
    item: int | None
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
        return self.elements * (self.item or 0) if self.slices else self.size


def _as_number(value: int | bytes, base: int) -> int:
    """A field's value as the non-negative int64 that it has to be."""
    if isinstance(value, bytes) or value >> 63:
        raise Damage("bad-header", "a field is not a number, or a negative one", base)
    return value


def _read_message(value: int | bytes, at: int) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a field's value, which has to be a message."""
    if isinstance(value, int):
        raise Damage("bad-header", "a field is a number where a message belongs", at)
    return read_fields(value, at)


def read_header(value: bytes, at: int) -> Header:
    """The bundle's header. Raises Damage."""
    said = dict(read_fields(value, at))
    version = dict(_read_message(said.get(3, b""), at))
    order = {0: "little", 1: "big"}.get(_as_number(said.get(2, 0), at))
    if order is None:
        raise Damage("bad-header", f"the byte order is {said[2]!r}; there are only 0 and 1", at)
    shards = _as_number(said.get(1, 0), at)
    if not 0 < shards < 1 << 31:
        raise Damage("bad-header", f"the bundle says that it has {shards} shards", at)
    return Header(shards, order, _as_number(version.get(1, 0), at), _as_number(version.get(2, 0), at))


def _read_shape(value: int | bytes, at: int) -> tuple[int, ...]:
    dims, elements = list[int](), 1
    for field, content in _read_message(value, at):
        if field == 2:
            dims.append(_as_number(dict(_read_message(content, at)).get(1, 0), at))
            elements *= max(1, dims[-1])
            if len(dims) > MAX_DIMS or elements >> 63:
                raise Damage("bad-header", f"a shape of more than {MAX_DIMS} dimensions or 2^63 elements", at)
        elif field == 3 and content:
            raise Damage("bad-header", "a tensor without a rank", at)
    return tuple(dims)


def _read_slice(value: int | bytes, at: int) -> Extents:
    out = list[tuple[int, int] | None]()
    for field, content in _read_message(value, at):
        if field == 1:
            said = dict(_read_message(content, at))
            out.append((_as_number(said.get(1, 0), at), _as_number(said[2], at)) if 2 in said else None)
    return tuple(out)


def read_item(entry: Entry) -> Item:
    """A tensor's entry. Raises Damage."""
    at, slices, said = entry.at, list[Extents](), dict[int, int | bytes]()
    for field, value in read_fields(entry.value, at):
        if field == 7:
            slices.append(_read_slice(value, at))
        else:
            said[field] = value
    kind, shape = _as_number(said.get(1, 0), at), _read_shape(said.get(2, b""), at)
    if not kind:
        raise Damage("bad-header", f"{entry.key[:200]!r} has no element type", at)
    dtype, size = _DTYPES.get(kind, (f"type {kind}", None))
    name = entry.key.decode("utf-8", "backslashreplace")
    where, offset, length, crc = (_as_number(said.get(field, 0), at) for field in (3, 4, 5, 6))
    return Item(
        entry.key, name, dtype, size, shape, where, offset, length, unmask_crc(crc), tuple(slices), at
    )


def slice_shape(extents: Extents, full: tuple[int, ...], at: int) -> tuple[int, ...]:
    """The shape of a slice of a tensor of the shape ``full``. Raises Damage when it does not lie inside."""
    pairs = list(zip(extents, full, strict=False))
    if len(extents) != len(full) or any(e is not None and e[0] + e[1] > n for e, n in pairs):
        raise Damage("bad-header", f"a slice {extents} does not lie inside the shape {full}"[:300], at)
    return tuple(n if e is None else e[1] for e, n in pairs)


def _write_signed(value: int) -> bytes:
    """OrderedCode::WriteSignedNumIncreasing: as many leading ones as bytes; all inverted below zero."""
    bits = (~value if value < 0 else value).bit_length()
    length = bits // 7 + 1
    return ((value & ((1 << 8 * length) - 1)) ^ (((1 << length) - 1) << (7 * length))).to_bytes(length, "big")


def slice_key(name: bytes, extents: Extents) -> bytes:
    """The key under which a slice's own entry lies: checkpoint::EncodeTensorNameSlice."""
    if b"\0" in name or b"\xff" in name:
        name = b"".join({0: b"\0\xff", 0xFF: b"\xff\0"}.get(b, bytes((b,))) for b in name)
    rank = bytes((1, len(extents))) if extents else b"\0"
    return b"\0" + name + b"\0\1" + rank + b"".join(_write_signed(x) for e in extents for x in e or (0, -1))


def slice_name(name: str, extents: Extents) -> str:
    """A readable name: ``w[0:10, :]``."""
    return f"{name}[{', '.join(':' if e is None else f'{e[0]}:{e[0] + e[1]}' for e in extents)}]"
