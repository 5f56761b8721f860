"""Object headers of HDF5, versions 1 and 2: the messages of which a group, an array or a type consists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ckpt_tools.formats.common.format import Damage
from ckpt_tools.formats.hdf5.blocks import Blocks, Fields

DATASPACE, LINK_INFO, DATATYPE, LINK, EXTERNAL, LAYOUT = 0x01, 0x02, 0x03, 0x06, 0x07, 0x08
ATTRIBUTE, FILTERS, CONTINUATION, SYMBOL_TABLE, TREE_RANKS, ATTRIBUTE_INFO, LINKS = (
    0x0C,
    0x0B,
    0x10,
    0x11,
    0x13,
    0x15,
    0x16,
)
SHARED = 2
"""Flag of a message whose body only says where it lies."""


class Message(NamedTuple):
    """One message: its body, and where that lies in the file."""

    type: int
    flags: int
    body: bytes
    at: int


class Header(NamedTuple):
    """An object: its messages, and how many hard links it counts (0: not told)."""

    messages: tuple[Message, ...]
    links: int

    def first(self, kind: int) -> Message | None:
        """The first message of a type."""
        return next((m for m in self.messages if m.type == kind), None)


def header(blocks: Blocks, address: int, what: str) -> Header:
    """Read an object header with its continuations. Raises Damage."""
    what = f"the header of {what}"
    start = blocks.source.read(address, 16) if 0 <= address <= blocks.end - 16 else b""
    if start.startswith(b"OHDR"):
        return _version_2(blocks, address, what)
    if start[:2] == b"\1\0":
        return _version_1(blocks, address, what)
    raise Damage("bad-header", f"{what} belongs at byte {address}, but none is there"[:500], address)


def _version_1(blocks: Blocks, address: int, what: str) -> Header:
    count, links, size = Fields(blocks.read(address, 16, what), address, what, 2).numbers(2, 4, 4)
    messages, waiting = list[Message](), [(address + 16, size)]
    while waiting:
        at, length = waiting.pop()
        data = Fields(blocks.read(at, length, what), at, what)
        while data.at < length:
            kind, size, flags, _ = data.numbers(2, 2, 1, 3)
            body = Message(kind, flags, data.take(size), at + data.at - size)
            messages.append(body)
            if kind == CONTINUATION:
                waiting.append(_continued(body, what))
    if len(messages) != count:
        raise Damage("bad-header", f"{what} has {len(messages)} messages and says {count}"[:500], address)
    return Header(tuple(messages), links)


def _version_2(blocks: Blocks, address: int, what: str) -> Header:
    head = Fields(blocks.source.read(address, min(34, blocks.end - address)), address, what, 4)
    head.expect(2, "version")
    flags = head.number(1)
    head.take(16 * (flags >> 5 & 1) + 4 * (flags >> 4 & 1))
    size = head.number(1 << (flags & 3))
    whole = blocks.summed(address, head.at + size + 4, what, b"OHDR")
    tracked = bool(flags & 4)
    messages = list(_messages(whole, head.at, address, what, tracked))
    waiting = [_continued(m, what) for m in messages if m.type == CONTINUATION]
    while waiting:
        at, length = waiting.pop()
        if length < 8:
            raise Damage("bad-header", f"{what} goes on in {length} bytes"[:500], at)
        more = list(_messages(blocks.summed(at, length, what, b"OCHK"), 4, at, what, tracked))
        waiting += (_continued(m, what) for m in more if m.type == CONTINUATION)
        messages += more
    counted = next((m.body for m in messages if m.type == LINKS), b"\0\1\0\0\0")
    return Header(tuple(messages), int.from_bytes(counted[1:5], "little"))


def _messages(data: bytes, start: int, address: int, what: str, tracked: bool) -> Iterator[Message]:
    """The messages between ``start`` and the checksum; what is too short for one is a gap."""
    fields, least = Fields(data[:-4], address, what, start), 6 if tracked else 4
    while len(data) - 4 - fields.at >= least:
        kind, size, flags = fields.numbers(1, 2, 1)
        fields.take(least - 4)
        yield Message(kind, flags, fields.take(size), address + fields.at - size)


def _continued(m: Message, what: str) -> tuple[int, int]:
    at, length = Fields(m.body, m.at, what).numbers(8, 8)
    return at, length
