"""Numbers and protobuf messages of TensorFlow's bundles, read from bytes in memory: bounded, flat, without
recursion.

Facts: protobuf's encoding guide; tensorflow/core/lib/core/coding.cc. Every writer packs a number into as few
bytes as it takes.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_tools.formats.common.format import Damage

_MASK_DELTA = 0xA282EAD8


def unmasked(stored: int) -> int:
    """The CRC-32C behind a stored one: TensorFlow rotates it and adds a constant (core/lib/hash/crc32c.h)."""
    rotated = (stored - _MASK_DELTA) & 0xFFFFFFFF
    return (rotated >> 17) | (rotated << 15) & 0xFFFFFFFF


def varint(data: bytes, at: int, end: int, base: int = 0) -> tuple[int, int]:
    """An unsigned 64-bit number at ``at`` and where it ends; ``base`` is the offset of ``data`` in the file,
    for the finding.
    """
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
    raise Damage("bad-header", "a number is no valid varint, or is cut off", base + at)


def fields(data: bytes, base: int) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field of a message: an unsigned number, or the bytes of what has a length.
    ``base`` as above.
    """
    at, end = 0, len(data)
    while at < end:
        begin = at
        key, at = varint(data, at, end, base)
        kind = key & 7
        if not key >> 3 or kind not in (0, 1, 2, 5):
            raise Damage("bad-header", f"{key:#x} is no field of a message", base + begin)
        if kind == 0:
            value, at = varint(data, at, end, base)
            yield key >> 3, value
            continue
        if kind == 2:
            length, at = varint(data, at, end, base)
        else:
            length = 8 if kind == 1 else 4
        if length > end - at:
            raise Damage("bad-header", f"a field of {length} bytes reaches beyond its message", base + begin)
        content = data[at : at + length]
        at += length
        yield key >> 3, content if kind == 2 else int.from_bytes(content, "little")


def number(value: int | bytes, base: int) -> int:
    """A field's value as the non-negative int64 that it has to be."""
    if isinstance(value, bytes) or value >> 63:
        raise Damage("bad-header", "a field is no number, or a negative one", base)
    return value


def message(value: int | bytes, base: int) -> bytes:
    """A field's value as the message that it has to be."""
    if isinstance(value, int):
        raise Damage("bad-header", "a field is a number where a message belongs", base)
    return value
