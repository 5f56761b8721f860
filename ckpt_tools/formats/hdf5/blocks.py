"""The structures of an HDF5 file, each of which is read once, lies inside the file and shares no byte: its
superblock, versions 0 to 3, and object headers, versions 1 and 2, whose messages describe a group, an array
or a type.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from ckpt_tools.checksum import Extent, Sum
from ckpt_tools.formats.common.format import Anatomy, Damage
from ckpt_tools.model.report import Guard
from ckpt_tools.storage import Source

UNDEFINED = (1 << 64) - 1
"""HADDR_UNDEF: the address of a structure that was never allocated."""
MOST = 64 << 20
"""Most bytes of one structure that is read into memory."""
MAX_BLOCKS = 4_000_000
"""Most structures and chunks of one file."""


def make_damage(reason: str, at: int) -> Damage:
    """Return the Damage bad-header at byte ``at``, with at most 500 characters of the reason."""
    return Damage("bad-header", reason[:500], at)


class Span(NamedTuple):
    """One range of the file, bytes ``start`` to ``stop``, and what the bytes are."""

    start: int
    stop: int
    what: str


class Fields:
    """One structure's bytes, which begin at ``file_at`` of the file, read number by number from ``at`` on."""

    def __init__(self, data: bytes, at: int, what: str, start: int = 0) -> None:
        self.data, self.file_at, self.what, self.at = data, at, what, start

    def take(self, length: int) -> bytes:
        """Return the next ``length`` bytes. Raise Damage where the structure ends."""
        start, self.at = self.at, self.at + length
        if self.at > len(self.data):
            raise make_damage(f"{self.what} has {len(self.data)} bytes, where more belong", self.file_at)
        return self.data[start : self.at]

    def number(self, length: int) -> int:
        """Return the next unsigned little-endian number, which has ``length`` bytes."""
        return int.from_bytes(self.take(length), "little")

    def numbers(self, *lengths: int) -> list[int]:
        return [self.number(n) for n in lengths]

    def make_damage(self, reason: str) -> Damage:
        return make_damage(f"{self.what}: {reason}", self.file_at)

    def expect(self, expected: int, what: str, length: int = 1) -> None:
        """Raise Damage unless the next number is ``expected``."""
        if (number := self.number(length)) != expected:
            raise self.make_damage(f"{what} {number} where {expected} belongs")


