"""MindSpore's ``.ckpt``: records of one tensor each, then, with ``crc_check=True``, a trailer with the CRC-32
of all records. Each record is a protobuf ``Checkpoint`` with one ``Value``, read here without protobuf.

Facts: checkpoint.proto and mindspore/train/serialization.py (``_exec_save``, ``_write_parameter_data``,
``_write_mapparameter``, ``_parse_ckpt_proto``, ``_load_into_param_dict``) of MindSpore 2.0 to 2.10.
This reader is stricter than protobuf's own: MindSpore writes the fields in one order, so another order is
damage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from ckpt_tools.checksum import Extent, Sum
from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Damage, make_format
from ckpt_tools.formats.common.protobuf import SMALL, Reader
from ckpt_tools.formats.common.tensors import (
    MAX_NAME,
    MAX_TENSORS,
    MAX_TEXT,
    is_single,
    near_miss,
    remember,
    scalar,
    zero_tail,
)
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.report import Guard, Report, Scalar, Tensor
from ckpt_tools.storage import ShortRead, Source

LITERAL, TRAILER = b"crc_num", 17
"""The trailer: this literal, then the CRC-32 as a big-endian integer of ten bytes."""
FINAL_MODE = 0o400
"""save_checkpoint ends with chmod 0400 (mindspore/train/serialization.py, _exec_save)."""
CIPHERS = {b"\xd8\x5e\x3a\x7f": "AES-GCM", b"\xd9\x5e\x3a\x7f": "AES-CBC", b"\xda\x5e\x3a\x7f": "SM4-CBC"}
"""First bytes of an encrypted file -> its cipher mode."""
MAX_TYPE, MAX_DIMS, MAX_TEXT_READ = 64, 64, 64 * 1024

_ROWS = (
    "Bool 1,Int8 1,UInt8 1,Int16 2,UInt16 2,Float16 2,BFloat16 2,Int32 4,UInt32 4,Float32 4,Int64 8,UInt64 8,"
    "Float64 8,Complex64 8,Complex128 16,Int4 1,HiFloat8 1"
)
TYPES = {name: (name.lower(), int(size)) for name, size in map(str.split, _ROWS.split(","))}
TYPES |= {"Float8E4M3FN": ("float8_e4m3fn", 1), "Float8E5M2": ("float8_e5m2", 1)}
"""tensor_type -> (dtype, bytes per element); the dims of Int4 (qint4x2) count bytes that hold two values
each.
"""
MAP_TYPES = {dtype: (dtype, size) for dtype, size in TYPES.values()}  # map parameters carry numpy's names
OPAQUE = {"str": ("str", 4), "random_op": ("random_op", 1)}


_find_near_type = lru_cache(1024)(near_miss)
"""Returns the known type that is one bit away; cached, as a hostile file repeats a word in each record."""


class Content(Struct):
    """One TensorProto, or the joined pieces of a tensor that was split (over 512 MiB). ``dims_span`` are the
    offsets of the first byte of its dims and of the byte behind them.
    """

    name: str
    dims: tuple[int, ...]
    type: str
    offset: int
    nbytes: int
    dims_span: tuple[int, int]
    types: dict[str, tuple[str, int]]
    raw: bytes = b""
    """The bytes of the content if they can only be one number or a short text, else b""."""
    pieces: list[tuple[int, int]] = field(default_factory=list)
    """(offset, nbytes) of each piece, empty if there is only one."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the dims, but () for texts and for scalars of 1.x, which are written with the dims [0]."""
        return () if self.old_scalar or (self.dims == (0,) and self.type in OPAQUE) else self.dims

    @property
    def old_scalar(self) -> bool:
        """Return whether this is a scalar as MindSpore 1.x wrote it; 2.x writes scalars without dims."""
        return self.dims == (0,) and self.nbytes > 0 and self.types is TYPES and self.type not in OPAQUE

    @property
    def tensor(self) -> Tensor:
        dtype = (self.types.get(self.type) or OPAQUE.get(self.type) or (self.type, 0))[0]
        return Tensor(self.name, dtype, self.shape, self.nbytes, self.offset, pieces=tuple(self.pieces))

    @property
    def value(self) -> Scalar:
        """Return the content if it is one number or a short text, else None."""
        if len(self.raw) != self.nbytes:
            return None
        if self.type == "str":
            return self.raw.decode("utf-32-le", "replace") if self.raw else None
        dtype, size = self.types.get(self.type, ("", 0))
        return scalar(self.raw, dtype) if is_single(dtype, self.shape) and self.nbytes == size else None

    def check(self, reader: Reader, last: bool) -> Iterator[Finding]:
        """Compare the content's size with dims and type; the loader does not (excess corrupts its heap)."""
        title = f"tensor {self.name[:200]!r}"
        if self.type in OPAQUE:
            yield from self._check_text(reader)
        elif self.type not in self.types:
            if meant := _find_near_type(self.type, (*self.types, *OPAQUE)):
                why = f"{title} has type {self.type!r}, one bit away from {meant!r}"
                yield finding("bad-header", why, offset=self.offset)
            else:
                why = f"{title} has the unknown type {self.type!r}"
                yield finding("unknown-dtype", why, offset=self.offset)
        elif (wanted := prod(self.shape) * self.types[self.type][1]) != self.nbytes:
            shape = f"{self.type} {list(self.shape)}"
            why = f"{title}: {shape} takes {wanted} bytes, the file holds {self.nbytes}"
            # a split tensor lacks its last pieces if the file was cut at the border of two records
            code = "truncated" if last and self.nbytes < wanted else "tensor-size"
            yield finding(code, why, offset=self.offset)

    def _check_text(self, reader: Reader) -> Iterator[Finding]:
        """Check size and characters of a text (UTF-32), and the size of a random_op."""
        title = f"text {self.name[:200]!r}"
        if self.dims not in ((), (0,)) or (self.type == "str" and self.nbytes % 4):
            why = f"{title} has dims {list(self.dims)} and {self.nbytes} bytes"
            yield finding("tensor-size", why, offset=self.offset)
        elif self.type == "str":
            raw = self.raw or reader.get(self.offset, min(self.nbytes, MAX_TEXT_READ))
            for i in range(0, len(raw), 4):
                if int.from_bytes(raw[i : i + 4], "little") > 0x10FFFF:
                    yield finding("bad-header", f"{title} is not UTF-32", offset=self.offset + i)
                    return


