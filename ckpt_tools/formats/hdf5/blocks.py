"""The structures of an HDF5 file: each is read once, inside the file, and shares no byte with another."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from ckpt_tools.checksum import Extent, Sum
from ckpt_tools.formats.common.format import Anatomy, Damage
from ckpt_tools.formats.hdf5.checksums import Lookup3
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
