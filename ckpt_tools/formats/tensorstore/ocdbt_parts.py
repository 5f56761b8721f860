"""What lies in OCDBT's data files: the claims that follow a manifest from node to node, down to the chunks of
arrays.

Facts: tensorstore 0.1.86, kvstore/ocdbt/index.rst (data file table: transitive paths) and driver/zarr,
driver/zarr3 (names of chunks).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import ClassVar, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from ckpt_tools.checksum import CRC32C, Extent, Sum
from ckpt_tools.findings import finding
from ckpt_tools.formats.common.decode import most
from ckpt_tools.formats.common.format import Anatomy, Claim, Damage
from ckpt_tools.formats.common.json_text import mapping, parse
from ckpt_tools.formats.common.zstd import MAGIC, have_zstd, needs_zstd
from ckpt_tools.formats.tensorstore import ocdbt_nodes as db
from ckpt_tools.formats.tensorstore.ocdbt_nodes import Far
from ckpt_tools.formats.tensorstore.ocdbt_record import BTREE, VERSIONS, body_of, read_record
from ckpt_tools.formats.tensorstore.zarr_array import Array, Coding, array_of
from ckpt_tools.formats.tensorstore.zarr_chunk import check_chunk
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Guard
from ckpt_tools.storage import Source

# ---- The values of an OCDBT tree: which of them are the metadata of arrays, and so how the chunks beside
# those are coded.
#
# Facts: tensorstore 0.1.86, driver/zarr, driver/zarr3 (names of metadata and of chunks).


_ARRAYS = (b".zarray", b"zarr.json")


class Value(NamedTuple):
    """A value in a data file: a chunk when ``coding`` is known."""

    offset: int
    length: int
    key: str
    coding: Coding | None


def arrays_in(leaves: Iterable[tuple[bytes, bytes]]) -> dict[str, Array | None]:
    """The arrays whose metadata lies inline in a leaf, by name; None for groups, and for what only is called
    like metadata (a CRC-32C covers it).
    """
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


def values_of(far: Iterable[Far], arrays: dict[str, Array | None]) -> Iterator[tuple[str, Value]]:
    """Values in files, each with the coding of the nearest array above it."""
    codings: dict[str, Coding | None] = {}
    for key, file, offset, length in far:
        name = _text(key)
        above = name.rpartition("/")[0]
        if above not in codings:
            parents = [above.rsplit("/", i)[0] for i in range(min(40, above.count("/") + 1))]
            found = next((a for p in parents if (a := arrays.get(p)) is not None), None)
            codings[above] = found.coding if found else None
        yield (
            file.path,
            Value(offset, length, name, None if key.rpartition(b"/")[2] in _ARRAYS else codings[above]),
        )


def apart(values: Iterable[Value]) -> Iterator[Value | Finding]:
    """Each place once, as bytes that many values claim would be read as often: a copied key names a chunk
    again, but none lies over another.
    """
    end, first = 0, None
    for v in sorted(values, key=lambda v: (v.offset, v.length, v.coding is None, v.key)):
        what = f"the value of {v.key[:200]!r}"
        if first is None or v[:2] != first[:2]:
            if v.offset < end and v.length:
                yield finding("bad-header", f"{what} lies over another, which ends at {end}", offset=v.offset)
                continue
            end, first = max(end, v.offset + v.length), v
            yield v
        elif v.coding not in (None, first.coding):
            yield finding(
                "bad-header",
                f"{what} is also that of {first.key[:200]!r}, whose array is coded otherwise",
                offset=v.offset,
            )


_LISTED = 16
_PARSING = 16
"""What a byte of a node counts for beside one of a chunk, which only has to decode."""
_SNIFFED = Coding(None, ("zstd",))


class Parts(Struct, frozen=True):
    """The claim on a data file: which nodes and values lie in it. Two nodes may name the same value, so it
    compares by what it says.
    """

    SENT: ClassVar[bool] = True
    nodes: tuple[db.Root | db.Versions, ...] = ()
    values: tuple[Value, ...] = ()

    def __call__(self, source: Source, anatomy: Anatomy) -> Iterator[Finding]:
        known = {(s.what, s.offset) for s in anatomy.sums}
        shown, reach = 0, anatomy.end
        for part in (*db.apart(self.nodes), *apart(self.values)):
            own = Anatomy(regions=None if anatomy.regions is None else [], decoded=anatomy.decoded)
            offset = part.offset if isinstance(part, Value | Finding) else part.place.offset
            try:
                for f in (
                    (part,)
                    if isinstance(part, Finding)
                    else _value(source, own, part)
                    if isinstance(part, Value)
                    else _node(source, own, part)
                ):
                    shown += f.severity > Severity.NOTE
                    yield f
            except Damage as e:
                shown += 1
                yield e.finding if e.finding.offset is not None else replace(e.finding, offset=offset)
            _merge(anatomy, own, known)
            anatomy.decoded = own.decoded
            if not isinstance(part, Value | Finding):
                reach = max(reach, _neighbours(source, anatomy, part.place.offset + part.place.length, known))
            if shown >= _LISTED:
                break
        ends = [
            *(n.place.offset + n.place.length for n in self.nodes),
            *(v.offset + v.length for v in self.values),
        ]
        anatomy.end = _neighbours(source, anatomy, max(reach, *ends), known)


def _neighbours(source: Source, anatomy: Anatomy, end: int, known: set[tuple[str, int]]) -> int:
    """The end of the records that follow byte ``end`` one after another: version tree nodes that newer ones
    have replaced, or nodes of a commit that lost a race. No manifest names them, but each has its own
    CRC-32C. Stops at one that is known.
    """
    while end + 18 <= source.size:
        head = source.read(end, 12)
        length = int.from_bytes(head[4:], "little")
        if (
            head[:4] not in (BTREE, VERSIONS)
            or not 18 <= length <= source.size - end
            or (f"CRC-32C of {_node_at(end)}", end + length - 4) in known
        ):
            break
        own = Anatomy(regions=None if anatomy.regions is None else [])
        _sum(source, own, end, length, _node_at(end))
        _merge(anatomy, own, known)
        end += length
    return end


def _merge(anatomy: Anatomy, own: Anatomy, known: set[tuple[str, int]]) -> None:
    """What one part taught. A checksum that another claim on the file has brought already is not computed
    twice.
    """
    anatomy.sums += (s for s in own.sums if (s.what, s.offset) not in known)
    anatomy.failed += own.failed
    known |= {(s.what, s.offset) for s in own.sums}
    if own.tensors:
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


def _sworn(source: Source, offset: int, length: int, what: str) -> Sum:
    at = offset + length - 4
    stored = int.from_bytes(source.read(at, 4), "little")
    return Sum(f"CRC-32C of {what}", stored, (Extent(offset, length - 4),), at, hash=CRC32C)


def _sum(source: Source, anatomy: Anatomy, offset: int, length: int, what: str) -> None:
    anatomy.sums.append(_sworn(source, offset, length, what))
    anatomy.explain(offset + length - 4, 4, f"CRC-32C of {what}")


def _node_at(offset: int) -> str:
    return f"the node at byte {offset}"


def record(
    source: Source, anatomy: Anatomy, offset: int, length: int, kind: bytes, *, what: str
) -> Iterator[Finding | bytes]:
    """A record's findings, and last its decoded body if it can be had."""
    if offset + length > source.size:
        raise Damage(
            "truncated",
            f"{what} should end at byte {offset + length}, the file ends at {source.size}",
            source.size,
        )
    try:
        header = read_record(source, offset, length, what)
        if header.kind != kind:
            begins = f"{what} begins with {header.kind.hex()} instead of {kind.hex()}"
            raise Damage("bad-header", begins, offset)
    except Damage:
        if length >= 4:  # of a shorter one not even the checksum is there
            anatomy.failed.append(_sworn(source, offset, length, what))
        raise
    _sum(source, anatomy, offset, length, what)
    if header.compression and not have_zstd():
        yield needs_zstd(offset, what)
    elif anatomy.decoded > most(source):
        raise Damage("too-complex", f"{what} is not decoded: those before it came to too many bytes", offset)
    else:
        body = body_of(source, offset, length, header.compression)
        anatomy.decoded += _PARSING * len(body)
        yield body


