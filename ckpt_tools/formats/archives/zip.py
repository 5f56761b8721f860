"""A strict zip reader: every byte of the archive must belong to a record, its header or the directory, and
all three must agree.

Facts: PKWARE APPNOTE 6.3.10 sections 4.3 to 4.5; for torch's archives caffe2/serialize/inline_container.cc
and third_party/miniz-3.0.2. Offsets are relative to the source's beginning, so an archive inside another file
needs only its own Source.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from operator import attrgetter

from ckpt_tools.checksum import Deflated, Extent, Sum
from ckpt_tools.findings import finding
from ckpt_tools.formats.archives.zip_directory import KNOWN, Record, extras, read_end, read_entries
from ckpt_tools.formats.common.format import Anatomy, Damage
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Guard
from ckpt_tools.storage import Source

STORED, DEFLATED = 0, 8
_LOCAL = struct.Struct("<4s5H3I2H")  # APPNOTE 4.3.7
_SHORT, _WIDE = struct.Struct("<3I"), struct.Struct("<I2Q")  # data descriptors, APPNOTE 4.3.9
_FLAGS = 0x0001 | 0x0006 | 0x0008 | 0x0800  # encrypted, deflate's effort, data descriptor, UTF-8
_TORCH_FLAGS = 0x0808
_AT_ONCE = 256  # bytes
_FIELD, _ALIGNED = 4, 64
"""Torch ends each header by an extra field: a head of four bytes, and as much padding as lets the payload
begin at a multiple of 64 (caffe2/serialize/inline_container.cc, getPadding).
"""


class _NearReader:
    """Reads a little ahead: a record's descriptor and the header of the next record lie side by side."""

    def __init__(self, source: Source) -> None:
        held = getattr(source, "whole", None)  # a file in memory
        self.source, self.at, self.data = source, 0, held() if held is not None else b""
        self.spares: Callable[[int, int], bool] | None = getattr(source, "spares", None)

    def get(self, offset: int, length: int) -> bytes:
        """Return ``length`` bytes at ``offset``; read at least _AT_ONCE unless they are read already."""
        begin = offset - self.at
        if begin < 0 or begin + length > len(self.data):
            left = max(self.source.size - offset, length)
            self.at, self.data = offset, self.source.read(offset, min(max(length, _AT_ONCE), left))
            begin = 0
        return self.data[begin : begin + length]


def read_zip(source: Source, anatomy: Anatomy, *, torch: bool) -> Generator[Finding, None, list[Record]]:
    """Check an archive and return its records in file order. If ``torch``, it must be as torch writes
    archives: no comments, no foreign fields, all entries alike. Raise Damage if it has no directory.
    """
    end = yield from read_end(source, anatomy, comment=not torch)
    records = yield from read_entries(source, end, torch, anatomy)
    reader, at = _NearReader(source), 0
    records.sort(key=attrgetter("header"))
    borders = [*[r.header for r in records[1:]], end.directory][: len(records)]  # [] without records
    if (wait := getattr(source, "await_ranges", None)) is not None:  # a remote source: fetch all at once
        wait([(max(0, r.header - _WIDE.size - 4), _AT_ONCE + len(r.raw)) for r in records])
    for r, border in zip(records, borders, strict=True):
        if r.header != at:
            yield _describe_gap(reader, at, r.header, f"record {r.name[:200]!r}", "two records overlap")
        r.payload, at = _match_torch_record(reader, r, border, anatomy) if torch else -1, border
        if r.payload >= 0:
            continue
        try:
            r.payload = yield from _check_header(reader, r, border, torch=torch, anatomy=anatomy)
        except Damage as d:
            yield d.finding
        else:
            at = r.payload + r.stored
            if r.flags & 8:
                at = yield from _check_descriptor(reader, r, at, border, anatomy)
    if at != end.directory:
        yield _describe_gap(reader, at, end.directory, "the directory", "a record overlaps the directory")
    yield from _check_names(records, torch)
    return records