class Blocks:
    """One file's reader of structures, which adds up their spans: at most as long as the file in total."""

    def __init__(self, source: Source, anatomy: Anatomy, end: int) -> None:
        self.source, self.anatomy, self.end = source, anatomy, end
        self.spans: list[Span] = []
        self._bytes_left = end

    def add_span(self, address: int, length: int, what: str) -> None:
        """Record where a structure or chunk lies. Raise Damage if that is outside of the file or too much."""
        if address < 0 or address + length > self.end:
            why = f"{what} lies at {address} to {address + length}, where the file has {self.end} bytes"
            raise make_damage(why, min(address, self.end))
        self._bytes_left -= length
        if self._bytes_left < 0:
            why = f"{what}, {length} bytes at {address}: the parts of the file lie on each other"
            raise make_damage(why, address)
        if len(self.spans) >= MAX_BLOCKS:
            raise Damage("too-complex", f"more than {MAX_BLOCKS} structures and chunks", address)
        self.spans.append(Span(address, address + length, what))

    def read(self, address: int, length: int, what: str, signature: bytes = b"") -> Fields:
        """Return a structure without a checksum, from the byte behind its signature on. Raise Damage."""
        data = self._read_fields(address, length, what, signature)
        self.anatomy.explain(address, len(signature), f"signature of {what}")
        rest = length - len(signature)
        self.anatomy.explain(address + len(signature), rest, what, Guard.UNPROTECTED)
        return data

    def read_summed(
        self, address: int, length: int, what: str, signature: bytes = b"", *, room: int = 0
    ) -> Fields:
        """Return a structure whose last four bytes are its checksum; ``room`` unused bytes follow it."""
        data = self._read_fields(address, length, what, signature, room)
        self.add_sum(what, data.data[-4:], (Extent(address, length - 4),), address + length - 4)
        self.anatomy.explain(address + length, room, f"unused bytes of {what}", Guard.UNPROTECTED)
        return data

    def add_sum(self, what: str, stored: bytes, pieces: tuple[Extent | bytes, ...], offset: int) -> None:
        """Add the checksum at ``offset``, which covers ``pieces``, to ``anatomy.sums``."""
        length = sum(len(p) if isinstance(p, bytes) else p.length for p in pieces)
        make_hash = partial(Lookup3, length)
        self.anatomy.sums.append(Sum(f"lookup3 of {what}", stored, pieces, offset, hash=make_hash))
        self.anatomy.explain(offset, 4, f"lookup3 of {what}")

    def _read_fields(self, address: int, length: int, what: str, signature: bytes, room: int = 0) -> Fields:
        """Read a structure; record its span and ``room`` behind it. Raise Damage: too long, no signature."""
        self.add_span(address, length + room, what)
        if length > MOST:
            raise Damage("too-complex", f"{what} has {length} bytes", address)
        data = self.source.read(address, length)
        if not data.startswith(signature):
            why = f"{what} belongs at byte {address}, but its signature {signature!r} is not there"
            raise make_damage(why, address)
        return Fields(data, address, what, len(signature))

    def explain_gaps(self) -> None:
        """Explain the bytes between the recorded spans. Raise Damage if two spans overlap."""
        at, last = 0, "the file's beginning"
        for start, stop, what in [*sorted(self.spans), Span(self.end, self.end, "")]:
            if start < at:
                raise make_damage(f"{what}, at {start} to {stop}, lies on {last}, which ends at {at}", start)
            self.anatomy.explain(at, start - at, "free space, or what is not read", Guard.UNPROTECTED)
            if stop > start:
                at, last = stop, what


_MASK = (1 << 32) - 1


class Lookup3:
    """Bob Jenkins' lookup3 (hashlittle, initial value 0); ``digest`` mixes in the last twelve bytes."""

    def __init__(self, length: int) -> None:
        start = (0xDEADBEEF + length) & _MASK
        self._abc = (start, start, start)
        self._pending = b""

    def update(self, data: memoryview | bytes, /) -> None:
        """Mix all bytes so far but the last 1 to 12 into the state of three words."""
        data = self._pending + bytes(data)
        mixed = (len(data) - 1) // 12 * 12 if data else 0
        m, (a, b, c) = _MASK, self._abc
        for x, y, z in struct.iter_unpack("<III", data[:mixed]):
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
        self._pending = data[mixed:]

    def digest(self) -> bytes:
        m = _MASK
        a, b, c = self._abc
        last = c
        if self._pending:
            x, y, z = struct.unpack("<III", self._pending.ljust(12, b"\0"))
            a, b, c = (a + x) & m, (b + y) & m, (c + z) & m
            for k in (14, 11, 25, 16, 4, 14, 24):  # each step mixes b into c and moves on
                c = ((c ^ b) - (b << k & m | b >> (32 - k))) & m
                a, b, c = b, c, a
            last = b
        return int(last).to_bytes(4, "little")


def lookup3(data: bytes) -> int:
    """Return lookup3 of bytes in memory."""
    running = Lookup3(len(data))
    running.update(data)
    return int.from_bytes(running.digest(), "little")


class Fletcher32:
    """Fletcher-32 over big-endian words of 16 bits (H5checksum.c), in which a sum of 65535 is not reduced."""

    def __init__(self) -> None:
        self._first = self._second = 0
        self._pending = b""

    def update(self, data: memoryview | bytes, /) -> None:
        if self._pending or len(data) % 2:
            data = self._pending + bytes(data)
            even = len(data) & ~1
            data, self._pending = data[:even], data[even:]
        words = array("H", bytes(data))
        if sys.byteorder == "little":
            words.byteswap()
        self._second += len(words) * self._first + sum(accumulate(words))
        self._first += sum(words)

    def digest(self) -> bytes:
        """Return both sums as four little-endian bytes; a zero byte completes the last word."""
        if self._pending:
            self.update(b"\0")
        first, second = ((s - 1) % 65535 + 1 if s else 0 for s in (self._first, self._second))
        return (second << 16 | first).to_bytes(4, "little")


