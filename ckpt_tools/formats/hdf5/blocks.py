"""The structures of an HDF5 file: each is read once, inside the file, and shares no byte with another."""

from __future__ import annotations

import struct
import sys
from array import array
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from ckpt_tools.checksum import Extent, Sum
from ckpt_tools.formats.common.format import Anatomy, Damage
from ckpt_tools.model.report import Guard
from ckpt_tools.storage import Source

UNDEFINED = (1 << 64) - 1
"""HADDR_UNDEF: nothing was allocated."""
MOST = 64 << 20
"""Bytes of one structure that is read into memory."""
MAX_BLOCKS = 4_000_000
"""Structures and chunks of one file."""


def bad(why: str, at: int) -> Damage:
    return Damage("bad-header", why[:500], at)


class Span(NamedTuple):
    """Bytes ``start`` to ``stop`` of the file, and what they are."""

    start: int
    stop: int
    what: str


class Fields:
    """Numbers of a structure, one after the other. Raises Damage where it ends."""

    def __init__(self, data: bytes, at: int, what: str, start: int = 0) -> None:
        self.data, self.file_at, self.what, self.at = data, at, what, start

    def take(self, length: int) -> bytes:
        start, self.at = self.at, self.at + length
        if self.at > len(self.data):
            raise bad(f"{self.what} has {len(self.data)} bytes, where more belong", self.file_at)
        return self.data[start : self.at]

    def number(self, length: int) -> int:
        return int.from_bytes(self.take(length), "little")

    def numbers(self, *lengths: int) -> list[int]:
        return [self.number(n) for n in lengths]

    def wrong(self, why: str) -> Damage:
        return bad(f"{self.what}: {why}", self.file_at)

    def expect(self, expected: int, what: str, length: int = 1) -> None:
        """The next number must be this one. Raises Damage."""
        if (got := self.number(length)) != expected:
            raise self.wrong(f"{what} {got} where {expected} belongs")


class Blocks:
    """Reads structures and notes where they lie. Together they are no longer than the file."""

    def __init__(self, source: Source, anatomy: Anatomy, end: int) -> None:
        self.source, self.anatomy, self.end = source, anatomy, end
        self.spans: list[Span] = []
        self._left = end

    def take(self, address: int, length: int, what: str) -> None:
        """Note where something lies. Raises Damage where that cannot be."""
        if address < 0 or address + length > self.end:
            why = f"{what} lies at {address} to {address + length}, where the file has {self.end} bytes"
            raise bad(why, min(address, self.end))
        self._left -= length
        if self._left < 0:
            raise bad(
                f"{what}, {length} bytes at {address}: the parts of the file lie on each other", address
            )
        if len(self.spans) >= MAX_BLOCKS:
            raise Damage("too-complex", f"more than {MAX_BLOCKS} structures and chunks", address)
        self.spans.append(Span(address, address + length, what))

    def read(self, address: int, length: int, what: str, signature: bytes = b"") -> Fields:
        """A structure that no checksum covers, behind its signature."""
        data = self._get(address, length, what, signature)
        self.anatomy.explain(address, len(signature), f"signature of {what}")
        rest = length - len(signature)
        self.anatomy.explain(address + len(signature), rest, what, Guard.UNPROTECTED)
        return data

    def summed(
        self, address: int, length: int, what: str, signature: bytes = b"", *, room: int = 0
    ) -> Fields:
        """A structure whose last four bytes are its checksum; nothing is in the ``room`` behind it."""
        data = self._get(address, length, what, signature, room)
        self.sum(what, data.data[-4:], (Extent(address, length - 4),), address + length - 4)
        self.anatomy.explain(address + length, room, f"unused bytes of {what}", Guard.UNPROTECTED)
        return data

    def sum(self, what: str, stored: bytes, pieces: tuple[Extent | bytes, ...], offset: int) -> None:
        """Note a checksum that lies at ``offset``."""
        length = sum(len(p) if isinstance(p, bytes) else p.length for p in pieces)
        made = partial(Lookup3, length)
        self.anatomy.sums.append(Sum(f"lookup3 of {what}", stored, pieces, offset, hash=made))
        self.anatomy.explain(offset, 4, f"lookup3 of {what}")

    def _get(self, address: int, length: int, what: str, signature: bytes, room: int = 0) -> Fields:
        self.take(address, length + room, what)
        if length > MOST:
            raise Damage("too-complex", f"{what} has {length} bytes", address)
        data = self.source.read(address, length)
        if not data.startswith(signature):
            raise bad(
                f"{what} belongs at byte {address}, but its signature {signature!r} is not there", address
            )
        return Fields(data, address, what, len(signature))

    def finish(self) -> None:
        """Explain what lies between the parts. Raises Damage where they lie on each other."""
        at, last = 0, "the file's beginning"
        for start, stop, what in [*sorted(self.spans), Span(self.end, self.end, "")]:
            if start < at:
                raise bad(f"{what}, at {start} to {stop}, lies on {last}, which ends at {at}", start)
            self.anatomy.explain(at, start - at, "free space, or what is not read", Guard.UNPROTECTED)
            if stop > start:
                at, last = stop, what


