"""The records of an OCDBT database decoded into plain values by a bounded reader: manifests, version tree
nodes and B+tree nodes.

Facts: tensorstore 0.1.86, kvstore/ocdbt/format (codec_util.cc, config_codec.h, data_file_id_codec.cc,
manifest.cc, version_tree_codec.h, btree_codec.h, btree.cc).
All integers are varints unless a comment says otherwise; arrays are stored column by column.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.decode import decompress
from ckpt_tools.formats.common.format import Damage
from ckpt_tools.model.finding import Finding
from ckpt_tools.storage import Source

MANIFEST, BTREE, VERSIONS = b"\x0c\xdb\x3a\x2a", b"\x0c\xdb\x20\xde", b"\x0c\xdb\x12\x34"
MAX_ENCODED = 64 << 20
MAX_DECODED = 104_857_600
"""Most bytes of a decoded node; Orbax keeps B+tree nodes below 100,000,000."""
MAX_PATH = MAX_KEY = 65535
MAX_ENTRIES = 1 << 20
"""Most keys of one node (kMaxNodeArity)."""
MAX_FILES = 100_000
FEW_ENTRIES = 1 << 16
_MAX_NAMES = 64 << 20
_MISSING = (1 << 64) - 1
_MAX_READINGS = 16


class File(NamedTuple):
    """One data file; ``base`` goes before all paths in its nodes, ``path`` includes ``base``."""

    base: str
    path: str


class FileRange(NamedTuple):
    """One range of a data file: ``length`` bytes at ``offset``."""

    file: File
    offset: int
    length: int


class NodeRef(NamedTuple):
    """One reference to a node with the magic ``kind``: of a B+tree, where all its keys begin with ``prefix``
    and none is below ``least``, or of a version tree.
    """

    kind: bytes
    extent: FileRange
    height: int
    prefix: bytes = b""
    least: bytes = b""


class Reader:
    """One cursor over decoded bytes; every read is bounded. Raises Damage without an offset in the file."""

    def __init__(self, data: bytes, what: str) -> None:
        self.data, self.at, self.what = data, 0, what

    def bad(self, text: str) -> Damage:
        return Damage("bad-header", f"{self.what}: {text} (byte {self.at} of what it decodes into)")

    def take(self, n: int) -> bytes:
        """Return the next ``n`` bytes. Raise Damage if fewer are left."""
        if n > len(self.data) - self.at:
            raise self.bad(f"{n} bytes are wanted where {len(self.data) - self.at} are left")
        self.at += n
        return self.data[self.at - n : self.at]

    def varint(self, most: int = (1 << 64) - 1) -> int:
        """Return the next number: seven bits a byte, lowest first. Raise Damage if it exceeds ``most``."""
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise self.bad("a varint of more than ten bytes")
        if value > most:
            raise self.bad(f"{value} is more than {most}")
        return value

    def varints(self, n: int, most: int = (1 << 64) - 1) -> list[int]:
        """Return ``n`` varints; read at once if each has one byte, as in most columns."""
        short = self.data[self.at : self.at + n]
        if len(short) < n:
            raise self.bad(f"{n} numbers are wanted where {len(short)} bytes are left")
        if not short.isascii():
            return [self.varint(most) for _ in range(n)]
        self.at += n
        if n and max(short) > most:
            raise self.bad(f"{max(short)} is more than {most}")
        return list(short)

    def count(self, most: int, least: int = 0) -> int:
        """Return the number of entries that follow, each of a byte or more. Raise Damage if out of range."""
        n = self.varint()
        if not least <= n <= min(most, len(self.data) - self.at):
            raise self.bad(f"{n} entries, where {least} to {most} may be")
        return n

    def finish(self) -> None:
        """Raise Damage unless everything was read."""
        if self.at != len(self.data):
            raise self.bad(f"{len(self.data) - self.at} bytes are left over")


def decode_body(source: Source, offset: int, length: int, compression: int) -> bytes:
    """Return an OCDBT record's decoded body, which is framed by 14 bytes and 4 bytes. Raise Damage."""
    data = source.read(offset + 14, length - 18)
    try:
        return decompress(data, MAX_DECODED) if compression else data
    except Damage as e:
        raise Damage(e.finding.code, e.finding.message, offset + 14) from None


def _bound_names(prefixes: Sequence[int], suffixes: Sequence[int], more: int) -> None:
    """Raise Damage if names are too long together: shared prefixes may make them far longer than the node."""
    if (total := sum(prefixes) + sum(suffixes) + more) > _MAX_NAMES:
        raise Damage("too-complex", f"{len(suffixes)} names of {total} bytes together")


