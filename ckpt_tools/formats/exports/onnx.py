"""ONNX: a graph as one protobuf message, with its tensors inside, or in files beside it ("external data").

Facts: onnx/onnx.proto and external_data_helper.py of onnx 1.23.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter

from msgspec.structs import replace

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Claim, Damage, limit, make_format
from ckpt_tools.formats.common.protobuf import Field, Reader
from ckpt_tools.formats.common.tensors import MAX_NAME, MAX_TENSORS, MAX_TEXT, zero_tail
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Guard, Tensor
from ckpt_tools.storage import Source

_WINDOW = 4096
_DEEP, _MAX_DIMS, _MAX_ENTRIES, _BEGINNING = 200, 64, 16, 64
_NUMBER, _BYTES = 0, 2  # wire types of protobuf
_MESSAGES: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}
"""Message -> its fields that lead to a tensor, and the messages in them."""
_DIMS, _KIND, _NAME, _RAW, _EXTERNAL, _PLACE = 1, 2, 8, 9, 13, 14  # fields of TensorProto
_VALUES = {4: 32, 5: 0, 6: 0, 7: 0, 10: 64, 11: 0}
"""Fields of TensorProto with numbers one by one -> bits of each number; 0 if its length varies."""
_ROWS = (
    "1 float32 32,2 uint8 8,3 int8 8,4 uint16 16,5 int16 16,6 int32 32,7 int64 64,8 string 0,9 bool 8,"
    "10 float16 16,11 float64 64,12 uint32 32,13 uint64 64,14 complex64 64,15 complex128 128,16 bfloat16 16,"
    "17 float8_e4m3fn 8,18 float8_e4m3fnuz 8,19 float8_e5m2 8,20 float8_e5m2fnuz 8,21 uint4 4,22 int4 4,"
    "23 float4_e2m1fn 4,24 float8_e8m0fnu 8,25 uint2 2,26 int2 2,27 float6_e2m3fn 6,28 float6_e3m2fn 6"
)
_TYPES = {int(n): (name, int(bits)) for n, name, bits in map(str.split, _ROWS.split(","))}
"""TensorProto.DataType -> (dtype, bits per element)."""
_BEGIN = re.compile(
    rb"\x08[\x01-\x20](?:[\x12\x1a\x22][\x01-\x7f][ -\x7f]|\x22\x00|[\x28\x32\x3a\x42])", re.DOTALL
)
"""``ir_version``, then the name of the producer or another field of a model. MindSpore's graphs have their
graph where ONNX has the text of its domain (anf_ir.proto).
"""
_DATA = re.compile(r"(.+)\.onnx(?:\.data|_data(?:_\d+)?)", re.DOTALL)


def _find_model_name(name: str) -> tuple[str, ...]:
    """Return the name of the ONNX model whose external data a file has, by its name; () for other names."""
    m = _DATA.fullmatch(name)
    return (f"{m[1]}.onnx",) if m else ()


def _read_text(reader: Reader, f: Field) -> str:
    """Return the text in a protobuf field. Raises Damage if it is none, or longer than MAX_NAME."""
    if f.packed != _BYTES or f.value > MAX_NAME:
        raise Damage("bad-header", "a name is not text, or too long", f.start)
    return reader.get(f.start, f.value).decode(errors="replace")


def _read_numbers(reader: Reader, f: Field) -> Iterator[int]:
    """Yield the numbers of a repeated field, written one by one or packed."""
    if f.packed == _NUMBER:
        yield f.value
    at, end = f.start, f.start + f.value
    while f.packed == _BYTES and at < end:
        value, at = reader.varint(at, end)
        yield value


class _Tensor:
    """One TensorProto: its dimensions, its entries of external data, and the last of each other field.
    ``nbytes`` is None if the type does not tell it.
    """

    def __init__(self, reader: Reader, at: int, size: int) -> None:
        """Read the TensorProto of ``size`` bytes at ``at``. Raises Damage."""
        self.at, self.external, self.last = at, dict[str, str](), dict[int, Field]()
        dims = list[int]()
        for f in reader.every(at, at + size):
            if f.number == _DIMS:
                for n in _read_numbers(reader, f):
                    dims.append(n)
                    if len(dims) > _MAX_DIMS or n >> 62:
                        raise Damage("bad-header", "a tensor has an impossible shape", f.start)
            elif f.number == _EXTERNAL and f.packed == _BYTES:
                entry = {e.number: _read_text(reader, e) for e in reader.every(f.start, f.start + f.value)}
                if len(self.external) < _MAX_ENTRIES:
                    self.external[entry.get(1, "")] = entry.get(2, "")
            else:
                self.last[min(f.number, 1000)] = f
        self.name, self.shape = (
            _read_text(reader, self.last[_NAME]) if _NAME in self.last else "",
            tuple(dims),
        )
        kind = self.number(_KIND)
        self.dtype, self.bits = _TYPES.get(kind, (f"onnx type {kind}", 0))
        self.nbytes = -(-self.bits * math.prod(dims) // 8) if self.bits else None

    def number(self, field: int) -> int:
        """Return the number in a field, 0 if it has none."""
        f = self.last.get(field)
        return f.value if f and f.packed == _NUMBER else 0

    def check_size(self, held: int) -> Iterator[Finding]:
        """Yield a finding if ``held`` bytes are stored where type and shape take others."""
        if self.nbytes not in (None, held):
            why = f"{self.dtype} {self.shape[:8]} takes {self.nbytes} bytes, {held} are there"
            yield finding("tensor-size", f"tensor {self.name[:200]!r}: {why}", offset=self.at)


_Beside = defaultdict[str, list[Tensor]]
"""The files of a model's external data, and the tensors in each."""


