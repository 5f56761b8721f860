"""The parts of protobuf's wire format that files of MindSpore, ONNX and TensorFlow use, read strictly and
without loading contents.

Facts: protobuf's encoding guide; a writer packs each number into as few bytes as it takes, so a longer form
is damage here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ckpt_tools.formats.common.format import Damage
from ckpt_tools.storage import ShortRead, Source

SMALL = 256 * 1024
"""Bytes; a file of at most this size is read at once."""
WINDOW = 192
"""Bytes per read of a larger file: enough for the head of a record with a name of usual length."""


class Field(NamedTuple):
    """A field of a message: its number and its wire type ``packed`` (0 a varint, 1 eight bytes, 5 four bytes,
    2 has a length). ``value`` is the varint, or how many bytes there are from ``start`` on.
    """

    number: int
    packed: int
    value: int
    start: int


class Reader:
    """Reads the fields of messages at offsets of a file through one small window; skips contents unread."""

    def __init__(self, source: Source, window: int = WINDOW) -> None:
        self.source, self.size = source, source.size
        self.step = source.size if source.size <= SMALL else window
        self.base, self.window = 0, b""

    def get(self, at: int, length: int) -> bytes:
        """Return ``length`` bytes at ``at``. Raise ShortRead beyond the end of the file."""
        if not self.base <= at <= at + length <= self.base + len(self.window):
            if at + length > self.size:
                raise ShortRead(at, length, max(0, self.size - at))
            self.base = 0 if self.step == self.size else at
            self.window = self.source.read(self.base, min(max(length, self.step), self.size - self.base))
        return self.window[at - self.base : at - self.base + length]

    def byte(self, at: int) -> int:
        """Return one byte, faster than ``get``: most bytes are asked for one by one."""
        i = at - self.base
        return self.window[i] if 0 <= i < len(self.window) else self.get(at, 1)[0]

    def varint(self, at: int, limit: int) -> tuple[int, int]:
        """Return an unsigned 64-bit varint in its shortest form, and where it ends. Raise Damage."""
        value = 0
        for i in range(10):
            if at + i >= limit:
                raise Damage("bad-header", "a number runs past the end of its record", at)
            byte = self.byte(at + i)
            value |= (byte & 0x7F) << (7 * i)
            if byte < 0x80:
                if value >> 64 or (i and not byte):
                    break
                return value, at + i + 1
        raise Damage("bad-header", "a number is not a valid varint", at)

    def fields(
        self, at: int, limit: int, known: bytes = b"\x08\x0a\x12\x1a"
    ) -> Iterator[tuple[int, int, int]]:
        """Yield (key byte, value or length, start) of each field. Raise Damage for unknown keys."""
        while at < limit:
            key = self.byte(at)
            if key not in known:
                raise Damage("bad-header", f"{key:#04x} is not a field of this record", at)
            value, start = self.varint(at + 1, limit)
            number = not key & 7
            if not number and value > limit - start:
                raise Damage("bad-header", f"a field of {value} bytes reaches beyond its record", at)
            yield key, value, start
            at = start if number else start + value

    def every(self, at: int, limit: int, beyond: str = "bad-header") -> Iterator[Field]:
        """Yield each field between ``at`` and ``limit``; ``beyond`` is the code for one that ends later."""
        while at < limit:
            key, start = self.varint(at, limit)
            number, packed = key >> 3, key & 7
            if not 0 < number < 1 << 29 or packed not in (0, 1, 2, 5):
                raise Damage("bad-header", f"{key:#x} is not a field of a message", at)
            value = 8 if packed == 1 else 4
            if packed == 0:
                value, end = self.varint(start, limit)
            else:
                if packed == 2:
                    value, start = self.varint(start, limit)
                end = start + value
            if end > limit:
                why = f"a field of {value} bytes reaches beyond the end of its message"
                raise Damage(beyond, why, limit if beyond == "truncated" else at)
            yield Field(number, packed, value, start)
            at = end

    def text(self, at: int, length: int, bound: int, what: str) -> str:
        """Return a short UTF-8 text. Raise Damage for control characters: a flipped bit or a lost page."""
        if not 0 < length <= bound:
            raise Damage("bad-header", f"a {what} of {length} bytes", at)
        raw = self.get(at, length)
        try:
            if min(raw) >= 0x20 and 0x7F not in raw:
                return raw.decode()
        except UnicodeDecodeError:
            pass
        raise Damage("bad-header", f"a {what} is not plain UTF-8 text: {raw[:40]!r}", at)