MAGIC = b"\x89HDF\r\n\x1a\n"
DATASPACE, LINK_INFO, DATATYPE, LINK, EXTERNAL, LAYOUT = 0x01, 0x02, 0x03, 0x06, 0x07, 0x08
FILTERS, ATTRIBUTE, CONTINUATION, SYMBOL_TABLE = 0x0B, 0x0C, 0x10, 0x11
TREE_RANKS, ATTRIBUTE_INFO, LINKS = 0x13, 0x15, 0x16
SHARED = 2
"""Flag of a message whose body is only the place of the real body."""


class Ranks(NamedTuple):
    """Half of the most entries in a leaf of a group, in a node of a group's tree, and of a tree of chunks."""

    leaf: int = 4
    group: int = 16
    chunks: int = 32


class Superblock(NamedTuple):
    """The superblock; ``scratch_pad`` has the addresses of the root group's tree and heap, or is empty."""

    version: int
    size: int
    end: int
    root: int
    extension: int
    ranks: Ranks
    scratch_pad: bytes = b""
    open_flags: int = 0
    """Flags that a writer sets when it opens the file, and clears when it closes the file."""


class Message(NamedTuple):
    """One message: its body, and the offset of the body in the file."""

    type: int
    flags: int
    body: bytes
    at: int


class Header(NamedTuple):
    """One object's header: its messages, and the number of hard links that it counts (0: unknown)."""

    messages: tuple[Message, ...]
    links: int

    def find(self, kind: int) -> Message | None:
        """Return the first message of a type, None if there is none."""
        return next((m for m in self.messages if m.type == kind), None)


def read_superblock(source: Source, anatomy: Anatomy) -> Superblock:
    """Return the superblock, and explain its bytes. Raise Damage."""
    head = source.read(0, min(source.size, 104))
    start, size = _measure_superblock(head, source.size)
    base, second, end = struct.unpack_from("<QQQ", head, start)
    if base or (second != UNDEFINED and second >= end) or not size <= end < 1 << 62:
        raise Damage("bad-header", "the addresses in the superblock contradict each other", start)
    if end > source.size:
        why = f"the superblock says that the file ends at byte {end}; it has {source.size}"
        raise Damage("truncated", why, source.size)
    anatomy.metadata["superblock"] = version = head[8]
    if version >= 2:
        anatomy.explain(0, size, "superblock, under its own checksum")
        (root,) = struct.unpack_from("<Q", head, start + 24)
        flags = head[11] if version == 3 else 0
        return Superblock(version, size, end, root, second, Ranks(), open_flags=flags)
    anatomy.explain(0, 16, "superblock: signature, versions, sizes")
    anatomy.explain(16, start - 16, "superblock: ranks of its trees, flags", Guard.UNPROTECTED)
    anatomy.explain(start, 24, "superblock: where the file begins and ends")
    anatomy.explain(start + 24, size - start - 24, "superblock: root group", Guard.UNPROTECTED)
    leaf, group, _, chunks = struct.unpack_from("<HHIH", head, 16)
    root, cached = struct.unpack_from("<QI", head, start + 40)
    ranks = Ranks(leaf, group, chunks) if version else Ranks(leaf, group)
    scratch_pad = head[start + 56 : start + 72] if cached == 1 else b""
    return Superblock(version, size, end, root, UNDEFINED, ranks, scratch_pad)