def _match_torch_record(reader: _NearReader, r: Record, border: int, anatomy: Anatomy) -> int:
    """Return where the payload of a record begins if every byte from its header to ``border`` is as torch
    writes stored records (padded header, payload, descriptor), else -1: then it needs a closer look. A remote
    source may spare these bytes: then sizes and alignment alone decide.
    """
    name, end = len(r.raw), border - _SHORT.size - 4
    payload = end - r.stored
    extra = payload - r.header - _LOCAL.size - name
    usual = r.flags == _TORCH_FLAGS and r.method == STORED and not r.wide and r.stored == r.size
    if not usual or not _FIELD <= extra <= 0xFFFF:
        return -1
    spares = reader.spares if payload % _ALIGNED == 0 and extra < _FIELD + _ALIGNED else None
    if spares is not None and (spares(r.header, payload - r.header) or spares(end, border - end)):
        return payload  # unread: reading would cost a request
    header = _LOCAL.pack(b"PK\3\4", r.need, r.flags, STORED, r.time, r.date, 0, 0, 0, name, extra)
    before = header + r.raw + b"FB" + (extra - _FIELD).to_bytes(2, "little") + b"Z" * (extra - _FIELD)
    behind = b"PK\7\x08" + _SHORT.pack(r.crc, r.stored, r.size)
    if reader.get(r.header, len(before)) != before or reader.get(end, len(behind)) != behind:
        return -1
    if anatomy.regions is not None:
        anatomy.explain(r.header, len(before), f"header of {r.name[:200]!r}")
        anatomy.explain(end, len(behind), f"data descriptor of {r.name[:200]!r}")
    return payload


def _describe_gap(reader: _NearReader, at: int, begin: int, before: str, overlap: str) -> Finding:
    """Return the finding on a record that ends at ``at``, if the next one begins elsewhere, at ``begin``."""
    what = overlap
    if begin > at:
        hidden = reader.get(at, 4) == b"PK\3\4"
        what = f"{begin - at} bytes belong to no record"
        what += ", and begin like a record that the directory does not name" if hidden else ""
    return finding("bad-header", f"before {before}: {what}", offset=min(at, begin))


def _check_header(
    reader: _NearReader, e: Record, border: int, *, torch: bool, anatomy: Anatomy
) -> Generator[Finding, None, int]:
    """Compare a local header (APPNOTE 4.3.7) with its entry; return the payload's offset. Raise Damage."""
    raw = reader.get(e.header, _LOCAL.size)
    magic, need, flags, method, time, date, crc, stored, size, name_length, extra_length = _LOCAL.unpack(raw)
    record, payload = f"record {e.name[:200]!r}", int(e.header + 30 + name_length + extra_length)
    if magic != b"PK\3\4" or name_length != len(e.raw) or payload + e.stored > border:
        raise Damage("bad-header", f"{record}: its header is damaged", e.header)
    texts = reader.get(e.header + 30, name_length + extra_length)
    if (texts[:name_length], flags, method) != (e.raw, e.flags, e.method):
        yield _report_difference(e, "name, flags or method")
    if (need, time, date) != (e.need, e.time, e.date):
        what = f"{record}: header and directory disagree on version or time"
        yield finding("odd-header", what, offset=e.header)
    wide, foreign = yield from _check_extras(e, texts[name_length:], torch)
    yield from _check_sizes(e, (crc, stored, size), wide=wide, torch=torch)
    if e.flags & 1 or e.flags & ~_FLAGS:
        yield finding("bad-header", f"{record} is encrypted or has unknown flags", offset=e.header + 6)
    if e.method not in (STORED, DEFLATED) or (e.method == STORED and e.stored != e.size):
        what = f"{record}: method {e.method} does not fit its sizes or is not known"
        yield finding("bad-header", what, offset=e.header + 8)
    anatomy.explain(e.header, 30 + name_length, f"header of {e.name[:200]!r}")
    what = f"header of {e.name[:200]!r}: extra fields" + (" that nothing checks" if foreign else "")
    guard = Guard.UNPROTECTED if foreign else Guard.STRUCTURE
    anatomy.explain(e.header + 30 + name_length, extra_length, what, guard)
    return payload


