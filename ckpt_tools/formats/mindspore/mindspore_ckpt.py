"""MindSpore's ``.ckpt``: records of one tensor each (records.py), then, with ``crc_check=True``, a trailer
with the CRC-32 of all records.

Facts: mindspore/train/serialization.py (``_exec_save``, ``_parse_ckpt_proto``, ``_load_into_param_dict``) of
MindSpore 2.0 to 2.10.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from ckpt_tools.checksum import Extent, Sum
from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Damage, make_format
from ckpt_tools.formats.common.protobuf import Reader
from ckpt_tools.formats.common.tensors import remember, zero_tail
from ckpt_tools.formats.mindspore.records import (
    FINAL_MODE,
    LITERAL,
    OPAQUE,
    TRAILER,
    TYPES,
    Content,
    Record,
    has_lone_dim,
    read_records,
)
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.report import Guard, Report
from ckpt_tools.storage import Source


def _magic(head: bytes) -> bool:
    """Return whether ``head`` may begin a record with a tag (its name): the format itself has no magic."""
    numbers, at = list[int](), 0
    for _ in "record", "tag":
        if head[at : at + 1] != b"\n":
            return False
        value = length = 0
        for length, byte in enumerate(head[at + 1 : at + 11], 1):
            value |= (byte & 0x7F) << (7 * (length - 1))
            if byte < 0x80:
                break
        else:
            return bool(numbers) and length < 10  # the head ends in the number: nothing contradicts so far
        numbers.append(value)
        at += 1 + length
    tag = head[at : at + numbers[1]]
    return 0 < numbers[1] < numbers[0] and all(b >= 0x20 and b != 0x7F for b in tag)


class _Walk(Struct):
    """One walk over the records: the next record may continue ``pending``, ``pieces`` has the last name's
    records, ``ambiguous_dims`` the contents with dims [0] or [1], ``styles`` "1.x" or "2.x" -> offset of such
    a scalar. ``crc_extents`` are the byte ranges up to ``crc_end`` that the writer's CRC covers.
    """

    pending: Content | None = None
    pieces: list[Record] = field(default_factory=list)
    ambiguous_dims: list[Content] = field(default_factory=list)
    styles: dict[str, int] = field(default_factory=dict)
    crc_extents: list[Extent] = field(default_factory=list)
    crc_end: int = 0

    def add_piece(self, r: Record) -> None:
        """Add a record to the pending tensor, or begin a tensor. Raise Damage if dims or types differ."""
        first = r.contents[0]
        if self.pending is None:
            self.pending = replace(first)  # a copy, because further pieces extend it
            return
        if (first.dims, first.type) != (self.pending.dims, self.pending.type):
            raise Damage("bad-header", f"the chunks of {r.name[:200]!r} differ in dims or type", r.start)
        if not self.pending.pieces:
            self.pending.pieces.append((self.pending.offset, self.pending.nbytes))
        self.pending.pieces.append((first.offset, first.nbytes))
        self.pending.nbytes += first.nbytes


def _add_tensor(
    reader: Reader, anatomy: Anatomy, content: Content, walk: _Walk, last: bool = False
) -> Iterator[Finding]:
    """Check a tensor, whose pieces are joined; add it to ``anatomy``, with its value if it is a scalar."""
    yield from content.check(reader, last)
    anatomy.tensors.append(content.tensor)
    if (value := content.value) is not None:
        remember(anatomy.metadata, content.name, value)
    if content.old_scalar:
        walk.styles["1.x"] = content.dims_span[0]
    elif not content.dims and content.types is TYPES and content.type not in OPAQUE:
        walk.styles["2.x"] = content.dims_span[0]
    if anatomy.regions is not None and has_lone_dim(content):
        walk.ambiguous_dims.append(content)


def _explain_names(anatomy: Anatomy, pieces: list[Record]) -> None:
    """Explain the records of one name (the pieces of a split tensor must repeat it), and clear the list."""
    split = len(pieces) > 1 and len(pieces[0].contents) == 1
    for r in pieces if anatomy.regions is not None else ():
        what = "name of a chunk of a split tensor" if split else "name: only that it is plain text is checked"
        anatomy.explain(r.tag, r.tag_size, what, Guard.STRUCTURE if split else Guard.UNPROTECTED)
        r.explain(anatomy)
    pieces.clear()


def _check_records(reader: Reader, end: int, anatomy: Anatomy, walk: _Walk) -> Iterator[Finding]:
    """Check all records up to ``end``, joining the pieces of split tensors."""
    previous = ""
    for r in read_records(reader, end):
        if r.name != previous:
            if r.name in anatomy.keys:
                why = f"{r.name[:200]!r} is stored twice; loaders take the last one"
                yield finding("duplicate-tensor", why, offset=r.start)
            _explain_names(anatomy, walk.pieces)
        if walk.pending is not None and (r.name != previous or len(r.contents) > 1):
            yield from _add_tensor(reader, anatomy, walk.pending, walk)
            walk.pending = None
        if len(r.contents) > 1 or r.contents[0].type == "random_op":  # the writer's CRC does not cover it
            if r.start > walk.crc_end:
                walk.crc_extents.append(Extent(walk.crc_end, r.start - walk.crc_end))
            walk.crc_end = r.end
        if len(r.contents) > 1:  # a map parameter; large ones span several records, each complete in itself
            for content in r.contents:
                yield from _add_tensor(reader, anatomy, content, walk)
        else:
            walk.add_piece(r)
        if anatomy.regions is not None:
            walk.pieces.append(r)
        previous = r.name
        anatomy.keys.add(r.name)
    if walk.pending is not None:
        yield from _add_tensor(reader, anatomy, walk.pending, walk, last=True)
    _explain_names(anatomy, walk.pieces)
    if not previous:
        raise Damage("bad-header", "the file holds no record, only a checksum", 0)


def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Walk every record to the last byte. Reads about 200 bytes per record, all of a small file."""
    if not source.size:
        raise Damage("empty-file", "the file has no bytes", 0)
    reader, walk = Reader(source), _Walk()
    end = max(0, source.size - TRAILER)
    raw = reader.get(end, source.size - end)
    has_crc = anatomy.metadata["crc_trailer"] = raw.startswith(LITERAL) and len(raw) == TRAILER
    if has_crc:  # MindSpore's loader also looks for the literal at this place
        stored = int.from_bytes(raw[len(LITERAL) :], "big")
        anatomy.sums.append(Sum("the CRC trailer", stored & 0xFFFFFFFF, (Extent(0, end),), end))
        anatomy.explain(end, TRAILER, "the CRC trailer itself")
        if stored >> 32:
            why = f"the CRC trailer holds {stored:#x}, which is no CRC-32"
            yield finding("crc-mismatch", why, offset=end + 7)
    end = end if has_crc else source.size
    yield from _check_records(reader, end, anatomy, walk)
    if len(walk.styles) > 1:
        text = "scalars are written as by MindSpore 1.x and as by 2.x: the dim of one has probably lost a bit"
        yield finding("odd-header", text, offset=walk.styles["1.x"])
    for c in walk.ambiguous_dims:
        guard = Guard.STRUCTURE if "2.x" in walk.styles else Guard.UNPROTECTED
        anatomy.explain(c.dims_span[0] + 1, 1, f"the dim of {c.name[:200]!r}, which may be 0 or 1", guard)
    if not has_crc:
        text = "there is no CRC trailer (written without crc_check=True, or cut off)"
        yield finding("not-checksummed", text)
        t = anatomy.tensors[-1]
        if t.offset is not None and t.offset + t.nbytes == end and (lost := zero_tail(source, [t], t.offset)):
            yield lost
    elif walk.crc_end:
        # two sums are right: the loader's CRC covers all records, the writer's only ``walk.crc_extents``
        last = Extent(walk.crc_end, end - walk.crc_end)
        anatomy.sums[0] = replace(anatomy.sums[0], otherwise=(*walk.crc_extents, last))


def _find_lost_trailers(files: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Finding]]:
    """Report files without a CRC trailer if most files of the run have one: cut, or saved otherwise."""
    saved = [(p, r) for p, r in files if p.kind is Kind.PERIODIC and r.tensors]
    without = [p for p, r in saved if not r.metadata.get("crc_trailer")]
    if 2 * len(without) < len(saved):
        cause = f"cut by its {TRAILER} bytes, or saved with other settings"
        for p in without:
            text = f"no CRC trailer, unlike the run's other files: {cause}"
            yield p.path, finding("signature-changed", text)


FORMAT = make_format(
    "mindspore_ckpt",
    _magic,
    _structure,
    misnamed=Severity.ERROR,
    loader="mindspore",
    crosscheck=_find_lost_trailers,
    final_mode=FINAL_MODE,
    hides_cuts=True,
)
