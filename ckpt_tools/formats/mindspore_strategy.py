"""MindSpore's strategy file (``src_strategy_<rank>.ckpt``): how the parameters of a pipeline stage are cut over its ranks, as one protobuf message.

Facts: node_strategy.proto, mindspore/ccsrc parallel_strategy_checkpoint.cc and mindspore/parallel/_parallel_serialization.py of MindSpore 2.0 to 2.10.
The walk is stricter than protobuf's own reader: the writer knows one order of fields, so another order is damage.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt_tools.codes import finding
from ckpt_tools.formats._base import Anatomy, Damage, Format
from ckpt_tools.formats._protobuf import Reader
from ckpt_tools.formats._strategy_groups import Layout, Strategy, make_layout
from ckpt_tools.formats._tensors import MAX_NAME, MAX_TENSORS
from ckpt_tools.model import Finding, Level
from ckpt_tools.storage import ShortRead, Source

MAX_SIZE = 1 << 24
"""Bytes; a stage with fifteen thousand operators takes about two million."""
_MAX_NUMBERS = 4096

_BEGIN = re.compile(rb"\x08[\x80-\xff]{0,4}[\x00-\x7f](?:[\x12\x1a][\x80-\xff]{0,4}[\x00-\x7f]\n|\Z)", re.DOTALL)


def _magic(head: bytes) -> bool:
    """``current_stage``, then an operator's strategy or a parameter's layout, which begins with its name."""
    return _BEGIN.match(head) is not None


def _fields(reader: Reader, at: int, limit: int, once: bytes, repeated: bytes = b"") -> Iterator[tuple[int, int, int]]:
    """The fields of a message, in the order of their numbers, as its writer lays them out; each key of ``once`` occurs exactly once."""
    last, start = 0, at
    seen: set[int] = set()
    for key, value, inner in reader.fields(at, limit, once + repeated):
        if key < last or (key in seen and key in once):
            raise Damage("bad-header", "a field out of place", inner)
        last = key
        seen.add(key)
        yield key, value, inner
    if len(seen.intersection(once)) < len(once):
        raise Damage("bad-header", "a record without all of its fields", start)


def _numbers(reader: Reader, at: int, limit: int, bits: int, signed: bool) -> tuple[int, ...]:
    """A message that holds nothing but repeated numbers of so many bits."""
    return tuple(_number(value, inner, bits, signed) for _, value, inner in _bounded(reader, at, limit))


def _bounded(reader: Reader, at: int, limit: int) -> Iterator[tuple[int, int, int]]:
    for count, entry in enumerate(_fields(reader, at, limit, b"", b"\x08")):
        if count == _MAX_NUMBERS:
            raise Damage("too-complex", f"more than {_MAX_NUMBERS} numbers in a list", at)
        yield entry


def _number(value: int, at: int, bits: int, signed: bool) -> int:
    if signed and value >> 63:
        value -= 1 << 64
    low, high = (-(1 << bits - 1), 1 << bits - 1) if signed else (0, 1 << bits)
    if not low <= value < high:
        raise Damage("bad-header", f"{value} does not fit into {bits} bits", at)
    return value


def _operator(reader: Reader, at: int, limit: int) -> int:
    """The pipeline stage of an operator; how the operator itself is cut matters to nobody who loads a checkpoint."""
    stage = 0
    for key, value, inner in _fields(reader, at, limit, b"\x0a\x12"):
        if key == 0x0A:
            reader.text(inner, value, MAX_NAME, "operator name")
            continue
        for field, number, start in _fields(reader, inner, inner + value, b"\x08", b"\x12"):
            if field == 0x08:
                stage = _number(number, start, 32, signed=False)
            else:
                _numbers(reader, start, start + number, 32, signed=False)
    return stage


def _layout(reader: Reader, at: int, limit: int) -> Layout:
    """How one parameter is cut. A tensor axis cut along several axes of the grid has a tensor_map of its own; a scalar's is empty."""
    name, devices, maps, shards = "", tuple[int, ...](), list[tuple[int, ...]](), dict[int, int]()
    for outer, size, start in _fields(reader, at, limit, b"\x0a\x12"):
        if outer == 0x0A:
            name = reader.text(start, size, MAX_NAME, "parameter name")
            continue
        for key, value, inner in _fields(reader, start, start + size, b"\x0a\x28\x30\x38", b"\x12\x1a\x22"):
            if not key & 7:
                shards[key] = _number(value, inner, 32, signed=True)
            elif key == 0x0A:
                devices = _numbers(reader, inner, inner + value, 32, signed=False)
            elif key == 0x12:
                maps.append(_numbers(reader, inner, inner + value, 32, signed=True))
            else:
                _numbers(reader, inner, inner + value, 64, signed=True)
    try:
        return make_layout(name, devices, maps, shards[0x30], shards[0x38])
    except ValueError as e:
        raise Damage("bad-header", str(e), at) from None


def read(source: Source, operators: bool = True) -> tuple[int, Strategy]:
    """(current_stage, what the file says). Without ``operators`` only the first is looked at, for its stage. Raises Damage and ShortRead."""
    if not source.size:
        raise Damage("empty-file", "the file has no bytes", 0)
    if source.size > MAX_SIZE:
        raise Damage("too-complex", f"a strategy file of {source.size} bytes", 0)
    reader, layouts, stage = Reader(source), list[Layout](), None
    reader.step = source.size  # every byte is looked at, so all are read at once
    if reader.byte(0) != 0x08:
        raise Damage("bad-header", "the file does not begin with current_stage", 0)
    value, at = reader.varint(1, reader.size + 1)
    current, last = _number(value, 1, 32, signed=False), 0x12
    for _ in range(MAX_TENSORS):
        if at == reader.size:
            break
        key = reader.byte(at)
        if key not in (0x12, 0x1A) or key < last:
            raise Damage("bad-header", f"{key:#04x} is neither an operator's strategy nor a parameter's layout", at)
        length, start = reader.varint(at + 1, reader.size + 1)
        if start + length > reader.size:
            raise Damage("truncated", f"a record should end at byte {start + length}", reader.size)
        last, at = key, start + length
        if key == 0x12 and (stage is None or operators):
            of = _operator(reader, start, at)
            stage = of if stage is None else stage
        elif key == 0x1A:
            layouts.append(_layout(reader, start, at))
    else:
        raise Damage("too-complex", f"more than {MAX_TENSORS} records", at)
    if not layouts:
        raise Damage("truncated", "the file holds no layout of a parameter", reader.size)
    return current, Strategy(stage, tuple(layouts))


def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Walk every record to the last byte."""
    try:
        current, strategy = read(source)
    except ShortRead:
        raise Damage("truncated", "the file ends inside a record", source.size) from None
    anatomy.metadata["current_stage"] = current
    anatomy.metadata["parameters"] = len(strategy.layouts)
    if strategy.stage is not None:
        anatomy.metadata["stage"] = strategy.stage
    yield finding("not-checksummed", "strategy files carry no checksum")


FORMAT = Format(
    name="mindspore_strategy",
    suffixes=(".ckpt",),
    magic=_magic,
    checks={Level.STRUCTURE: _structure},
    protects="nothing",
    limits=(
        "a flipped bit in a name or a number that still makes sense cannot be seen",
        "a file cut at the border of two layouts is whole in itself",
        "the JSON form is read by --strategy-dir only: its name says nothing",
    ),
    reference="MindSpore 2.10: node_strategy.proto, mindspore/parallel/_parallel_serialization.py",
)