def _check_sizes(e: Record, in_header: tuple[int, int, int], *, wide: bool, torch: bool) -> Iterator[Finding]:
    """Yield a finding for each of checksum, stored size and size that differs between header and directory.
    If a descriptor follows the payload, miniz writes zeros in the header, other writers zeros or the numbers.
    """
    has_descriptor = bool(e.flags & 8)
    titles = ("the checksum", "the size", "the size")
    for number, in_directory, what in zip(in_header, (e.crc, e.stored, e.size), titles, strict=True):
        may_be_zero = has_descriptor and number == 0
        fits = may_be_zero if has_descriptor and torch else number == in_directory or may_be_zero
        if not fits and not (number == 0xFFFFFFFF and wide and what == "the size"):
            yield _report_difference(e, what)


def _report_difference(e: Record, what: str) -> Finding:
    text = f"record {e.name[:200]!r}: its header and the directory disagree on {what}"
    return finding("bad-header", text, offset=e.header)


def _check_extras(e: Record, fields: bytes, torch: bool) -> Generator[Finding, None, tuple[bool, bool]]:
    """Check a header's extra fields. Return whether it has 64-bit sizes, and fields that nothing checks."""
    wide = foreign = False
    record, at = f"record {e.name[:200]!r}", e.header + 30 + len(e.raw)
    for kind, value in extras(fields):
        if kind == 1:
            wide = len(value) >= 16
            # The field repeats the directory's sizes, or leaves them out: if a descriptor follows, they may
            # not be known yet. miniz writes one of them, and adds the header's own offset.
            sizes: list[tuple[int, ...]] = [(), (e.size, e.stored)]
            if e.flags & 8:
                sizes = [(), (e.size, 0)] if torch and not e.made else [*sizes, (e.size, 0), (0, 0)]
            whole = len(value) - len(value) % 8
            parts = struct.unpack(f"<{whole // 8}Q", value[:whole])
            if whole != len(value) or parts not in [*sizes, *((*s, e.header) for s in sizes)]:
                yield _report_difference(e, "its 64-bit sizes")
        elif kind == 0x4246:  # "FB": pads a payload to 64 bytes
            if value.strip(b"Z"):
                yield finding("odd-header", f"{record}: its padding is not all 'Z'", offset=at)
        elif kind < 0 or (torch and kind not in KNOWN):
            yield finding("bad-header", f"{record}: its header has a damaged extra field", offset=at)
        else:
            foreign = True
    return wide, foreign


def _check_descriptor(
    reader: _NearReader, e: Record, at: int, border: int, anatomy: Anatomy
) -> Generator[Finding, None, int]:
    """Compare the descriptor from ``at`` to ``border`` (APPNOTE 4.3.9) with the directory; return its end."""
    n = border - at
    if n not in (12, 16, 20, 24):
        n = 24 if e.wide else 16
        if at + n > border:
            yield finding("bad-header", f"record {e.name[:200]!r} has no room for its descriptor", offset=at)
            return at
    if n < 20:
        sizes = _SHORT.pack(e.crc, e.stored & 0xFFFFFFFF, e.size & 0xFFFFFFFF)
    else:
        sizes = _WIDE.pack(e.crc, e.stored, e.size)
    # the signature is optional in the standard; writers never omit it
    if reader.get(at, n) != (sizes if n in (12, 20) else b"PK\7\x08" + sizes):
        why = f"record {e.name[:200]!r}: its descriptor and the directory disagree"
        yield finding("bad-header", why, offset=at)
    anatomy.explain(at, n, f"data descriptor of {e.name[:200]!r}")
    return at + n


