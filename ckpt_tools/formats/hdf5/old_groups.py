"""Groups of the first kind: names in a local heap, entries in the leaves of a B-tree. None has a checksum."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from ckpt_tools.formats.common.format import Damage
from ckpt_tools.formats.hdf5.blocks import UNDEFINED, Blocks, Fields

_ENTRY = struct.Struct("<QQII16s")
_NO_CACHE, _GROUP, _SOFT = 0, 1, 2


class Ranks(NamedTuple):
    """Half of the entries that a leaf, a node of a group's tree and one of a chunk tree have room for."""

    leaf: int
    group: int
    chunks: int


class Link(NamedTuple):
    """A name in a group; ``address`` is that of the object's header, -1 for links that are not hard."""

    name: bytes
    address: int
    cached: bytes = b""
    """Where the entry says that the group's tree and heap lie."""
    outside: str = ""
    """What of another file it leads to."""


def tree(blocks: Blocks, address: int, what: str, *, kind: int, key: int, rank: int) -> Iterator[list[bytes]]:
    """The leaves of a B-tree, version 1: for each its keys and addresses in turn, with a last key."""
    waiting = [(address, -1)]
    size = 24 + 2 * rank * (key + 8) + key
    while waiting:
        at, level = waiting.pop()
        data = Fields(blocks.read(at, size, what, b"TREE"), at, what, 4)
        data.expect(kind, "type of node")
        own, used, _, _ = data.numbers(1, 2, 8, 8)
        if used > 2 * rank or level not in (-1, own):
            raise data.wrong(f"{used} entries at level {own}")
        row = [data.take(n) for n in [*([key, 8] * used), key]]
        if own == 0:
            yield row
            continue
        below = [int.from_bytes(child, "little") for child in row[1::2]]
        waiting += ((child, own - 1) for child in reversed(below))


def links(blocks: Blocks, body: bytes, what: str, ranks: Ranks) -> Iterator[Link]:
    """The links of the group whose symbol table message this is. Raises Damage."""
    at, home = struct.unpack_from("<QQ", body.ljust(16, b"\0"))
    names = heap(blocks, home, f"the heap of {what}")
    last, total = b"", 0
    for row in tree(blocks, at, f"the tree of {what}", kind=0, key=8, rank=ranks.group):
        for child in row[1::2]:
            leaf = int.from_bytes(child, "little")
            for link in _leaf(blocks, leaf, names, f"a leaf of {what}", ranks.leaf):
                total += len(link.name) + 1
                if link.name <= last or total > len(names):
                    raise Damage("bad-header", f"the names in {what} are out of order"[:500], leaf)
                last = link.name
                yield link


def heap(blocks: Blocks, address: int, what: str) -> bytes:
    head = Fields(blocks.read(address, 32, what, b"HEAP"), address, what, 4)
    head.expect(0, "version")
    _, size, _, at = head.numbers(3, 8, 8, 8)
    return blocks.read(at, size, f"names in {what}")


def _leaf(blocks: Blocks, address: int, names: bytes, what: str, rank: int) -> Iterator[Link]:
    data = Fields(blocks.read(address, 8 + 2 * rank * _ENTRY.size, what, b"SNOD"), address, what, 4)
    data.expect(1, "version")
    _, used = data.numbers(1, 2)
    if used > 2 * rank:
        raise data.wrong(f"{used} entries")
    for _ in range(used):
        at, target, cached, _, scratch = _ENTRY.unpack(data.take(_ENTRY.size))
        end = names.find(b"\0", at)
        if end <= at or cached > _SOFT:
            raise data.wrong(f"an entry with its name at {at} and kind {cached}")
        soft = cached == _SOFT or target == UNDEFINED
        yield Link(names[at:end], -1 if soft else target, scratch if cached == _GROUP else b"")
