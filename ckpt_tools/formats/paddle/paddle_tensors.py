"""Paddle's own stream of tensors: ``.pdiparams`` of exported models, ``.pdparams`` with use_binary_format.

Facts: paddle/fluid/framework/dense_tensor_serialize.cc, tensor_util.cc (TensorToStream), framework.proto of
Paddle 3.3: for each tensor uint32 0; uint64 number of LoD levels, each a byte count and as many bytes;
uint32 0; int32 length of a TensorDesc; the TensorDesc; the elements. The names are in the program, not here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Damage, make_format
from ckpt_tools.formats.common.protobuf import Reader
from ckpt_tools.formats.common.tensors import MAX_TENSORS
from ckpt_tools.formats.torch.tensors import ITEMSIZE
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Guard, Tensor
from ckpt_tools.storage import Source

_NAMES = "bool int16 int32 int64 float16 float32 float64"
_TYPES = dict(enumerate(_NAMES.split())) | {20: "uint8", 21: "int8", 22: "bfloat16", 23: "complex64"}
_TYPES |= {24: "complex128", 32: "float8_e4m3fn", 33: "float8_e5m2", 36: "uint16", 37: "uint32", 38: "uint64"}
"""VarType.Type of framework.proto -> dtype, for the types of tensors."""
_LEVELS, _DIMENSIONS, _HUGE = 8, 64, 1 << 62
_DESCRIPTION = 1024  # bytes of a TensorDesc, at most
_HEAD = 20
"""Bytes before the description of a tensor without LoD levels."""


def _magic(head: bytes) -> bool:
    """Return True for a tensor without LoD levels, whose description begins with its type."""
    length = int.from_bytes(head[16:_HEAD], "little")
    return head[:16] == bytes(16) and 2 <= length <= _DESCRIPTION and head[_HEAD : _HEAD + 1] == b"\x08"


def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check the description of each tensor in the stream, and that the last one ends with the file."""
    yield finding("not-checksummed", "the stream has no checksum: only its lengths were checked")
    reader, at = Reader(source), 0
    while at < source.size or not anatomy.tensors:
        if len(anatomy.tensors) >= MAX_TENSORS:
            raise Damage("too-complex", f"more than {MAX_TENSORS:,} tensors", at)
        tensor = _read_tensor(reader, at, str(len(anatomy.tensors)))
        end = (tensor.offset or 0) + tensor.nbytes
        if end > source.size:
            text = f"tensor {tensor.name} should end at byte {end:,}, the file ends at {source.size:,}"
            raise Damage("truncated", text, source.size)
        anatomy.tensors.append(tensor)
        at = end
    anatomy.explain(0, at, "tensors, each behind its type and shape", Guard.UNPROTECTED)


def _read_tensor(reader: Reader, at: int, name: str) -> Tensor:
    """Read the description of the tensor at byte ``at``. Raises Damage and ShortRead."""
    if reader.get(at, 4) != bytes(4):
        raise Damage("bad-header", "no tensor begins here: its version is not 0", at)
    levels, start = int.from_bytes(reader.get(at + 4, 8), "little"), at + 12
    if levels > _LEVELS:
        raise Damage("bad-header", f"a tensor of {levels:,} LoD levels", at + 4)
    for _ in range(levels):
        start += 8 + int.from_bytes(reader.get(start, 8), "little")
    if reader.get(start, 4) != bytes(4):
        raise Damage("bad-header", f"tensor {name} is of an unknown version", start)
    length, begin = int.from_bytes(reader.get(start + 4, 4), "little"), start + 8
    if not 2 <= length <= _DESCRIPTION:
        raise Damage("bad-header", f"tensor {name} has a description of {length:,} bytes", start + 4)
    kinds, shape = list[int](), list[int]()
    for key, value, _ in reader.fields(begin, begin + length, b"\x08\x10"):
        (kinds if key == 0x08 else shape).append(value)
    known = len(kinds) == 1 and kinds[0] in _TYPES
    if not known or len(shape) > _DIMENSIONS or max(shape, default=0) >= _HUGE:
        raise Damage("bad-header", f"tensor {name} has no type and shape that Paddle knows", begin)
    dtype = _TYPES[kinds[0]]
    nbytes = min(math.prod(shape) * ITEMSIZE[dtype], _HUGE)
    return Tensor(name, dtype, tuple(shape), nbytes, begin + length)


FORMAT = make_format("paddle_tensors", _magic, _structure, hides_cuts=True)
