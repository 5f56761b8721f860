"""MessagePack as flax packs it, without its library."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

_SIZES = ((8, 1), (16, 2), (32, 4))


class Array(NamedTuple):
    """What flax makes an ext of type 1 of."""

    shape: tuple[int, ...]
    dtype: str
    data: bytes


def _sized(codes: Sequence[int], size: int) -> bytes:
    """The head of something of that size: ``codes`` for a length of one byte, two, four; 0 where there is
    none.
    """
    code, width = next((c, w) for (bits, w), c in zip(_SIZES, codes, strict=True) if c and size >> bits == 0)
    return bytes([code]) + size.to_bytes(width, "big")


def _integer(value: int) -> bytes:
    if -32 <= value < 128:
        return struct.pack("b", value)
    for unsigned, signed, width in zip(
        (0xCC, 0xCD, 0xCE, 0xCF), range(0xD0, 0xD4), (1, 2, 4, 8), strict=True
    ):
        if 0 <= value < 1 << 8 * width:
            return bytes([unsigned]) + value.to_bytes(width, "big")
        if -(1 << 8 * width - 1) <= value < 0:
            return bytes([signed]) + value.to_bytes(width, "big", signed=True)
    raise OverflowError(value)


def ext(code: int, data: bytes) -> bytes:
    if (size := len(data)) in (1, 2, 4, 8, 16):
        return bytes([0xD4 + size.bit_length() - 1, code]) + data
    return _sized((0xC7, 0xC8, 0xC9), size) + bytes([code]) + data


def packed(value: Any) -> bytes:
    """The shortest form, as every writer has it."""
    if value is None or isinstance(value, bool):
        return b"\xc0" if value is None else b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, bytes):
        return _sized((0xC4, 0xC5, 0xC6), len(value)) + value
    if isinstance(value, str):
        raw = value.encode()
        return (bytes([0xA0 + len(raw)]) if len(raw) < 32 else _sized((0xD9, 0xDA, 0xDB), len(raw))) + raw
    if isinstance(value, Array):
        return ext(1, packed([list(value.shape), value.dtype, value.data]))
    items = [x for pair in value.items() for x in pair] if isinstance(value, Mapping) else value
    short, codes = (0x80, (0, 0xDE, 0xDF)) if isinstance(value, Mapping) else (0x90, (0, 0xDC, 0xDD))
    head = bytes([short + len(value)]) if len(value) < 16 else _sized(codes, len(value))
    return head + b"".join(map(packed, items))
