"""OCDBT, tensorstore's database of many small values in few files, as Orbax uses it: ``manifest.ocdbt`` and
``d/<32 hex digits>``.

A manifest names the roots of B+trees, a node names its children and values, each by file, offset and length.
Data files hold values and nodes one after another, and only the trees tell what the bytes are: the checks
follow the manifest's claims from node to node, down to the chunks of arrays.

Facts: tensorstore 0.1.86, kvstore/ocdbt/index.rst (data file table: transitive paths), kvstore/ocdbt/format,
driver/zarr, driver/zarr3 (names of metadata and of chunks); orbax-checkpoint 0.12.8
(serialization/ocdbt_utils.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.decode import most
from ckpt_tools.formats.common.format import Anatomy, Claim, Damage, make_format
from ckpt_tools.formats.common.json_text import mapping, parse
from ckpt_tools.formats.common.tensors import remember
from ckpt_tools.formats.common.zstd import MAGIC
from ckpt_tools.formats.tensorstore import ocdbt_nodes, zarr
from ckpt_tools.formats.tensorstore.ocdbt_nodes import BTREE, MANIFEST, VERSIONS, FileRange, NodeRef
from ckpt_tools.formats.tensorstore.zarr import Array, Coding, add_sum, read_array, read_sum, require_length
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Guard
from ckpt_tools.storage import Source

_ARRAYS = (b".zarray", b"zarr.json")
_MAX_LISTED = 16
_PARSING = 16
"""Weight of a node's byte, which is parsed, against a chunk's byte, which is only decoded."""
_SNIFFED = Coding(None, ("zstd",))


class Value(NamedTuple):
    """One value in a data file; with a ``coding`` it is the chunk of an array."""

    offset: int
    length: int
    key: str
    coding: Coding | None


def _find_arrays(values: Iterable[tuple[bytes, bytes]]) -> dict[str, Array | None]:
    """Map names to zarr arrays, from a leaf's (key, value) pairs; None for a group or unreadable metadata."""
    arrays: dict[str, Array | None] = {}
    parsed: dict[bytes, Array | None] = {}  # many arrays of a model have the same metadata
    for key, inline in values:
        name, _, last = key.rpartition(b"/")
        if last in _ARRAYS:
            if inline not in parsed:
                try:
                    parsed[inline] = read_array(mapping(parse(inline, [])))
                except Damage:
                    parsed[inline] = None
            arrays[name.decode("utf-8", "backslashreplace")] = parsed[inline]
    return arrays


def _find_codings(
    far: Iterable[tuple[bytes, FileRange]], arrays: dict[str, Array | None]
) -> Iterator[tuple[str, Value]]:
    """Yield (path of the data file, value) for a leaf's ``far`` values, coded as the nearest array above."""
    codings: dict[str, Coding | None] = {}
    for key, (file, offset, length) in far:
        name = key.decode("utf-8", "backslashreplace")
        above = name.rpartition("/")[0]
        if above not in codings:
            parents = [above.rsplit("/", i)[0] for i in range(min(40, above.count("/") + 1))]
            found = next((a for p in parents if (a := arrays.get(p)) is not None), None)
            codings[above] = found.coding if found else None
        coding = None if key.rpartition(b"/")[2] in _ARRAYS else codings[above]
        yield file.path, Value(offset, length, name, coding)


def _find_distinct_values(values: Iterable[Value]) -> Iterator[Value | Finding]:
    """Yield one value for each range, as copied arrays share chunks; findings on overlaps, unlike codings."""
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
            why = f"{what} is also that of {first.key[:200]!r}, whose array is coded otherwise"
            yield finding("bad-header", why, offset=v.offset)