class Record(NamedTuple):
    """One Value from byte ``start`` to ``end``; its tag, the name, has ``tag_size`` bytes at ``tag``. A map
    parameter has three contents, any other record one.
    """

    start: int
    end: int
    name: str
    tag: int
    tag_size: int
    contents: list[Content]

    def explain(self, anatomy: Anatomy) -> None:
        """Explain all bytes but the tag and a lone dim (has_lone_dim). Every length is fixed by the enclosed
        fields, and the size of every content by its dims.
        """
        anatomy.explain(self.start, self.tag - self.start, "lengths of a record")
        at = self.tag + self.tag_size
        for c in self.contents:
            first, end = c.dims_span
            anatomy.explain(at, first - at, f"lengths of {c.name[:200]!r}")
            known = c.type in c.types or c.type in OPAQUE
            if not known or (prod(c.dims) == 0 and len(c.dims) > 1):
                why = "it has no elements, so another dim changes nothing" if known else "its type is unknown"
                anatomy.explain(first, end - first, f"dims of {c.name[:200]!r}: {why}", Guard.UNPROTECTED)
            elif not has_lone_dim(c):
                anatomy.explain(first, end - first, f"dims of {c.name[:200]!r}")
            else:
                anatomy.explain(first, 1, f"dims of {c.name[:200]!r}")
            anatomy.explain(end, c.offset - end, f"type and size of {c.name[:200]!r}")
            what = "only the range of its characters is checked" if c.type == "str" else "nothing checks it"
            anatomy.explain(c.offset, c.nbytes, f"content of {c.name[:200]!r}: {what}", Guard.UNPROTECTED)
            at = c.offset + c.nbytes


def has_lone_dim(content: Content) -> bool:
    """Return whether the dims are [1] or, for a scalar of 1.x, [0]: one bit apart, and both one element."""
    return content.old_scalar or (content.dims == (1,) and content.types is TYPES and content.type in TYPES)