def say(
    anatomy: Anatomy, nodes: Iterable[db.Root | db.Versions], values: Iterable[tuple[str, Value]] = ()
) -> None:
    """References as claims, one per file."""
    by_file: dict[str, tuple[list[db.Root | db.Versions], list[Value]]] = defaultdict(lambda: ([], []))
    for node in nodes:
        by_file[node.place.file.path][0].append(node)
    for path, value in values:
        by_file[path][1].append(value)
    for path, (n, v) in by_file.items():
        anatomy.members[path] = _claim(Parts(tuple(n), tuple(sorted(v, key=lambda value: value[:3]))))


def _node(source: Source, anatomy: Anatomy, part: db.Root | db.Versions) -> Iterator[Finding]:
    offset, length, kind = (
        part.place.offset,
        part.place.length,
        BTREE if isinstance(part, db.Root) else VERSIONS,
    )
    for item in record(source, anatomy, offset, length, kind, what=_node_at(offset)):
        if isinstance(item, Finding):
            yield item
        elif isinstance(part, db.Root):
            children, leaves = db.btree_node(item, part)
            arrays = arrays_in(leaves.inline)
            anatomy.tensors += (a.tensor(name) for name, a in arrays.items() if a)
            anatomy.keys |= arrays.keys()
            say(anatomy, children, values_of(leaves.far, arrays))
        else:
            roots, versions = db.version_node(item, part.place.file.base, part.height)
            say(anatomy, [*roots, *versions])


def _value(source: Source, anatomy: Anatomy, value: Value) -> Iterator[Finding]:
    offset, length, key, coding = value
    what = repr(key[:200])
    if offset + length > source.size:
        raise Damage(
            "truncated",
            f"the value of {what} should end at byte {offset + length}, the file ends at {source.size}",
            source.size,
        )
    if coding is None and length > len(MAGIC) and source.read(offset, len(MAGIC)) == MAGIC:
        coding = _SNIFFED  # the metadata is in another node, but this is what Orbax's chunks begin with
    if coding is not None:
        yield from check_chunk(source, anatomy, offset, length, coding, what=what)
    else:
        anatomy.explain(offset, length, f"value of {what}: no checksum covers it", Guard.UNPROTECTED)
