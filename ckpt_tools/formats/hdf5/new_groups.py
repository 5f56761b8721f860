"""Groups of the second kind: links in messages, or, where there are many, in a fractal heap that B-trees of
version 2 index. All of it is under checksums.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from operator import attrgetter
from typing import NamedTuple

from ckpt_tools.checksum import Extent
from ckpt_tools.formats.common.format import Damage
from ckpt_tools.formats.hdf5.blocks import MOST, UNDEFINED, Blocks, Fields
from ckpt_tools.formats.hdf5.object_header import ATTRIBUTE_INFO, LINK, LINK_INFO, Header, Message
from ckpt_tools.formats.hdf5.old_groups import Link
from ckpt_tools.model.report import Guard

_BY_NAME, _HUGE, _ATTRIBUTES = 5, 1, 8
_SOFT, _EXTERNAL = 1, 64
"""Kinds of links that lead to a name in this file, and to one in another."""
_MAX_BITS = 64


def links(blocks: Blocks, group: Header, what: str) -> Iterator[Link]:
    """The links in the messages of a group, and those in its heap. Raises Damage."""
    for m in group.messages:
        if m.type == LINK:
            yield _link(Fields(m.body, m.at, f"a link of {what}"))
        elif m.type == LINK_INFO:
            info = Fields(m.body, m.at, f"the link info of {what}", 1)
            info.take(8 * (info.number(1) & 1))
            yield from _dense(blocks, info, what)


def _link(f: Fields) -> Link:
    f.expect(1, "version")
    flags = f.number(1)
    kind = f.number(1) if flags & 8 else 0
    f.take(8 * (flags >> 2 & 1) + (flags >> 4 & 1))
    name = f.take(f.number(1 << (flags & 3)))
    if kind == 0:
        return Link(name, f.number(8))
    value = f.take(f.number(2))
    # one byte of version and flags, the file's name and the object's; of another kind only its class knows
    other = value[1:].partition(b"\0")[0] if kind == _EXTERNAL else b"a file that its class names"
    return Link(name, -1, outside=other.decode(errors="replace") if kind != _SOFT else "")


def _dense(blocks: Blocks, info: Fields, what: str) -> Iterator[Link]:
    home, by_name = info.numbers(8, 8)
    by_order = info.number(8) if info.data[1] & 2 else UNDEFINED
    if home == UNDEFINED:
        return
    heap = FractalHeap(blocks, home, f"the heap of {what}")
    for record in records(blocks, by_name, f"the names of {what}"):
        if record.kind == _BY_NAME:
            yield _link(heap.held(record.data[4:]))
    if by_order != UNDEFINED:
        for _ in records(blocks, by_order, f"the order of {what}"):
            pass  # its checksums are what is wanted


def attributes(blocks: Blocks, m: Message, what: str) -> Iterator[Fields]:
    """The messages of an object with many attributes; walks its heap and its trees."""
    assert m.type == ATTRIBUTE_INFO  # noqa: S101
    info = Fields(m.body, m.at, f"the attribute info of {what}", 1)
    flags = info.number(1)
    info.take(2 * (flags & 1))
    home, *trees = info.numbers(8, 8, *([8] if flags & 2 else []))
    if home != UNDEFINED:
        heap = FractalHeap(blocks, home, f"the attributes of {what}")
        for at in trees:
            for record in records(blocks, at, f"an index of the attributes of {what}"):
                if record.kind == _ATTRIBUTES:
                    yield heap.held(record.data[:8])


class _Block(NamedTuple):
    """A direct block of a heap: bytes ``start`` to ``stop`` of its objects' addresses, and where it lies."""

    start: int
    stop: int
    address: int


