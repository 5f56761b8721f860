"""Toy checkpoints: ``TOY1``, a step, a length, the bytes, and a CRC-32 over these bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from ckpt_tools.checksum import Extent, Sum
from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Damage, make_format
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Level
from ckpt_tools.storage import Source

MAGIC = b"TOY1"
_HEAD = struct.Struct("<4sQQ")  # magic, step, bytes of the payload
_CRC = struct.Struct("<I")


def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    if source.size < _HEAD.size:
        raise Damage("truncated", f"the file has {source.size} bytes, its header {_HEAD.size}", source.size)
    magic, step, length = _HEAD.unpack(source.read(0, _HEAD.size))
    if magic != MAGIC:
        raise Damage("bad-header", "the file does not begin with TOY1", 0)
    end = _HEAD.size + length + _CRC.size
    if end > source.size:
        raise Damage("truncated", f"the header asks for {end} bytes, the file has {source.size}", source.size)
    (crc,) = _CRC.unpack(source.read(end - _CRC.size, _CRC.size))
    anatomy.metadata["step"] = step
    anatomy.end = end
    anatomy.sums.append(Sum("the payload", crc, (Extent(_HEAD.size, length),), end - _CRC.size))
    anatomy.explain(0, _HEAD.size, "header")
    anatomy.explain(end - _CRC.size, _CRC.size, "CRC-32 of the payload")
    if not length:
        yield finding("skeleton", "the payload is empty")


FORMAT = make_format(
    name="toy",
    magic=lambda head: head.startswith(MAGIC),
    checks={Level.STRUCTURE: _structure},
    protects="a CRC-32 covers the payload",
    limits=("a flipped bit of the step is not seen",),
    reference="docs/examples/toy_format.py",
)
