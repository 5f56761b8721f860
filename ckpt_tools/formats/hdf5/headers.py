"""HDF5's superblock, versions 0 to 3, and object headers, versions 1 and 2: the messages of which a group, an
array or a type consists.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from ckpt_tools.formats.common.format import Anatomy, Damage
from ckpt_tools.formats.hdf5.blocks import UNDEFINED, Blocks, Fields, bad, lookup3
from ckpt_tools.model.report import Guard
from ckpt_tools.storage import Source

MAGIC = b"\x89HDF\r\n\x1a\n"
DATASPACE, LINK_INFO, DATATYPE, LINK, EXTERNAL, LAYOUT = 0x01, 0x02, 0x03, 0x06, 0x07, 0x08
FILTERS, ATTRIBUTE, CONTINUATION, SYMBOL_TABLE = 0x0B, 0x0C, 0x10, 0x11
TREE_RANKS, ATTRIBUTE_INFO, LINKS = 0x13, 0x15, 0x16
SHARED = 2
"""Flag of a message whose body only says where it lies."""


class Ranks(NamedTuple):
    """Half of the entries that a leaf, a node of a tree of groups, and one of chunks have room for."""

    leaf: int = 4
    group: int = 16
    chunks: int = 32


class Superblock(NamedTuple):
    """``cached`` is what the entry of the root group remembers of it."""

    version: int
    size: int
    end: int
    root: int
    extension: int
    ranks: Ranks
    cached: bytes = b""
    open_for: int = 0
    """Flags that a writer sets, and clears when it closes the file."""


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
        return next((m for m in self.messages if m.type == kind), None)


def read_superblock(source: Source, anatomy: Anatomy) -> Superblock:
    """Read the superblock. Raises Damage."""
    head = source.read(0, min(source.size, 104))
    start, size = _frame(head, source.size)
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
        return Superblock(version, size, end, root, second, Ranks(), open_for=head[11] if version == 3 else 0)
    anatomy.explain(0, 16, "superblock: signature, versions, sizes")
    anatomy.explain(16, start - 16, "superblock: ranks of its trees, flags", Guard.UNPROTECTED)
    anatomy.explain(start, 24, "superblock: where the file begins and ends")
    anatomy.explain(start + 24, size - start - 24, "superblock: root group", Guard.UNPROTECTED)
    leaf, group, _, chunks = struct.unpack_from("<HHIH", head, 16)
    root, cached = struct.unpack_from("<QI", head, start + 40)
    ranks = Ranks(leaf, group, chunks) if version else Ranks(leaf, group)
    told = head[start + 56 : start + 72] if cached == 1 else b""
    return Superblock(version, size, end, root, UNDEFINED, ranks, told)


def _frame(head: bytes, total: int) -> tuple[int, int]:
    """Where the addresses in the superblock begin, and how many bytes it has. Raises Damage."""
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
    """Read an object header with its continuations. Raises Damage."""
    what = f"the header of {what}"
    start = blocks.source.read(address, 16) if 0 <= address <= blocks.end - 16 else b""
    if start.startswith(b"OHDR"):
        return _read_version_2(blocks, address, what)
    if start[:2] != b"\1\0":
        raise bad(f"{what} belongs at byte {address}, but none is there", address)
    first = blocks.read(address, 16, what)
    _, count, links, size = first.numbers(2, 2, 4, 4)
    messages, waiting = list[Message](), [(address + 16, size)]
    while waiting:
        at, length = waiting.pop()
        data = blocks.read(at, length, what)
        while data.at < length:
            kind, size, flags, _ = data.numbers(2, 2, 1, 3)
            messages.append(Message(kind, flags, data.take(size), at + data.at - size))
            waiting += _find_continuations(messages[-1:], what)
    if len(messages) != count:
        raise bad(f"{what} has {len(messages)} messages and says {count}", address)
    return Header(tuple(messages), links)


def _read_version_2(blocks: Blocks, address: int, what: str) -> Header:
    head = Fields(blocks.source.read(address, min(34, blocks.end - address)), address, what, 4)
    head.expect(2, "version")
    flags = head.number(1)
    head.take(16 * (flags >> 5 & 1) + 4 * (flags >> 4 & 1))
    size = head.number(1 << (flags & 3))
    whole = blocks.summed(address, head.at + size + 4, what, b"OHDR")
    whole.at = head.at
    tracked = bool(flags & 4)
    messages = list(_read_messages(whole, tracked))
    waiting = _find_continuations(messages, what)
    while waiting:
        at, length = waiting.pop()
        if length < 8:
            raise bad(f"{what} goes on in {length} bytes", at)
        more = list(_read_messages(blocks.summed(at, length, what, b"OCHK"), tracked))
        waiting += _find_continuations(more, what)
        messages += more
    counted = next((m.body for m in messages if m.type == LINKS), b"\0\1\0\0\0")
    return Header(tuple(messages), int.from_bytes(counted[1:5], "little"))


def _read_messages(whole: Fields, tracked: bool) -> Iterator[Message]:
    """The messages before the checksum; what is too short for one is a gap."""
    fields, least = Fields(whole.data[:-4], whole.file_at, whole.what, whole.at), 6 if tracked else 4
    while len(fields.data) - fields.at >= least:
        kind, size, flags = fields.numbers(1, 2, 1)
        fields.take(least - 4)
        yield Message(kind, flags, fields.take(size), fields.file_at + fields.at - size)


def _find_continuations(messages: list[Message], what: str) -> list[tuple[int, int]]:
    found = [Fields(m.body, m.at, what).numbers(8, 8) for m in messages if m.type == CONTINUATION]
    return [(at, length) for at, length in found]