def _measure_superblock(head: bytes, total: int) -> tuple[int, int]:
    """Return the offset of the addresses in the superblock, and its size in bytes. Raise Damage."""
    short = Damage("truncated", f"the file has {total} bytes, less than its superblock", total)
    if len(head) < 48:
        raise short
    if not head.startswith(MAGIC):
        raise Damage("bad-header", "the file does not begin with HDF5's signature", 0)
    version = head[8]
    if version in (0, 1):
        start = 24 + 4 * version
        size = start + 72  # four addresses and the entry of the root group
        good = not any((head[9], head[10], head[11], head[12], head[15])) and head[13:15] == b"\x08\x08"
    elif version in (2, 3):
        start, size = 12, 48
        good = head[9:11] == b"\x08\x08"
        if lookup3(head[:44]) != int.from_bytes(head[44:48], "little"):
            raise Damage("crc-mismatch", "the superblock differs from its checksum", 0)
    else:
        raise Damage("bad-header", f"superblock version {version} is not known", 8)
    if not good:
        raise Damage("bad-header", "a field of the superblock has a value that the library never writes", 9)
    if len(head) < size:
        raise short
    return start, size


def read_header(blocks: Blocks, address: int, what: str) -> Header:
    """Return an object header with the messages in its continuations. Raise Damage."""
    what = f"the header of {what}"
    start = blocks.source.read(address, 16) if 0 <= address <= blocks.end - 16 else b""
    if start.startswith(b"OHDR"):
        return _read_header_version_2(blocks, address, what)
    if start[:2] != b"\1\0":
        raise make_damage(f"{what} belongs at byte {address}, but none is there", address)
    first = blocks.read(address, 16, what)
    _, count, links, size = first.numbers(2, 2, 4, 4)
    messages, waiting = list[Message](), [[address + 16, size]]
    while waiting:
        at, length = waiting.pop()
        data = blocks.read(at, length, what)
        while data.at < length:
            kind, size, flags, _ = data.numbers(2, 2, 1, 3)
            messages.append(Message(kind, flags, data.take(size), at + data.at - size))
            waiting += _find_continuations(messages[-1:], what)
    if len(messages) != count:
        raise make_damage(f"{what} has {len(messages)} messages and says {count}", address)
    return Header(tuple(messages), links)


def _read_header_version_2(blocks: Blocks, address: int, what: str) -> Header:
    """Return an object header of version 2, which has checksums. Raise Damage."""
    head = Fields(blocks.source.read(address, min(34, blocks.end - address)), address, what, 4)
    head.expect(2, "version")
    flags = head.number(1)
    head.take(16 * (flags >> 5 & 1) + 4 * (flags >> 4 & 1))
    size = head.number(1 << (flags & 3))
    first = blocks.read_summed(address, head.at + size + 4, what, b"OHDR")
    first.at = head.at
    tracked = bool(flags & 4)
    messages = list(_read_messages(first, tracked))
    waiting = _find_continuations(messages, what)
    while waiting:
        at, length = waiting.pop()
        if length < 8:
            raise make_damage(f"{what} goes on in {length} bytes", at)
        more = list(_read_messages(blocks.read_summed(at, length, what, b"OCHK"), tracked))
        waiting += _find_continuations(more, what)
        messages += more
    count = next((m.body for m in messages if m.type == LINKS), b"\0\1\0\0\0")
    return Header(tuple(messages), int.from_bytes(count[1:5], "little"))


def _read_messages(block: Fields, tracked: bool) -> Iterator[Message]:
    """Yield the messages before a block's checksum; fewer bytes than a message takes are a gap at the end."""
    fields, least = Fields(block.data[:-4], block.file_at, block.what, block.at), 6 if tracked else 4
    while len(fields.data) - fields.at >= least:
        kind, size, flags = fields.numbers(1, 2, 1)
        fields.take(least - 4)
        yield Message(kind, flags, fields.take(size), fields.file_at + fields.at - size)


def _find_continuations(messages: list[Message], what: str) -> list[list[int]]:
    """Return [address, length] of each block of messages to which continuation messages lead."""
    return [Fields(m.body, m.at, what).numbers(8, 8) for m in messages if m.type == CONTINUATION]