_MASK = (1 << 32) - 1


class Lookup3:
    """Bob Jenkins' lookup3 (hashlittle, initial value 0); the last twelve bytes wait for ``digest``."""

    def __init__(self, length: int) -> None:
        start = (0xDEADBEEF + length) & _MASK
        self._abc = (start, start, start)
        self._rest = b""

    def update(self, data: memoryview | bytes, /) -> None:
        data = self._rest + bytes(data)
        mixed = (len(data) - 1) // 12 * 12 if data else 0
        self._mix(data[:mixed])
        self._rest = data[mixed:]

    def _mix(self, data: bytes) -> None:
        m, (a, b, c) = _MASK, self._abc
        for x, y, z in struct.iter_unpack("<III", data):
            a, b, c = (a + x) & m, (b + y) & m, (c + z) & m
            a = ((a - c) & m) ^ (c << 4 & m | c >> 28)
            c = (c + b) & m
            b = ((b - a) & m) ^ (a << 6 & m | a >> 26)
            a = (a + c) & m
            c = ((c - b) & m) ^ (b << 8 & m | b >> 24)
            b = (b + a) & m
            a = ((a - c) & m) ^ (c << 16 & m | c >> 16)
            c = (c + b) & m
            b = ((b - a) & m) ^ (a << 19 & m | a >> 13)
            a = (a + c) & m
            c = ((c - b) & m) ^ (b << 4 & m | b >> 28)
            b = (b + a) & m
        self._abc = a, b, c

    def digest(self) -> bytes:
        m = _MASK
        a, b, c = self._abc
        last = c
        if self._rest:
            x, y, z = struct.unpack("<III", self._rest.ljust(12, b"\0"))
            a, b, c = (a + x) & m, (b + y) & m, (c + z) & m
            for k in (14, 11, 25, 16, 4, 14, 24):  # each step mixes b into c and moves on
                c = ((c ^ b) - (b << k & m | b >> (32 - k))) & m
                a, b, c = b, c, a
            last = b
        return int(last).to_bytes(4, "little")


def lookup3(data: bytes) -> int:
    """lookup3 of bytes that are in memory."""
    running = Lookup3(len(data))
    running.update(data)
    return int.from_bytes(running.digest(), "little")


class Fletcher32:
    """Fletcher-32 over big-endian words of 16 bits (H5checksum.c), which keeps a sum of 65535."""

    def __init__(self) -> None:
        self._first = self._second = 0
        self._rest = b""

    def update(self, data: memoryview | bytes, /) -> None:
        if self._rest or len(data) % 2:
            data = self._rest + bytes(data)
            even = len(data) & ~1
            data, self._rest = data[:even], data[even:]
        words = array("H", bytes(data))
        if sys.byteorder == "little":
            words.byteswap()
        self._second += len(words) * self._first + sum(accumulate(words))
        self._first += sum(words)

    def digest(self) -> bytes:
        if self._rest:
            self.update(b"\0")
        first, second = ((s - 1) % 65535 + 1 if s else 0 for s in (self._first, self._second))
        return (second << 16 | first).to_bytes(4, "little")
