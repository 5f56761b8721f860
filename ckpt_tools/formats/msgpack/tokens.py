"""MessagePack, one object after the other: what it is and where its bytes lie; bodies are not read.

Facts: github.com/msgpack/msgpack/blob/master/spec.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ckpt_tools.formats.common.format import Damage
from ckpt_tools.model.report import Scalar
from ckpt_tools.storage import Source

MAX_OBJECTS = 1_000_000
"""Of one file: flax' have a dozen for each array, which are packed whole."""
_WINDOW = 4096
_WORDS: dict[int, Scalar] = {0xC0: None, 0xC2: False, 0xC3: True}
_NUMBERS = {0xCA: ">f", 0xCB: ">d"}
_NUMBERS |= dict(zip(range(0xCC, 0xD4), (">B", ">H", ">I", ">Q", ">b", ">h", ">i", ">q"), strict=True))
_SIZED = {0xC4: ("bin", 1), 0xC5: ("bin", 2), 0xC6: ("bin", 4)}
_SIZED |= {0xC7: ("ext", 1), 0xC8: ("ext", 2), 0xC9: ("ext", 4)}
_SIZED |= {0xD9: ("text", 1), 0xDA: ("text", 2), 0xDB: ("text", 4)}
_SIZED |= {0xDC: ("array", 2), 0xDD: ("array", 4), 0xDE: ("map", 2), 0xDF: ("map", 4)}
_FIXED_EXT = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}


class Token(NamedTuple):
    """One object: ``size`` are the entries of a map or an array, or the bytes of the body of a text, bin or
    ext, which begins at ``at``. ``code`` is the type of an ext, ``value`` that of anything else.
    """

    kind: str
    size: int
    at: int
    code: int = 0
    value: Scalar = None


class Tokens:
    """The objects of a file in order. Raises Damage where they are none."""

    def __init__(self, source: Source) -> None:
        self.source, self.at, self.end, self.count = source, 0, source.size, 0
        self._window, self._start = b"", 0
        self._within = 0

    @contextmanager
    def inside(self, token: Token, what: str) -> Iterator[None]:
        """Go through the objects in the body of the last object instead, which they must fill."""
        end, self.at, self.end = self.end, token.at, token.at + token.size
        self._within += 1
        yield
        if self.at < self.end:
            raise Damage("bad-header", f"{what} ends before its record does", self.at)
        self.end = end
        self._within -= 1

    def next(self) -> Token:
        """The next object; ``at`` is then behind it, or at the first entry of a container."""
        self.count += 1
        if self.count > MAX_OBJECTS:
            raise Damage("too-complex", f"more than {MAX_OBJECTS:,} objects", self.at)
        start, first = self.at, self.take(1)[0]
        if first < 0x80 or first >= 0xE0:
            return Token("value", 0, start, value=first if first < 0x80 else first - 0x100)
        if first < 0xC0:
            return self._short(first)
        if first in _WORDS:
            return Token("value", 0, start, value=_WORDS[first])
        if code := _NUMBERS.get(first):
            (value,) = struct.unpack(code, self.take(struct.calcsize(code)))
            return Token("value", 0, start, value=value)
        if size := _FIXED_EXT.get(first):
            return self._bodied("ext", size)
        if first not in _SIZED:
            raise Damage("bad-header", f"byte {first:#x} begins no object", start)
        kind, width = _SIZED[first]
        return self._bodied(kind, int.from_bytes(self.take(width), "big"))

    def _short(self, first: int) -> Token:
        """An object whose first byte holds its size."""
        if first >= 0xA0:
            return self._bodied("text", first & 0x1F)
        return self._bodied("map" if first < 0x90 else "array", first & 0x0F)

    def _bodied(self, kind: str, size: int) -> Token:
        """An object of which so many bytes or entries follow: of a body that does not fit nothing is read."""
        code = int.from_bytes(self.take(1), "big", signed=True) if kind == "ext" else 0
        token = Token(kind, size, self.at, code)
        self._reach(2 * size if kind == "map" else size)  # an entry has a byte at least
        if kind not in ("map", "array"):
            self.at += size
        return token

    def take(self, length: int) -> bytes:
        """The next bytes: a few at most, and no more than a name has."""
        self._reach(length)
        start, self.at = self.at, self.at + length
        if not self._start <= start <= self.at <= self._start + len(self._window):
            self._window = self.source.read(start, min(max(_WINDOW, length), self.end - start))
            self._start = start
        return self._window[start - self._start : self.at - self._start]

    def body(self, token: Token) -> bytes:
        """The bytes of a short text, which was the last object."""
        self.at = token.at
        return self.take(token.size)

    def _reach(self, length: int) -> None:
        if length <= self.end - self.at:
            return
        text = f"{length:,} more bytes belong at byte {self.at:,}"
        if self._within:
            raise Damage("bad-header", f"{text}, of which its record has {self.end - self.at:,}", self.at)
        raise Damage("truncated", f"{text}, the file ends at {self.end:,}", self.end)
