"""MindSpore's .ckpt, written byte by byte."""

from __future__ import annotations

from collections.abc import Iterable


def varint(n: int) -> bytes:
    n &= (1 << 64) - 1
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes(out) + bytes([n])


def field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + varint(len(content)) + content


def tensor(dims: Iterable[int], kind: str, content: bytes) -> bytes:
    return b"".join(b"\x08" + varint(d) for d in dims) + field(2, kind.encode()) + field(3, content)


def record(tag: str, dims: Iterable[int], kind: str, content: bytes) -> bytes:
    return field(1, field(1, tag.encode()) + field(2, tensor(dims, kind, content)))


def table(tag: str, *tensors: bytes) -> bytes:
    return field(1, field(1, tag.encode()) + field(3, b"".join(field(1, t) for t in tensors)))