def _check_names(records: Sequence[Record], torch: bool) -> Iterator[Finding]:
    """Yield findings on names with a NUL, names that leave the archive's directory, and duplicate names."""
    twice = Severity.ERROR if torch else None  # torch takes the first, Python's zipfile the last
    seen: set[str] = set()
    for r in records:
        if "\0" in r.name:
            what = f"record {r.name[:200]!r} has a NUL in its name"
            yield finding("bad-header", what, offset=r.header + 30)
        above = ".." in r.name and ".." in r.name.replace("\\", "/").split("/")
        if above or r.name.startswith(("/", "\\")):
            what = f"record {r.name[:200]!r} leaves the archive's directory"
            yield finding("path-escape", what, offset=r.header + 30)
        # miniz finds names regardless of case
        key = r.name.lower() if torch and "/code/" not in r.name else r.name
        if key in seen:
            what = f"two records are called {r.name[:200]!r}"
            yield finding("duplicate-key", what, offset=r.header, severity=twice)
        seen.add(key)


def read_record(source: Source, record: Record, limit: int) -> bytes:
    """Return the uncompressed bytes of a record. Raise Damage if they are more than ``limit``, or damaged."""
    name = f"record {record.name[:200]!r}"
    if max(record.size, record.stored) > limit:
        why = f"{name} has {record.size:,} bytes; more than {limit:,} are not read"
        raise Damage("too-complex", why, record.header)
    if record.payload < 0:
        raise Damage("bad-header", f"{name} cannot be read: its header is damaged", record.header)
    data = source.read(record.payload, record.stored)
    if record.method == STORED:
        return data
    try:
        data = zlib.decompressobj(-15).decompress(data, record.size + 1)
    except zlib.error as e:
        raise Damage("crc-mismatch", f"{name} does not decompress: {e}", record.payload) from None
    if len(data) != record.size:
        why = f"{name} decompresses to another size than the directory says"
        raise Damage("crc-mismatch", why, record.payload)
    return data


def add_sums(records: Sequence[Record], anatomy: Anatomy, skipped: Collection[Record] = ()) -> None:
    """Add to ``anatomy`` the CRC of each record and the bytes that it covers, but not if ``skipped``."""
    for r in records:
        if not r.stored or r.payload < 0:
            continue
        is_skipped = r in skipped
        if is_skipped or r.method not in (STORED, DEFLATED):
            why = "its writer stored no checksum" if is_skipped else "an unknown method of compression"
            anatomy.explain(r.payload, r.stored, f"{r.name[:200]!r}: {why}", Guard.UNPROTECTED)
            continue
        stored = r.method == STORED
        piece = Extent(r.payload, r.stored) if stored else Deflated(r.payload, r.stored, r.size)
        anatomy.sums.append(Sum(r.name, r.crc, (piece,), r.payload))


def is_numpy_zip(head: bytes) -> bool:
    """Return whether the first header has 64-bit sizes in an extra field, as only numpy.savez writes them."""
    return head[4:6] == b"\x2d\0" and head[28:30] == b"\x14\0"


def add_all_sums(records: Sequence[Record], anatomy: Anatomy) -> Iterator[Finding]:
    """Add the CRCs of an archive's records to ``anatomy``; yield findings if none has any."""
    no_sums = have_no_sums(records)
    if no_sums:
        yield finding("checksum-off", "every record has the checksum 0")
        yield finding("not-checksummed", "nothing in this file is protected by a checksum")
    add_sums(records, anatomy, frozenset(records) if no_sums else ())


def have_no_sums(records: Sequence[Record]) -> bool:
    """Return whether no record has a CRC (torch's set_crc32_options): a single one without is damaged."""
    with_data = [r for r in records if r.size]
    return bool(with_data) and not any(r.crc for r in with_data)
