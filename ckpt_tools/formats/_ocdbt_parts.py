"""What lies in OCDBT's data files: the claims that follow a manifest from node to node, down to the chunks of arrays.

Facts: tensorstore 0.1.86, kvstore/ocdbt/index.rst (data file table: transitive paths) and driver/zarr, driver/zarr3 (names of chunks).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from ckpt_tools.checksum import Crc32c, Extent, Sum
from ckpt_tools.formats import _ocdbt_nodes as db
from ckpt_tools.formats._base import Anatomy, Claim, Damage
from ckpt_tools.formats._json import mapping, parse
from ckpt_tools.formats._ocdbt import BTREE, VERSIONS, File, body_of, read_record
from ckpt_tools.formats._zarr_array import Array, Coding, array_of
from ckpt_tools.formats._zarr_chunk import check_chunk
from ckpt_tools.formats._zstd import MAGIC, have_zstd, needs_zstd
from ckpt_tools.model import Finding, Guard, Severity
from ckpt_tools.storage import Source

_ARRAYS = (b".zarray", b"zarr.json")
_LISTED = 16
_SNIFFED = Coding(None, ("zstd",))


class Value(NamedTuple):
    """A value in a data file: a chunk when ``coding`` is known."""

    offset: int
    length: int
    key: str
    coding: Coding | None


@dataclass(frozen=True, slots=True)
class Parts:
    """The claim on a data file: which nodes and values lie in it. Two nodes may name the same value, so it compares by what it says."""

    nodes: tuple[db.Root | db.Versions, ...] = ()
    values: tuple[Value, ...] = ()

    def __call__(self, source: Source, anatomy: Anatomy) -> Iterator[Finding]:
        known = {(s.what, s.offset) for s in anatomy.sums}
        shown, reach = 0, anatomy.end
        for part in (*self.nodes, *self.values):
            own = Anatomy(regions=None if anatomy.regions is None else [])
            offset = part.offset if isinstance(part, Value) else part.place.offset
            try:
                for f in _value(source, own, part) if isinstance(part, Value) else _node(source, own, part):
                    shown += f.severity > Severity.NOTE
                    yield f
            except Damage as e:
                shown += 1
                yield e.finding if e.finding.offset is not None else replace(e.finding, offset=offset)
            _merge(anatomy, own, known)
            if not isinstance(part, Value):
                reach = max(reach, _neighbours(source, anatomy, offset + part.place.length, known))
            if shown >= _LISTED:
                break
        ends = [*(n.place.offset + n.place.length for n in self.nodes), *(v.offset + v.length for v in self.values)]
        anatomy.end = _neighbours(source, anatomy, max(reach, *ends), known)


def _neighbours(source: Source, anatomy: Anatomy, end: int, known: set[tuple[str, int]]) -> int:
    """The end of the records that follow byte ``end`` one after another: version tree nodes that newer ones have replaced, or nodes of a
    commit that lost a race. No manifest names them, but each has its own CRC-32C. Stops at one that is known.
    """
    while end + 18 <= source.size:
        head = source.read(end, 12)
        length = int.from_bytes(head[4:], "little")
        if head[:4] not in (BTREE, VERSIONS) or not 18 <= length <= source.size - end or (f"CRC-32C of {_node_at(end)}", end + length - 4) in known:
            break
        own = Anatomy(regions=None if anatomy.regions is None else [])
        _sum(source, own, end, length, _node_at(end))
        _merge(anatomy, own, known)
        end += length
    return end


def _merge(anatomy: Anatomy, own: Anatomy, known: set[tuple[str, int]]) -> None:
    """What one part taught. A checksum that another claim on the file has brought already is not computed twice."""
    anatomy.sums += (s for s in own.sums if (s.what, s.offset) not in known)
    known |= {(s.what, s.offset) for s in own.sums}
    names = {t.name for t in anatomy.tensors}
    anatomy.tensors += (t for t in own.tensors if t.name not in names)
    anatomy.keys |= own.keys
    for r in own.regions or ():
        anatomy.explain(*r)
    for path, claim in own.members.items():
        old = anatomy.members[path].check if path in anatomy.members else None
        new = claim.check
        if isinstance(old, Parts) and isinstance(new, Parts):
            new = Parts(old.nodes + new.nodes, old.values + new.values)
        anatomy.members[path] = _claim(new) if isinstance(new, Parts) else claim


def _claim(parts: Parts) -> Claim:
    return Claim("ocdbt", parts, whole=True, follow=bool(parts.nodes))


def _sum(source: Source, anatomy: Anatomy, offset: int, length: int, what: str) -> None:
    stored = int.from_bytes(source.read(offset + length - 4, 4), "little")
    anatomy.sums.append(Sum(f"CRC-32C of {what}", stored, (Extent(offset, length - 4),), offset + length - 4, hash=Crc32c))
    anatomy.explain(offset + length - 4, 4, f"CRC-32C of {what}")


def _node_at(offset: int) -> str:
    return f"the node at byte {offset}"


def record(source: Source, anatomy: Anatomy, offset: int, length: int, kind: bytes, what: str) -> Iterator[Finding | bytes]:
    """A record's findings, and last its decoded body if it can be had."""
    if offset + length > source.size:
        raise Damage("truncated", f"{what} should end at byte {offset + length}, the file ends at {source.size}", source.size)
    header = read_record(source, offset, length, what)
    if header.kind != kind:
        raise Damage("bad-header", f"{what} begins with {header.kind.hex()} instead of {kind.hex()}", offset)
    _sum(source, anatomy, offset, length, what)
    if header.compression and not have_zstd():
        yield needs_zstd(offset, what)
    else:
        yield body_of(source, offset, length, header.compression)


