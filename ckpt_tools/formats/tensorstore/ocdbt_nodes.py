"""The records of an OCDBT database decoded into plain values: manifests, version tree nodes and B+tree nodes.

Facts: tensorstore 0.1.86, kvstore/ocdbt/format (config_codec.h, manifest.cc, version_tree_codec.h,
btree_codec.h, btree.cc).
All integers are varints unless a comment says otherwise; arrays are stored column by column.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Damage
from ckpt_tools.formats.tensorstore.ocdbt_record import (
    FEW_ENTRIES,
    MAX_ENTRIES,
    MAX_KEY,
    File,
    Place,
    Reader,
    bound,
    end,
    files,
    places,
    statistics,
)
from ckpt_tools.model.finding import Finding

_READINGS = 16


class Root(NamedTuple):
    """A reference to a B+tree node of this height; ``prefix`` begins all its keys, none is below ``least``"""

    place: Place
    height: int
    prefix: bytes = b""
    least: bytes = b""


class Versions(NamedTuple):
    """A reference to a version tree node of this height."""

    place: Place
    height: int


class Manifest(NamedTuple):
    """``numbered``: the versions are in files ``manifest.<16 hex digits>``."""

    numbered: bool
    uuid: str
    generation: int
    roots: list[Root]
    versions: list[Versions]


class Far(NamedTuple):
    """A value in a file, with its whole key."""

    key: bytes
    file: File
    offset: int
    length: int


class Leaves(NamedTuple):
    """Values with their whole keys: those that lie in the node, and those in files."""

    inline: list[tuple[bytes, bytes]]
    far: list[Far]


def _inline_versions(r: Reader, known: Sequence[File], arity: int) -> tuple[list[Root], int]:
    """Entries of a version tree leaf: the roots of the trees, and the last generation."""
    n = r.count(1 << arity, 1)
    generations = r.varints(n)
    if generations != sorted(set(generations)) or not generations[0]:
        raise r.bad(f"generations {str(generations)[:80]} do not rise")
    heights = list(r.take(n))
    found = places(r, known, n, missing=True)
    statistics(r, n)
    r.take(8 * n)  # int64: nanoseconds since 1970
    return [Root(p, h) for p, h in zip(found, heights, strict=True) if p is not None], generations[-1]


def _version_nodes(r: Reader, known: Sequence[File], most: int, height: int | None) -> list[Versions]:
    """Entries of an interior version tree node,
    or (``height`` None) of a manifest, which stores the heights.
    """
    n = r.count(most, 0 if height is None else 1)
    r.varints(n)  # generation numbers
    found = places(r, known, n)
    r.varints(n)  # numbers of generations
    r.take(8 * n)
    heights = list(r.take(n)) if height is None else [height] * n
    return [Versions(p, h) for p, h in zip(found, heights, strict=True) if p is not None]


def _arity(r: Reader) -> int:
    arity = r.fixed(1)
    if not 1 <= arity <= 16:
        raise r.bad(f"a version tree of arity 2**{arity}")
    return arity


def manifest(data: bytes) -> Manifest:
    """A manifest's body. Raises Damage."""
    r = Reader(data, "the manifest")
    uuid, numbered = r.take(16).hex(), r.fixed(1)
    r.varints(2, (1 << 32) - 1)  # most bytes of an inline value, of a decoded node
    arity, compression = _arity(r), r.varint()
    if numbered > 1 or compression > 1:
        raise r.bad(f"manifest kind {numbered}, compression {compression}")
    if compression:
        r.take(4)  # int32: level
    if numbered:
        end(r)
        return Manifest(True, uuid, 0, [], [])
    known = files(r, "")
    roots, generation = _inline_versions(r, known, arity)
    nodes = _version_nodes(r, known, 63 // arity, None)
    end(r)
    return Manifest(False, uuid, generation, roots, nodes)


def version_node(data: bytes, base: str, height: int) -> tuple[list[Root], list[Versions]]:
    """A version tree node's body. Raises Damage."""
    r = Reader(data, "a version tree node")
    arity, own = _arity(r), r.fixed(1)
    if own != height:
        raise r.bad(f"height {own}, where {height} is expected")
    known = files(r, base)
    roots, nodes = (
        ([], _version_nodes(r, known, 1 << arity, height - 1))
        if height
        else (_inline_versions(r, known, arity)[0], list[Versions]())
    )
    end(r)
    return roots, nodes


def _keys(r: Reader, n: int, interior: bool, prefix: int) -> tuple[list[bytes], list[int]]:
    """The keys without the node's own prefix (of ``prefix`` bytes), in rising order, and how much of each is
    common to the subtree below it.
    """
    prefixes, suffixes = [0, *r.varints(n - 1, MAX_KEY)], r.varints(n, MAX_KEY)
    common = r.varints(n, MAX_KEY) if interior else []
    bound(prefixes, suffixes, n * prefix)
    keys: list[bytes] = []
    before = b""
    for i, (same, own) in enumerate(zip(prefixes, suffixes, strict=True)):
        if same > len(before) or same + own > MAX_KEY or (common and common[i] > same + own):
            raise r.bad(f"key {i}: {same} bytes of the one before, {own} of its own")
        tail = r.take(own)
        if i and before[same:] >= tail:
            raise r.bad(f"key {i} is not above the one before it")
        before = before[:same] + tail
        keys.append(before)
    return keys, common


def btree_node(data: bytes, root: Root) -> tuple[list[Root], Leaves]:
    """A B+tree node's body: its children, or its values. Raises Damage."""
    r = Reader(data, "a B+tree node")
    height = r.fixed(1)
    if height != root.height:
        raise r.bad(f"height {height}, where {root.height} is expected")
    known = files(r, root.place.file.base)
    n = r.count(MAX_ENTRIES, 1)
    # real entries cost some five bytes even when compressed: what costs none is a bomb
    if n > FEW_ENTRIES + root.place.length // 3:
        raise Damage("too-complex", f"{n} keys in a B+tree node of {root.place.length} bytes")
    keys, common = _keys(r, n, height > 0, len(root.prefix))
    if keys[0] < root.least[len(root.prefix) :]:
        raise r.bad(f"the first key {keys[0][:80]!r} is below the one its parent names")
    if not height:
        return [], _values(r, keys, known, root.prefix)
    found = places(r, known, n)
    statistics(r, n)
    end(r)
    prefix = root.prefix
    below = zip(found, keys, common, strict=True)
    return [Root(p, height - 1, prefix + k[:c], prefix + k) for p, k, c in below if p is not None], Leaves(
        [], []
    )


def _values(r: Reader, keys: Sequence[bytes], known: Sequence[File], prefix: bytes) -> Leaves:
    """The rest of a leaf: its values. Raises Damage."""
    lengths, kinds = r.varints(len(keys)), r.take(len(keys))
    if kinds.strip(b"\0\1"):
        raise r.bad("a value that is neither inline nor in a file")
    far = sum(kinds)
    if far and not known:
        raise r.bad("values in files, but no file")
    which, offsets = r.varints(far, max(0, len(known) - 1)), r.varints(far)
    out, spots = Leaves([], []), zip(which, offsets, strict=True)
    for key, length, kind in zip(keys, lengths, kinds, strict=True):
        if kind:
            file, offset = next(spots)
            out.far.append(Far(prefix + key, known[file], offset, length))
        else:
            out.inline.append((prefix + key, r.take(length)))
    end(r)
    return out


def apart(nodes: Sequence[Root | Versions]) -> Iterator[Root | Versions | Finding]:
    """Every reading of a node once, though many versions name it; a copied subtree names it under another
    prefix, but none lies over another.
    """
    over, end, readings = set[tuple[int, int]](), 0, Counter[tuple[int, int]]()
    for offset, length in sorted({(n.place.offset, n.place.length) for n in nodes}):
        if offset < end:
            over.add((offset, length))
        end = max(end, offset + length)
    for node in dict.fromkeys(nodes):
        place = node.place.offset, node.place.length
        readings[place] += 1
        if place in over:
            yield finding("bad-header", f"the node at byte {place[0]} lies over another", offset=place[0])
        elif readings[place] <= _READINGS:
            yield node
        elif readings[place] == _READINGS + 1:
            yield finding(
                "too-complex",
                f"more than {_READINGS} subtrees share the node at byte {place[0]}",
                offset=place[0],
            )
