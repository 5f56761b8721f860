"""Attributes of the root group in which Keras keeps a whole model's configuration, and the code in it.

Facts: keras/src/legacy/saving/legacy_h5_format.py (load_model_from_hdf5); HDF5 File Format Specification 3.0,
IV.A.2.m (attribute message) and III.E (global heap).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.keras_code import MOST, code_in_config
from ckpt_tools.formats.hdf5.blocks import Blocks
from ckpt_tools.model.finding import Finding

_READ = (b"model_config", b"training_config")
_VARIABLE = 9
_HEAP = struct.Struct("<4s4xQ")
_OBJECT = struct.Struct("<HHIQ")


def code_in_attribute(blocks: Blocks, body: bytes, at: int) -> Iterator[Finding]:
    """What an attribute message says that Keras would run."""
    if len(body) < 9 or body[0] not in (1, 2, 3):
        return
    sizes, start = struct.unpack_from("<HHH", body, 2), 9 if body[0] == 3 else 8
    fields = list[bytes]()
    for size in sizes:
        fields.append(body[start : start + size])
        start += -(-size // 8) * 8 if body[0] == 1 else size
    if fields[0].rstrip(b"\0") not in _READ:
        return
    text: bytes | None = body[start:]
    if fields[1][:1] and fields[1][0] & 15 == _VARIABLE and len(body) - start >= 16:
        text = _held(blocks, *struct.unpack_from("<QI", body, start + 4))
    if text is None or len(text) > MOST:
        why = "the configuration of a Keras model is where or as large as it is not read"
        yield finding("unread-pickle", why, offset=at)
    else:
        yield from code_in_config(text, blocks.anatomy, at)


def _held(blocks: Blocks, address: int, index: int) -> bytes | None:
    """An object of a global heap; None where it is not there."""
    source = blocks.source
    if address + _HEAP.size > blocks.end:
        return None
    magic, size = _HEAP.unpack(source.read(address, _HEAP.size))
    if magic != b"GCOL" or address + size > blocks.end:
        return None
    at, stop = address + _HEAP.size, address + size
    for _ in range(1 << 16):
        if at + _OBJECT.size > stop:
            break
        own, _, _, length = _OBJECT.unpack(source.read(at, _OBJECT.size))
        at += _OBJECT.size
        if own == index:
            return source.read(at, length) if length <= min(MOST, stop - at) else None
        if not own:  # the free space behind the last
            break
        at += -(-length // 8) * 8
    return None
