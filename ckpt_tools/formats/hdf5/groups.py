"""Groups of HDF5: old groups keep names in a local heap, entries in leaves of a B-tree of version 1, without
checksums; new groups keep links in messages, or in a fractal heap with B-trees of version 2, with checksums.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator
from operator import attrgetter
from typing import NamedTuple

from ckpt_tools.checksum import Extent
from ckpt_tools.formats.common.format import Damage
from ckpt_tools.formats.hdf5 import blocks as structures
from ckpt_tools.formats.hdf5.blocks import UNDEFINED, Blocks, Fields, Header, Message, Ranks, make_damage
from ckpt_tools.model.report import Guard

_ENTRY = struct.Struct("<QQII16s")
_CACHED_GROUP, _CACHED_SOFT = 1, 2
_BY_NAME, _HUGE, _ATTRIBUTES = 5, 1, 8
"""Types of B-trees of version 2: links by name, huge objects of a heap, attributes by name."""
_SOFT, _EXTERNAL = 1, 64
"""Kinds of links to a name in the same file, and to a name in another file."""
_MAX_BITS = 64


class Link(NamedTuple):
    """One name in a group; ``address`` is the offset of the object's header, -1 unless the link is hard."""

    name: bytes
    address: int
    scratch_pad: bytes = b""
    """The addresses of the group's tree and heap by its entry, b"" if the entry has none."""
    external_file: str = ""
    """The other file that an external link leads to, else ""."""


def read_tree(
    blocks: Blocks, address: int, what: str, *, kind: int, key: int, rank: int
) -> Iterator[tuple[bytes, int]]:
    """Yield (key, address) of each entry in the leaves of a B-tree of version 1. Keys have ``key`` bytes,
    nodes at most 2 * ``rank`` entries. Raise Damage.
    """
    waiting = [(address, -1)]
    size = 24 + 2 * rank * (key + 8) + key
    while waiting:
        at, level = waiting.pop()
        data = blocks.read(at, size, what, b"TREE")
        data.expect(kind, "type of node")
        own_level, used, _, _ = data.numbers(1, 2, 8, 8)
        if used > 2 * rank or level not in (-1, own_level):
            raise data.make_damage(f"{used} entries at level {own_level}")
        entries = [(data.take(key), data.number(8)) for _ in range(used)]
        if own_level == 0:
            yield from entries
        else:
            waiting += ((child, own_level - 1) for _, child in reversed(entries))


def read_old_links(blocks: Blocks, body: bytes, what: str, ranks: Ranks) -> Iterator[Link]:
    """Yield the links of an old group; ``body`` is that of its symbol table message. Raise Damage."""
    at, heap = struct.unpack_from("<QQ", body.ljust(16, b"\0"))
    names = read_heap(blocks, heap, f"the heap of {what}")
    last, total = b"", 0
    for _, leaf in read_tree(blocks, at, f"the tree of {what}", kind=0, key=8, rank=ranks.group):
        data = blocks.read(leaf, 8 + 2 * ranks.leaf * _ENTRY.size, f"a leaf of {what}", b"SNOD")
        data.expect(1, "version")
        _, used = data.numbers(1, 2)
        if used > 2 * ranks.leaf:
            raise data.make_damage(f"{used} entries")
        for _ in range(used):
            start, target, cached, _, scratch = _ENTRY.unpack(data.take(_ENTRY.size))
            end = names.find(b"\0", start)
            if end <= start or cached > _CACHED_SOFT:
                raise data.make_damage(f"an entry with its name at {start} and kind {cached}")
            name = names[start:end]
            total += len(name) + 1
            if name <= last or total > len(names):
                raise make_damage(f"the names in {what} are out of order", leaf)
            last = name
            soft = cached == _CACHED_SOFT or target == UNDEFINED
            yield Link(name, -1 if soft else target, scratch if cached == _CACHED_GROUP else b"")


def read_heap(blocks: Blocks, address: int, what: str) -> bytes:
    """Return the bytes of a local heap: names, each closed by a zero byte. Raise Damage."""
    head = blocks.read(address, 32, what, b"HEAP")
    head.expect(0, "version")
    _, size, _, at = head.numbers(3, 8, 8, 8)
    return blocks.read(at, size, f"names in {what}").data


def read_links(blocks: Blocks, group: Header, what: str) -> Iterator[Link]:
    """Yield the links in a new group's messages and in its fractal heap. Raise Damage."""
    for m in group.messages:
        if m.type == structures.LINK:
            yield _read_link(Fields(m.body, m.at, f"a link of {what}"))
        if m.type != structures.LINK_INFO:
            continue
        info = Fields(m.body, m.at, f"the link info of {what}", 1)
        info.take(8 * (info.number(1) & 1))
        home, by_name = info.numbers(8, 8)
        by_order = info.number(8) if info.data[1] & 2 else UNDEFINED
        if home == UNDEFINED:
            continue
        heap = FractalHeap(blocks, home, f"the heap of {what}")
        for kind, data in read_records(blocks, by_name, f"the names of {what}"):
            if kind == _BY_NAME:
                yield _read_link(heap.read_object(data[4:]))
        if by_order != UNDEFINED:
            for _ in read_records(blocks, by_order, f"the order of {what}"):
                pass  # read only for the checksums, which read_records adds