class Parts(Struct, frozen=True):
    """One claim on a data file: its nodes and values. Claims with the same parts are equal."""

    nodes: tuple[NodeRef, ...] = ()
    values: tuple[Value, ...] = ()

    def __call__(self, source: Source, anatomy: Anatomy) -> Iterator[Finding]:
        """Check each node and value; add claims on the files that nodes name, and set ``anatomy.end``."""
        listed_sums = {(s.what, s.offset) for s in anatomy.sums}
        reported, nodes_end = 0, anatomy.end
        for part in (*ocdbt_nodes.find_distinct_nodes(self.nodes), *_find_distinct_values(self.values)):
            own = Anatomy(regions=None if anatomy.regions is None else [], decoded=anatomy.decoded)
            offset = part.offset if isinstance(part, Value | Finding) else part.extent.offset
            try:
                for f in [part] if isinstance(part, Finding) else _check_part(source, own, part):
                    reported += f.severity > Severity.NOTE
                    yield f
            except Damage as e:
                reported += 1
                yield e.finding if e.finding.offset is not None else replace(e.finding, offset=offset)
            _merge(anatomy, own, listed_sums)
            anatomy.decoded = own.decoded
            if not isinstance(part, Value | Finding):
                end = part.extent.offset + part.extent.length
                nodes_end = max(nodes_end, _add_old_nodes(source, anatomy, end, listed_sums))
            if reported >= _MAX_LISTED:
                break
        ends = [
            *(n.extent.offset + n.extent.length for n in self.nodes),
            *(v.offset + v.length for v in self.values),
        ]
        anatomy.end = _add_old_nodes(source, anatomy, max(nodes_end, *ends), listed_sums)


def _add_old_nodes(source: Source, anatomy: Anatomy, end: int, listed_sums: set[tuple[str, int]]) -> int:
    """Add the CRCs of replaced nodes, which follow byte ``end`` without a gap; return the last one's end."""
    while end + 18 <= source.size:
        head = source.read(end, 12)
        length, what = int.from_bytes(head[4:], "little"), f"the node at byte {end}"
        if head[:4] not in (BTREE, VERSIONS) or not 18 <= length <= source.size - end:
            break
        if (f"CRC-32C of {what}", end + length - 4) in listed_sums:
            break
        own = Anatomy(regions=None if anatomy.regions is None else [])
        add_sum(source, own, end, length - 4, what)
        _merge(anatomy, own, listed_sums)
        end += length
    return end


def _merge(anatomy: Anatomy, own: Anatomy, listed_sums: set[tuple[str, int]]) -> None:
    """Add one part's results to ``anatomy``, but no sum whose (title, offset) is in ``listed_sums``."""
    anatomy.sums += (s for s in own.sums if (s.what, s.offset) not in listed_sums)
    anatomy.failed += own.failed
    listed_sums |= {(s.what, s.offset) for s in own.sums}
    if own.tensors:
        names = {t.name for t in anatomy.tensors}
        anatomy.tensors += (t for t in own.tensors if t.name not in names)
    anatomy.keys |= own.keys
    for r in own.regions or ():
        anatomy.explain(*r)
    for path, claim in own.members.items():
        old = anatomy.members[path].check if path in anatomy.members else None
        new = claim.check
        anatomy.members[path] = claim
        if isinstance(old, Parts) and isinstance(new, Parts):
            parts = Parts(old.nodes + new.nodes, old.values + new.values)
            anatomy.members[path] = Claim("ocdbt", parts, whole=True, follow=bool(parts.nodes))


def _add_claims(anatomy: Anatomy, nodes: Iterable[NodeRef], values: Iterable[tuple[str, Value]] = ()) -> None:
    """Add a claim for each data file that the nodes and values lie in to ``anatomy.members``."""
    by_file: dict[str, tuple[list[NodeRef], list[Value]]] = defaultdict(lambda: ([], []))
    for node in nodes:
        by_file[node.extent.file.path][0].append(node)
    for path, value in values:
        by_file[path][1].append(value)
    for path, (in_file, far_values) in by_file.items():
        parts = Parts(tuple(in_file), tuple(sorted(far_values, key=lambda value: value[:3])))
        anatomy.members[path] = Claim("ocdbt", parts, whole=True, follow=bool(in_file))