def say(anatomy: Anatomy, nodes: Iterable[db.Root | db.Versions], values: Iterable[tuple[str, Value]] = ()) -> None:
    """References as claims, one per file."""
    by_file: dict[str, tuple[list[db.Root | db.Versions], list[Value]]] = defaultdict(lambda: ([], []))
    for node in nodes:
        by_file[node.place.file.path][0].append(node)
    for path, value in values:
        by_file[path][1].append(value)
    for path, (n, v) in by_file.items():
        anatomy.members[path] = _claim(Parts(tuple(n), tuple(sorted(v, key=lambda value: value[:3]))))


def _node(source: Source, anatomy: Anatomy, part: db.Root | db.Versions) -> Iterator[Finding]:
    offset, length, kind = part.place.offset, part.place.length, BTREE if isinstance(part, db.Root) else VERSIONS
    for item in record(source, anatomy, offset, length, kind, _node_at(offset)):
        if isinstance(item, Finding):
            yield item
        elif isinstance(part, db.Root):
            children, leaves = db.btree_node(item, part)
            arrays = _arrays(leaves.inline)
            anatomy.tensors += (a.tensor(name) for name, a in arrays.items() if a)
            anatomy.keys |= arrays.keys()
            say(anatomy, children, _values(leaves.far, arrays))
        else:
            roots, versions = db.version_node(item, part.place.file.base, part.height)
            say(anatomy, [*roots, *versions])


def _arrays(leaves: Iterable[tuple[bytes, bytes]]) -> dict[str, Array | None]:
    """The arrays whose metadata lies inline in a leaf, by name; None for groups, and for what only is called like metadata (a CRC-32C covers it)."""
    out: dict[str, Array | None] = {}
    known: dict[bytes, Array | None] = {}  # most arrays of a model look like many others
    for key, inline in leaves:
        name, _, last = key.rpartition(b"/")
        if last in _ARRAYS:
            if inline not in known:
                try:
                    known[inline] = array_of(mapping(parse(inline, [])))
                except Damage:
                    known[inline] = None
            out[_text(name)] = known[inline]
    return out


def _text(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")


def _values(far: Iterable[tuple[bytes, File, int, int]], arrays: dict[str, Array | None]) -> Iterator[tuple[str, Value]]:
    """Values in files, each with the coding of the nearest array above it."""
    codings: dict[str, Coding | None] = {}
    for key, file, offset, length in far:
        name = _text(key)
        above = name.rpartition("/")[0]
        if above not in codings:
            parents = [above.rsplit("/", i)[0] for i in range(min(40, above.count("/") + 1))]
            found = next((a for p in parents if (a := arrays.get(p)) is not None), None)
            codings[above] = found.coding if found else None
        yield file.path, Value(offset, length, name, None if key.rpartition(b"/")[2] in _ARRAYS else codings[above])


def _value(source: Source, anatomy: Anatomy, value: Value) -> Iterator[Finding]:
    offset, length, key, coding = value
    what = repr(key[:200])
    if offset + length > source.size:
        raise Damage("truncated", f"the value of {what} should end at byte {offset + length}, the file ends at {source.size}", source.size)
    if coding is None and length > len(MAGIC) and source.read(offset, len(MAGIC)) == MAGIC:
        coding = _SNIFFED  # the metadata is in another node, but this is what Orbax's chunks begin with
    if coding is not None:
        yield from check_chunk(source, anatomy, offset, length, coding, what)
    else:
        anatomy.explain(offset, length, f"value of {what}: no checksum covers it", Guard.UNPROTECTED)