class FractalHeap:
    """Where the objects of a heap lie: its blocks, each as large as all before it in twice as many rows."""

    def __init__(self, blocks: Blocks, address: int, what: str) -> None:
        self.blocks, self.what, self.address = blocks, what, address
        self.direct: list[_Block] = []
        self.huge: dict[int, tuple[int, int]] = {}
        peek = Fields(blocks.source.read(address, 9) if address + 9 <= blocks.end else b"", address, what, 5)
        self.id_length, filtered = peek.numbers(2, 2)
        length = 146 + (12 + filtered if filtered else 0)
        head = Fields(blocks.summed(address, length, what, b"FRHP"), address, what, 9)
        flags, largest = head.numbers(1, 4)
        huge = head.numbers(*[8] * 12)[1]
        self.width, self.start, self.most, self.bits, _ = head.numbers(2, 8, 8, 2, 2)
        root, rows = head.numbers(8, 2)
        self.summed, self.offset_size = bool(flags & 2), (self.bits + 7) // 8
        self.length_size = min((self.most.bit_length() + 6) // 8, (largest.bit_length() + 7) // 8)
        self._left = blocks.end
        self._sane(head)
        if filtered:
            raise Damage("too-complex", f"{what} is compressed"[:500], address)
        if root != UNDEFINED:
            self._walk(root, rows)
        self.direct.sort()
        if huge != UNDEFINED:
            self._huge(huge)

    def _sane(self, head: Fields) -> None:
        sizes = (self.width, self.start, self.most)
        if any(n <= 0 or n & (n - 1) for n in sizes) or self.most < self.start or self.bits > _MAX_BITS:
            raise head.wrong(f"blocks of {self.start} to {self.most} bytes, {self.width} in a row")

    def _size(self, row: int) -> int:
        return self.start << max(row - 1, 0)

    def _walk(self, root: int, rows: int) -> None:
        """All blocks, from the root on; rows 0: it is a direct one."""
        if rows == 0:
            self._direct(root, self.start, 0)
            return
        waiting = [(root, rows, 0)]
        while waiting:
            waiting += self._indirect(*waiting.pop())

    def _indirect(self, address: int, rows: int, offset: int) -> Iterator[tuple[int, int, int]]:
        what = f"an indirect block of {self.what}"
        direct_rows = (self.most // self.start).bit_length() + 1
        if rows > _MAX_BITS:
            raise Damage("bad-header", f"{what} has {rows} rows"[:500], address)
        length = 13 + self.offset_size + 8 * rows * self.width + 4
        data = Fields(self.blocks.summed(address, length, what, b"FHIB"), address, what, 4)
        data.expect(0, "version")
        data.expect(self.address, "heap", 8)
        data.expect(offset, "offset", self.offset_size)
        for row in range(rows):
            for _ in range(self.width):
                child, size = data.number(8), self._size(row)
                if child != UNDEFINED and row < direct_rows:
                    self._direct(child, size, offset)
                elif child != UNDEFINED:
                    yield child, (size // (self.start * self.width)).bit_length(), offset
                offset += size

    def _direct(self, address: int, size: int, offset: int) -> None:
        blocks, what = self.blocks, f"a block of {self.what}"
        blocks.take(address, size, what)
        head = 13 + self.offset_size
        if size < head + 4:
            raise Damage("bad-header", f"{what} has {size} bytes"[:500], address)
        if self.summed:
            at = address + head
            around = (Extent(address, head), b"\0\0\0\0", Extent(at + 4, size - head - 4))
            blocks.sum(what, blocks.source.read(at, 4), around, at)
        else:
            blocks.anatomy.explain(address, size, what, Guard.UNPROTECTED)
        data = Fields(blocks.source.read(address, min(size, head)), address, what, 5)
        if data.data[:5] != b"FHDB\0":
            raise data.wrong("no signature")
        data.expect(self.address, "heap", 8)
        data.expect(offset, "offset", self.offset_size)
        self.direct.append(_Block(offset, offset + size, address))

    def _huge(self, address: int) -> None:
        for record in records(self.blocks, address, f"large objects of {self.what}"):
            if record.kind == _HUGE:
                at, length, number = Fields(record.data, address, self.what).numbers(8, 8, 8)
                self.huge[number] = at, length
                self.blocks.take(at, length, f"a large object of {self.what}")

    def held(self, name: bytes) -> Fields:
        """The object of a heap ID. Raises Damage."""
        what = f"an object of {self.what}"
        told = Fields(name, self.address, what)
        kind = told.number(1) >> 4 & 3
        if kind == 2:  # it is in the ID itself
            return Fields(name[1:], self.address, what)
        if kind == 1 and (huge := self.huge.get(int.from_bytes(name[1:], "little"))) is not None:
            return Fields(self.blocks.source.read(huge[0], min(huge[1], MOST)), huge[0], what)
        at, length = told.numbers(self.offset_size, self.length_size)
        near = bisect_right(self.direct, at, key=attrgetter("start")) - 1
        home = self.direct[near] if near >= 0 else _Block(0, 0, 0)
        self._left -= length
        if kind or at + length > home.stop or self._left < 0:
            raise Damage("bad-header", f"{what} at {at} lies in no block of it"[:500], self.address)
        place = home.address + at - home.start
        return Fields(self.blocks.source.read(place, length), place, what)


class Record(NamedTuple):
    """One record of a B-tree, version 2, and the kind of that tree."""

    kind: int
    data: bytes


def records(blocks: Blocks, address: int, what: str) -> Iterator[Record]:
    """The records of a B-tree, version 2. Raises Damage."""
    head = Fields(blocks.summed(address, 38, what, b"BTHD"), address, what, 4)
    head.expect(0, "version")
    kind, node, size, depth, _, _, root, count, total = head.numbers(1, 4, 2, 2, 1, 1, 8, 2, 8)
    if not 0 < size <= node - 10 or depth > _MAX_BITS:
        raise head.wrong(f"records of {size} bytes in nodes of {node}, {depth} deep")
    if root == UNDEFINED:
        return
    counted, totals = _pointers(node, size, depth)
    waiting, found = [(root, depth, count)], 0
    while waiting:
        at, level, count = waiting.pop()
        found += count
        pointer = 8 + counted + totals[level] if level else 0
        length = 6 + count * size + (count + 1) * pointer + 4
        if length > node:
            raise Damage("bad-header", f"a node of {what} says it has {count} records"[:500], at)
        signature = b"BTIN" if level else b"BTLF"
        data = Fields(blocks.summed(at, length, what, signature, room=node - length), at, what, 4)
        data.expect(0, "version")
        data.expect(kind, "type of node")
        for _ in range(count):
            yield Record(kind, data.take(size))
        for _ in range(count + 1 if level else 0):
            child, below = data.numbers(8, counted)
            data.take(totals[level])
            waiting.append((child, level - 1, below))
    if found != total:
        raise head.wrong(f"{found} records, where {total} are said to be")


def _pointers(node: int, size: int, depth: int) -> tuple[int, list[int]]:
    """How many bytes a node's pointers have for the records in a child, and at each level for all below."""
    most = (node - 10) // size
    counted, totals, below = (most.bit_length() + 7) // 8, [0, 0], most
    for level in range(1, depth):
        pointer = 8 + counted + totals[level]
        own = (node - 10 - pointer) // (size + pointer)
        below = (own + 1) * below + own
        totals.append((below.bit_length() + 7) // 8)
    return counted, totals