def _add_tensor(reader: Reader, f: Field, anatomy: Anatomy, beside: _Beside) -> Iterator[Finding]:
    """Add the TensorProto in ``f``; yield a finding unless it has the bytes that type and shape need."""
    tensor = _Tensor(reader, f.start, f.value)
    if len(anatomy.tensors) >= MAX_TENSORS:
        raise Damage("too-complex", f"more than {MAX_TENSORS} tensors", f.start)
    anatomy.keys.add(tensor.name)
    if tensor.nbytes is None and tensor.dtype != "string":
        why = f"tensor {tensor.name[:200]!r} is of {tensor.dtype}, of which this version knows nothing"
        yield finding("unknown-dtype", why, offset=tensor.at)
    if tensor.number(_PLACE) == 1:
        yield from _add_external(tensor, anatomy, beside)
        return
    raw = tensor.last.get(_RAW)
    held, offset = (raw.value, raw.start) if raw else (0, None)
    for field, width in _VALUES.items() if raw is None else ():
        if (values := tensor.last.get(field)) is not None:
            plain = values.packed == _BYTES and width and width in (tensor.bits, tensor.bits // 2)
            held, offset = (values.value, values.start) if plain else (tensor.nbytes or 0, None)
    yield from tensor.check_size(held)
    anatomy.tensors.append(Tensor(tensor.name, tensor.dtype, tensor.shape, tensor.nbytes or 0, offset))


def _add_external(tensor: _Tensor, anatomy: Anatomy, beside: _Beside) -> Iterator[Finding]:
    """Add a tensor whose bytes lie in a file of external data. Raises Damage if its place is bad."""
    entries = tensor.external
    where, numbers = entries.get("location", ""), [entries.get(key, "0") for key in ("offset", "length")]
    if not where or not all(n.isascii() and n.isdigit() and len(n) <= 18 for n in numbers):
        why = f"tensor {tensor.name[:200]!r} has no valid place in another file"
        raise Damage("bad-header", why, tensor.at)
    offset, length = map(int, numbers)
    if "length" not in entries:
        length = tensor.nbytes or 0
    yield from tensor.check_size(length)
    beside[where].append(Tensor(tensor.name, tensor.dtype, tensor.shape, length, offset))
    anatomy.tensors.append(Tensor(tensor.name, tensor.dtype, tensor.shape, length, storage=where))


def _keep_metadata(reader: Reader, f: Field, anatomy: Anatomy) -> None:
    """Keep a field of ModelProto if it is a version of the model, or the producer's name or version."""
    if f.number in (1, 5) and f.packed == _NUMBER:
        anatomy.metadata["ir_version" if f.number == 1 else "model_version"] = f.value
    elif f.number in (2, 3) and f.packed == _BYTES and f.value <= MAX_TEXT:
        anatomy.metadata["producer_name" if f.number == 2 else "producer_version"] = _read_text(reader, f)


@limit
def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check all messages of a model that lead to a tensor; add claims on its files of external data."""
    if not source.size:
        raise Damage("empty-file", "the file has no bytes", 0)
    reader, beside = Reader(source, _WINDOW), _Beside(list)
    # walk through all messages that lead to a tensor, to a depth of _DEEP
    seen = set[int]()  # numbers of the model's own fields
    levels = [("model", reader.every(0, reader.size, "truncated"))]
    while levels:
        message, fields = levels[-1]
        f = next(fields, None)
        if f is None:
            levels.pop()
            continue
        if message == "model":
            seen.add(f.number)
            _keep_metadata(reader, f, anatomy)
        within = _MESSAGES[message].get(f.number)
        if within is None or f.packed != _BYTES:
            continue
        if within == "tensor":
            yield from _add_tensor(reader, f, anatomy, beside)
        elif len(levels) < _DEEP:
            levels.append((within, reader.every(f.start, f.start + f.value)))
        else:
            raise Damage("too-complex", f"messages inside each other, {_DEEP} deep", f.start)
    if missing := [name for number, name in ((7, "graph"), (8, "opset_import")) if number not in seen]:
        why = f"the model ends at byte {reader.size} and has no {' and no '.join(missing)}"
        raise Damage("truncated", why, reader.size)
    # files of external data: the model describes all that is known of them
    for where, tensors in beside.items():
        anatomy.members[where] = Claim("onnx", partial(_check_beside, tensors), whole=True)
    yield finding("not-checksummed", "ONNX keeps no checksum over its tensors")
    anatomy.explain(0, source.size, "the model: only the form of its messages is checked", Guard.UNPROTECTED)


@limit
def _check_beside(tensors: Sequence[Tensor], source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check a file of a model's external data: it must reach to the end of the last of its ``tensors``."""
    placed = sorted(((t.offset or 0, t) for t in tensors), key=itemgetter(0))
    end = max(at + t.nbytes for at, t in placed)
    if source.size < end:
        code, size = "truncated", f"ends at byte {source.size}"
        if not source.size:
            code, size = "empty-file", "has no bytes"
        yield finding(code, f"the file {size}; its model describes {end} bytes", offset=source.size)
    for at, t in placed:
        anatomy.keys.add(t.name)
        anatomy.tensors.append(replace(t, offset=min(at, source.size)))
    anatomy.explain(0, source.size, "tensors without a checksum, and what lies between", Guard.UNPROTECTED)
    if 0 < end <= source.size:
        yield from _find_zeros(anatomy.tensors, source)


def _find_zeros(tensors: Sequence[Tensor], source: Source) -> Iterator[Finding]:
    """Yield that a file got its size, but not its bytes: it ends in zeros, or several matrices begin so."""
    matrices = [t for t in tensors if len(t.shape) > 1 and t.nbytes >= _BEGINNING][:_MAX_ENTRIES]
    if lost := zero_tail(source, tensors, 0):
        yield lost
    elif len(matrices) > 1 and not any(any(source.read(t.offset or 0, _BEGINNING)) for t in matrices):
        yield finding("zero-tail", "its matrices all begin with zeros", offset=0)


FORMAT = make_format(
    "onnx", lambda head: bool(_BEGIN.match(head)), _structure, distinct=False, index_of=_find_model_name
)