def _read_link(f: Fields) -> Link:
    """Return the link in a link message. Raise Damage."""
    f.expect(1, "version")
    flags = f.number(1)
    kind = f.number(1) if flags & 8 else 0
    f.take(8 * (flags >> 2 & 1) + (flags >> 4 & 1))
    name = f.take(f.number(1 << (flags & 3)))
    if kind == 0:
        return Link(name, f.number(8))
    value = f.take(f.number(2))
    # a byte of version and flags, the file's name and the object's; other kinds are known to their class only
    other = value[1:].partition(b"\0")[0] if kind == _EXTERNAL else b"a file that its class names"
    return Link(name, -1, external_file=other.decode(errors="replace") if kind != _SOFT else "")


def read_attributes(blocks: Blocks, m: Message, what: str) -> Iterator[Fields]:
    """Yield the attributes of an object with many, which lie in a heap; checks the heap and its trees."""
    info = Fields(m.body, m.at, f"the attribute info of {what}", 1)
    flags = info.number(1)
    info.take(2 * (flags & 1))
    home, *trees = info.numbers(8, 8, *([8] if flags & 2 else []))
    if home != UNDEFINED:
        heap = FractalHeap(blocks, home, f"the attributes of {what}")
        for at in trees:
            for kind, data in read_records(blocks, at, f"an index of the attributes of {what}"):
                if kind == _ATTRIBUTES:
                    yield heap.read_object(data[:8])


class _Block(NamedTuple):
    """One direct block: bytes ``start`` to ``stop`` of the heap, which lie at ``address`` of the file."""

    start: int
    stop: int
    address: int