def _read_files(r: Reader, base: str) -> list[File]:
    """Return a node's table of data files; ``base``, that of the node's own file, goes before every path. A
    path shares a prefix with the one before it, and its first bytes are the base of its own nodes.
    """
    n = r.count(MAX_FILES)
    prefixes = [0, *r.varints(max(0, n - 1), MAX_PATH)]
    suffixes, bases = r.varints(n, MAX_PATH), r.varints(n, MAX_PATH)
    _bound_names(prefixes, suffixes, 2 * n * len(base))
    files: list[File] = []
    before = b""
    for prefix, suffix, cut in zip(prefixes, suffixes, bases, strict=False):
        if prefix > len(before) or not cut <= prefix + suffix <= MAX_PATH:
            after = f"{cut} of them its base, after one of {len(before)}"
            raise r.bad(f"a path of {prefix} and {suffix} bytes, {after}")
        before = before[:prefix] + r.take(suffix)
        try:
            path = before.decode()
            files.append(File(base + before[:cut].decode(), base + path))
        except UnicodeDecodeError:
            raise r.bad("a path that is not UTF-8") from None
        if len(files[-1].path) > MAX_PATH:
            raise r.bad("a path of more than 65535 bytes")
    return files


def _read_ranges(r: Reader, files: Sequence[File], n: int, optional: bool = False) -> list[FileRange | None]:
    """Return ``n`` ranges of data files; if ``optional``, None for that of an empty tree. Raise Damage."""
    indexes, offsets, lengths = r.varints(n), r.varints(n), r.varints(n)
    ranges: list[FileRange | None] = []
    for i, offset, length in zip(indexes, offsets, lengths, strict=True):
        if i >= len(files):
            raise r.bad(f"file {i} of {len(files)}")
        if optional and offset == length == _MISSING:
            ranges.append(None)
        elif offset + length > _MISSING:
            raise r.bad(f"{length} bytes at {offset}")
        else:
            ranges.append(FileRange(files[i], offset, length))
    return ranges


def _skip_statistics(r: Reader, n: int) -> None:
    """Skip the sums of keys, of bytes of nodes and of bytes of values below each node: nobody needs them."""
    for _ in range(3):
        r.varints(n)


def _read_inline_versions(r: Reader, files: Sequence[File], arity: int) -> tuple[list[NodeRef], int]:
    """Return a version tree leaf's 2**``arity`` entries at most: B+tree roots; and the last generation."""
    n = r.count(1 << arity, 1)
    generations = r.varints(n)
    if generations != sorted(set(generations)) or not generations[0]:
        raise r.bad(f"generations {str(generations)[:80]} do not rise")
    heights = list(r.take(n))
    ranges = _read_ranges(r, files, n, optional=True)
    _skip_statistics(r, n)
    r.take(8 * n)  # int64: nanoseconds since 1970
    roots = [NodeRef(BTREE, p, h) for p, h in zip(ranges, heights, strict=True) if p is not None]
    return roots, generations[-1]


def _read_version_nodes(r: Reader, files: Sequence[File], most: int, height: int | None) -> list[NodeRef]:
    """Return the children in an interior version tree node, of that ``height``; None for a manifest."""
    n = r.count(most, 0 if height is None else 1)
    r.varints(n)  # generation numbers
    ranges = _read_ranges(r, files, n)
    r.varints(n)  # numbers of generations
    r.take(8 * n)
    heights = list(r.take(n)) if height is None else [height] * n  # a manifest stores heights
    return [NodeRef(VERSIONS, p, h) for p, h in zip(ranges, heights, strict=True) if p is not None]


def _read_arity(r: Reader) -> int:
    """Return the binary logarithm of how many entries a version tree node may have."""
    arity = r.take(1)[0]
    if not 1 <= arity <= 16:
        raise r.bad(f"a version tree of arity 2**{arity}")
    return arity


