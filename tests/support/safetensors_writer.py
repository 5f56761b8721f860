"""safetensors, written byte by byte: an independent writer, as small as the format allows."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any


def made(header: object, data: bytes = b"") -> bytes:
    """A file of this header, which may be its bytes, its text or a value of JSON."""
    text = header if isinstance(header, bytes | str) else json.dumps(header)
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(raw)) + raw + data


def entry(dtype: str, shape: Sequence[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def packed(
    tensors: Mapping[str, tuple[str, Sequence[int], bytes]], meta: Mapping[str, str] | None = None
) -> bytes:
    """A file of tensors, each (dtype, shape, bytes), one behind the other."""
    header: dict[str, Any] = {} if meta is None else {"__metadata__": meta}
    end = 0
    for name, (dtype, shape, content) in tensors.items():
        header[name] = entry(dtype, shape, end, end := end + len(content))
    return made(header, b"".join(content for _, _, content in tensors.values()))


def vectors(**tensors: bytes) -> bytes:
    """A file of vectors of bytes."""
    return packed({name: ("U8", [len(content)], content) for name, content in tensors.items()})


def beginning(size: int) -> bytes:
    """What stands before the data of a file of one vector of ``size`` bytes, ``a``."""
    return made({"a": entry("U8", [size], 0, size)})