class FractalHeap:
    """One fractal heap: its direct blocks, whose size doubles from the third row on, and its huge objects."""

    def __init__(self, blocks: Blocks, address: int, what: str) -> None:
        self.blocks, self.what, self.address = blocks, what, address
        self.direct_blocks: list[_Block] = []
        self.huge_objects: dict[int, tuple[int, int]] = {}
        peek = Fields(blocks.source.read(address, 9) if address + 9 <= blocks.end else b"", address, what, 5)
        _, filtered = peek.numbers(2, 2)
        head = blocks.read_summed(address, 146 + (12 + filtered if filtered else 0), what, b"FRHP")
        _, flags, largest = head.numbers(5, 1, 4)
        huge = head.numbers(*[8] * 12)[1]
        self.width, self.min_size, self.max_size, bits, _ = head.numbers(2, 8, 8, 2, 2)
        root, rows = head.numbers(8, 2)
        self.has_checksums, self.offset_size = bool(flags & 2), (bits + 7) // 8
        self.length_size = min((self.max_size.bit_length() + 6) // 8, (largest.bit_length() + 7) // 8)
        self._bytes_left = blocks.end
        sizes = (self.width, self.min_size, self.max_size)
        if any(n <= 0 or n & (n - 1) for n in sizes) or self.max_size < self.min_size or bits > _MAX_BITS:
            why = f"blocks of {self.min_size} to {self.max_size} bytes, {self.width} in a row"
            raise head.make_damage(why)
        if filtered:
            raise Damage("too-complex", f"{what} is compressed"[:500], address)
        if root != UNDEFINED and rows == 0:
            self._add_direct_block(root, self.min_size, 0)
        elif root != UNDEFINED:
            waiting = [(root, rows, 0)]
            while waiting:
                waiting += self._read_indirect_block(*waiting.pop())
        self.direct_blocks.sort()
        if huge != UNDEFINED:
            self._read_huge_objects(huge)

    def _read_huge_objects(self, address: int) -> None:
        """Fill ``huge_objects`` with number -> (address, length) from a B-tree. Raise Damage."""
        for kind, data in read_records(self.blocks, address, f"large objects of {self.what}"):
            if kind == _HUGE:
                at, length, number = Fields(data, address, self.what).numbers(8, 8, 8)
                self.huge_objects[number] = at, length
                self.blocks.add_span(at, length, f"a large object of {self.what}")

    def _read_indirect_block(self, address: int, rows: int, offset: int) -> Iterator[tuple[int, int, int]]:
        """Add the direct blocks below an indirect block; yield (address, rows, offset) of indirect ones."""
        what = f"an indirect block of {self.what}"
        direct_rows = (self.max_size // self.min_size).bit_length() + 1
        if rows > _MAX_BITS:
            raise make_damage(f"{what} has {rows} rows", address)
        length = 13 + self.offset_size + 8 * rows * self.width + 4
        data = self.blocks.read_summed(address, length, what, b"FHIB")
        data.expect(0, "version")
        data.expect(self.address, "heap", 8)
        data.expect(offset, "offset", self.offset_size)
        for row in range(rows):
            size = self.min_size << max(row - 1, 0)
            for _ in range(self.width):
                child = data.number(8)
                if child != UNDEFINED and row < direct_rows:
                    self._add_direct_block(child, size, offset)
                elif child != UNDEFINED:
                    yield child, (size // (self.min_size * self.width)).bit_length(), offset
                offset += size

    def _add_direct_block(self, address: int, size: int, offset: int) -> None:
        """Check a direct block, which lies at ``offset`` of the heap, and add it. Raise Damage."""
        blocks, what = self.blocks, f"a block of {self.what}"
        blocks.add_span(address, size, what)
        head = 13 + self.offset_size
        if size < head + 4:
            raise make_damage(f"{what} has {size} bytes", address)
        if self.has_checksums:
            at = address + head
            covered = (Extent(address, head), b"\0\0\0\0", Extent(at + 4, size - head - 4))
            blocks.add_sum(what, blocks.source.read(at, 4), covered, at)
        else:
            blocks.anatomy.explain(address, size, what, Guard.UNPROTECTED)
        data = Fields(blocks.source.read(address, min(size, head)), address, what, 5)
        if data.data[:5] != b"FHDB\0":
            raise data.make_damage("no signature")
        data.expect(self.address, "heap", 8)
        data.expect(offset, "offset", self.offset_size)
        self.direct_blocks.append(_Block(offset, offset + size, address))

    def read_object(self, heap_id: bytes) -> Fields:
        """Return an object by its ID: it is in the ID itself, huge, or in a direct block. Raise Damage."""
        what = f"an object of {self.what}"
        id_fields = Fields(heap_id, self.address, what)
        kind = id_fields.number(1) >> 4 & 3
        if kind == 2:  # the ID itself holds the object
            return Fields(heap_id[1:], self.address, what)
        if kind == 1 and (huge := self.huge_objects.get(int.from_bytes(heap_id[1:], "little"))) is not None:
            return Fields(self.blocks.source.read(huge[0], min(huge[1], structures.MOST)), huge[0], what)
        at, length = id_fields.numbers(self.offset_size, self.length_size)
        index = bisect_right(self.direct_blocks, at, key=attrgetter("start")) - 1
        block = self.direct_blocks[index] if index >= 0 else _Block(0, 0, 0)
        self._bytes_left -= length
        if kind or at + length > block.stop or self._bytes_left < 0:
            raise make_damage(f"{what} at {at} lies in no block of it", self.address)
        file_at = block.address + at - block.start
        return Fields(self.blocks.source.read(file_at, length), file_at, what)


def read_records(blocks: Blocks, address: int, what: str) -> Iterator[tuple[int, bytes]]:
    """Yield (kind of the tree, record) for each record of a B-tree of version 2. Raise Damage."""
    head = blocks.read_summed(address, 38, what, b"BTHD")
    head.expect(0, "version")
    kind, node, size, depth, _, _, root, count, total = head.numbers(1, 4, 2, 2, 1, 1, 8, 2, 8)
    if not 0 < size <= node - 10 or depth > _MAX_BITS:
        raise head.make_damage(f"records of {size} bytes in nodes of {node}, {depth} deep")
    if root == UNDEFINED:
        return
    # a pointer has bytes for the child's record count and, by level, for the total below it
    most = (node - 10) // size
    count_size, total_sizes, below = (most.bit_length() + 7) // 8, [0, 0], most
    for level in range(1, depth):
        pointer = 8 + count_size + total_sizes[level]
        own = (node - 10 - pointer) // (size + pointer)
        below = (own + 1) * below + own
        total_sizes.append((below.bit_length() + 7) // 8)
    waiting, found = [(root, depth, count)], 0
    while waiting:
        at, level, count = waiting.pop()
        found += count
        pointer = 8 + count_size + total_sizes[level] if level else 0
        length = 6 + count * size + (count + 1) * pointer + 4
        if length > node:
            raise make_damage(f"a node of {what} says it has {count} records", at)
        data = blocks.read_summed(at, length, what, b"BTIN" if level else b"BTLF", room=node - length)
        data.expect(0, "version")
        data.expect(kind, "type of node")
        for _ in range(count):
            yield kind, data.take(size)
        for _ in range(count + 1 if level else 0):
            child, child_count = data.numbers(8, count_size)
            data.take(total_sizes[level])
            waiting.append((child, level - 1, child_count))
    if found != total:
        raise head.make_damage(f"{found} records, where {total} are said to be")