def read_manifest(data: bytes) -> tuple[int | None, list[NodeRef]]:
    """Return the last generation's number, and the nodes that the body of an OCDBT manifest names: (None, [])
    if it is of the kind whose versions are in files ``manifest.<16 hex digits>``. Raise Damage.
    """
    r = Reader(data, "the manifest")
    r.take(16)  # a UUID
    numbered = r.take(1)[0]
    r.varints(2, (1 << 32) - 1)  # most bytes of an inline value, of a decoded node
    arity, compression = _read_arity(r), r.varint()
    if numbered > 1 or compression > 1:
        raise r.bad(f"manifest kind {numbered}, compression {compression}")
    if compression:
        r.take(4)  # int32: level
    generation, nodes = None, list[NodeRef]()
    if not numbered:
        files = _read_files(r, "")
        roots, generation = _read_inline_versions(r, files, arity)
        nodes += [*roots, *_read_version_nodes(r, files, 63 // arity, None)]
    r.finish()
    return generation, nodes


def read_version_node(data: bytes, base: str, height: int) -> list[NodeRef]:
    """Return the nodes that a version tree node names; ``base`` goes before their files. Raise Damage."""
    r = Reader(data, "a version tree node")
    arity, stored_height = _read_arity(r), r.take(1)[0]
    if stored_height != height:
        raise r.bad(f"height {stored_height}, where {height} is expected")
    files = _read_files(r, base)
    nodes: list[NodeRef] = []
    if height:
        nodes += _read_version_nodes(r, files, 1 << arity, height - 1)
    else:
        nodes += _read_inline_versions(r, files, arity)[0]
    r.finish()
    return nodes


def read_btree_node(
    data: bytes, root: NodeRef
) -> tuple[list[NodeRef], list[tuple[bytes, bytes]], list[tuple[bytes, FileRange]]]:
    """Return the children of an interior B+tree node; of a leaf (key, value) of the values in it, and (key,
    place) of its values in data files. All keys are whole. Raise Damage.
    """
    r = Reader(data, "a B+tree node")
    height = r.take(1)[0]
    if height != root.height:
        raise r.bad(f"height {height}, where {root.height} is expected")
    files = _read_files(r, root.extent.file.base)
    n = r.count(MAX_ENTRIES, 1)
    # real entries take about five bytes even when compressed: entries that take none are a bomb
    if n > FEW_ENTRIES + root.extent.length // 3:
        raise Damage("too-complex", f"{n} keys in a B+tree node of {root.extent.length} bytes")
    prefix = root.prefix
    keys, common = _read_keys(r, n, height > 0, len(prefix))
    if keys[0] < root.least[len(prefix) :]:
        raise r.bad(f"the first key {keys[0][:80]!r} is below the one its parent names")
    children, inline, far = list[NodeRef](), list[tuple[bytes, bytes]](), list[tuple[bytes, FileRange]]()
    if height:
        rows = zip(_read_ranges(r, files, n), keys, common, strict=True)
        for place, key, shared in rows:
            if place is not None:
                children.append(NodeRef(BTREE, place, height - 1, prefix + key[:shared], prefix + key))
        _skip_statistics(r, n)
    else:  # a leaf: the values follow the keys
        keys = [prefix + k for k in keys]
        lengths, kinds = r.varints(len(keys)), r.take(len(keys))
        if kinds.strip(b"\0\1"):
            raise r.bad("a value that is neither inline nor in a file")
        number = sum(kinds)  # of values in files
        if number and not files:
            raise r.bad("values in files, but no file")
        ranges = zip(r.varints(number, max(0, len(files) - 1)), r.varints(number), strict=True)
        for key, length, kind in zip(keys, lengths, kinds, strict=True):
            if kind:
                file, offset = next(ranges)
                far.append((key, FileRange(files[file], offset, length)))
            else:
                inline.append((key, r.take(length)))
    r.finish()
    return children, inline, far


def _read_keys(r: Reader, n: int, interior: bool, prefix: int) -> tuple[list[bytes], list[int]]:
    """Return ``n`` keys without the node's own prefix, and how many bytes all keys below each child share."""
    prefixes, suffixes = [0, *r.varints(n - 1, MAX_KEY)], r.varints(n, MAX_KEY)
    common = r.varints(n, MAX_KEY) if interior else []
    _bound_names(prefixes, suffixes, n * prefix)
    keys: list[bytes] = []
    before = b""
    for i, (shared, own) in enumerate(zip(prefixes, suffixes, strict=True)):
        if shared > len(before) or shared + own > MAX_KEY or (common and common[i] > shared + own):
            raise r.bad(f"key {i}: {shared} bytes of the one before, {own} of its own")
        suffix = r.take(own)
        if i and before[shared:] >= suffix:
            raise r.bad(f"key {i} is not above the one before it")
        before = before[:shared] + suffix
        keys.append(before)
    return keys, common


def find_distinct_nodes(nodes: Sequence[NodeRef]) -> Iterator[NodeRef | Finding]:
    """Yield each distinct reference, of a node at most _MAX_READINGS, and findings on nodes that overlap."""
    overlapping, end, readings = set[tuple[int, int]](), 0, Counter[tuple[int, int]]()
    for offset, length in sorted({(n.extent.offset, n.extent.length) for n in nodes}):
        if offset < end:
            overlapping.add((offset, length))
        end = max(end, offset + length)
    for node in dict.fromkeys(nodes):
        at, length = node.extent.offset, node.extent.length
        readings[at, length] += 1
        if (at, length) in overlapping:
            yield finding("bad-header", f"the node at byte {at} lies over another", offset=at)
        elif readings[at, length] <= _MAX_READINGS:
            yield node
        elif readings[at, length] == _MAX_READINGS + 1:
            why = f"more than {_MAX_READINGS} subtrees share the node at byte {at}"
            yield finding("too-complex", why, offset=at)