def _read_compression(source: Source, offset: int, length: int, kind: bytes, what: str) -> int:
    """Check magic, length and version of an OCDBT record; return its compression (1: zstd). Raise Damage."""
    if length < 18:
        raise Damage("truncated", f"{what}: {length} bytes, at least 18 belong there", offset + length)
    head = source.read(offset, 14)
    begins = f"{what} begins with {head[:4].hex()}"
    if head[:4] not in (MANIFEST, BTREE, VERSIONS):
        raise Damage("bad-header", f"{begins}, which is no OCDBT record", offset)
    stored = int.from_bytes(head[4:12], "little")
    require_length(f"{what} says it has {stored} bytes, there are {length}", offset, length, stored)
    if head[12] or head[13] > 1:
        raise Damage("bad-header", f"{what}: version {head[12]}, compression {head[13]}", offset + 12)
    if length > ocdbt_nodes.MAX_ENCODED:
        raise Damage("too-complex", f"{what}: a record of {length} bytes", offset)
    if head[:4] != kind:
        raise Damage("bad-header", f"{begins} instead of {kind.hex()}", offset)
    return head[13]


def _read_record(
    source: Source, anatomy: Anatomy, offset: int, length: int, kind: bytes, *, what: str
) -> bytes:
    """Check an OCDBT record of magic ``kind``; return its decoded body. Raise Damage."""
    if offset + length > source.size:
        why = f"{what} should end at byte {offset + length}, the file ends at {source.size}"
        raise Damage("truncated", why, source.size)
    try:
        compression = _read_compression(source, offset, length, kind, what)
    except Damage:
        if length >= 4:  # a shorter record has no checksum
            anatomy.failed.append(read_sum(source, offset, length - 4, what))
        raise
    add_sum(source, anatomy, offset, length - 4, what)
    if anatomy.decoded > most(source):
        raise Damage("too-complex", f"{what} is not decoded: those before it came to too many bytes", offset)
    body = ocdbt_nodes.decode_body(source, offset, length, compression)
    anatomy.decoded += _PARSING * len(body)
    return body


def _check_part(source: Source, anatomy: Anatomy, part: NodeRef | Value) -> Iterator[Finding]:
    """Check a value or a node; add a node's arrays, and claims on its children and values. Raise Damage."""
    if isinstance(part, Value):
        offset, length, key, coding = part
        what = repr(key[:200])
        if offset + length > source.size:
            why = f"the value of {what} should end at byte {offset + length}, the file ends at {source.size}"
            raise Damage("truncated", why, source.size)
        if coding is None and length > len(MAGIC) and source.read(offset, len(MAGIC)) == MAGIC:
            coding = _SNIFFED  # the metadata is in another node, but chunks of Orbax begin with this magic
        if coding is not None:
            yield from zarr.check_chunk(source, anatomy, offset, length, coding, what=what)
        else:
            anatomy.explain(offset, length, f"value of {what}: no checksum covers it", Guard.UNPROTECTED)
        return
    _, offset, length = part.extent
    what = f"the node at byte {offset}"
    body = _read_record(source, anatomy, offset, length, part.kind, what=what)
    if part.kind == BTREE:
        children, inline, far = ocdbt_nodes.read_btree_node(body, part)
        arrays = _find_arrays(inline)
        anatomy.tensors += (a.tensor(name) for name, a in arrays.items() if a)
        anatomy.keys |= arrays.keys()
        _add_claims(anatomy, children, _find_codings(far, arrays))
    else:
        _add_claims(anatomy, ocdbt_nodes.read_version_node(body, part.extent.file.base, part.height))


def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check an OCDBT manifest; add claims on the data files of the nodes that it names."""
    if not source.size:
        raise Damage("empty-file", "the file has no bytes", 0)
    body = _read_record(source, anatomy, 0, source.size, MANIFEST, what="the manifest")
    try:
        generation, nodes = ocdbt_nodes.read_manifest(body)
    except Damage as e:
        yield replace(e.finding, offset=14)
        return
    if generation is not None:
        remember(anatomy.metadata, "ocdbt_generation", generation)
    _add_claims(anatomy, nodes)


FORMAT = make_format("ocdbt", lambda head: head.startswith(MANIFEST), _structure, loader=None)