def _read_content(
    reader: Reader, name: str, at: int, limit: int, types: dict[str, tuple[str, int]]
) -> Content:
    """Return the TensorProto at ``at``: dims (one varint each), type, content in this order. Raise Damage."""
    dims: list[int] = []
    kind: str | None = None
    found: Content | None = None
    dims_end = at
    for key, value, start in reader.fields(at, limit):
        if key == 0x08 and kind is None and value < 1 << 63 and len(dims) < MAX_DIMS:
            dims.append(value)
            dims_end = start
        elif key == 0x12 and kind is None:
            kind = reader.text(start, value, MAX_TYPE, "tensor type")
        elif key == 0x1A and kind is not None and found is None:
            is_short = value <= 4 * MAX_TEXT and dims in ([], [0], [1])
            raw = reader.get(start, value) if is_short else b""
            found = Content(name, tuple(dims), kind, start, value, (at, dims_end), types, raw)
        else:
            raise Damage("bad-header", f"tensor {name[:200]!r} has a field out of place", start)
    if found is None:
        raise Damage("bad-header", f"tensor {name[:200]!r} lacks its type or content", at)
    return found


def _make_damage(reader: Reader, at: int, end: int) -> Damage:
    """Return the Damage that describes the bytes from ``at``, where a record should begin, to ``end``."""
    left = end - at
    head = reader.get(at, min(left, SMALL))
    code, text = "bad-header", f"no record begins here: {head[:8]!r}"
    if head.count(0) == len(head):
        text = f"zero bytes where a record should begin, {left} bytes before the end"
        return Damage("zero-tail", text, at, Severity.ERROR)
    if head[:7] == LITERAL and left >= TRAILER:
        at += TRAILER
        code, text = "trailing-data", "further bytes follow the checksum trailer"
    elif head[:7] == LITERAL[:left] and left < TRAILER:
        code, text = "truncated", f"the checksum trailer has {left} of {TRAILER} bytes"
    elif head[:4] in CIPHERS:
        text = "ciphertext begins here, behind map parameters in clear text: MindSpore cannot load that"
    return Damage(code, text, at)


def _read_record(reader: Reader, at: int) -> Record:
    """Return the record at ``at``: a Value with its tag, the name, then a TensorProto or a MapTensorProto."""
    length, start = reader.varint(at + 1, reader.size + 1)
    name, tag, tag_size, found = "", 0, 0, list[Content]()
    for key, size, inner in reader.fields(start, start + length):
        if key == 0x0A and not name:
            name, tag, tag_size = reader.text(inner, size, MAX_NAME, "parameter name"), inner, size
        elif key == 0x12 and name and not found:
            found = [_read_content(reader, name, inner, inner + size, TYPES)]
        elif key == 0x1A and name and not found:
            for field_key, part_size, pos in reader.fields(inner, inner + size):
                if field_key != 0x0A or len(found) == 3:
                    raise Damage("bad-header", f"map parameter {name[:200]!r} has a field out of place", pos)
                part_name = name + (".keys", ".values", ".status")[len(found)]
                found.append(_read_content(reader, part_name, pos, pos + part_size, MAP_TYPES))
            if len(found) != 3:
                why = f"map parameter {name[:200]!r} has {len(found)} of 3 tensors"
                raise Damage("bad-header", why, inner)
        else:
            raise Damage("bad-header", "a record has a field out of place", inner)
    if not found:
        raise Damage("bad-header", f"record {name[:200]!r} holds no tensor", at)
    return Record(at, start + length, name, tag, tag_size, found)


def read_records(reader: Reader, end: int) -> Iterator[Record]:
    """Yield each record up to ``end``. Raise Damage where no record begins, and at a cut record."""
    at = count = 0
    while at < end:
        if reader.byte(at) != 0x0A:
            raise _make_damage(reader, at, end)
        if (count := count + 1) > MAX_TENSORS:
            raise Damage("too-complex", f"more than {MAX_TENSORS} records", at)
        try:
            record = _read_record(reader, at)
        except ShortRead:
            why = f"the file ends inside the head of the record at byte {at}"
            raise Damage("truncated", why, reader.size) from None
        if record.end > end:
            shown = repr(record.name[:200])
            why = f"record {shown} should end at byte {record.end}, but the records end at {end}"
            raise Damage("truncated", why, end)
        yield record
        at = record.end


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
