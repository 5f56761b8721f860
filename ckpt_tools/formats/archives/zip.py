"""A strict zip reader: every byte of the archive must belong to a record, its header or the directory, and
all three must agree.

Facts: PKWARE APPNOTE 6.3.10 sections 4.3 to 4.5; what torch's archives look like is from
caffe2/serialize/inline_container.cc and third_party/miniz-3.0.2. Offsets are relative to the source's
beginning, so an archive inside another file needs only its own Source.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Generator, Iterator, Sequence
from typing import NamedTuple

from ckpt_tools.checksum import Deflated, Extent, Sum
from ckpt_tools.findings import finding
from ckpt_tools.formats.archives.zip_directory import KNOWN, Entry, entries, extras, name_of
from ckpt_tools.formats.archives.zip_end import end_of
from ckpt_tools.formats.common.format import Anatomy, Damage
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Guard
from ckpt_tools.storage import Source

STORED, DEFLATED = 0, 8
_LOCAL = struct.Struct("<4s5H3I2H")  # APPNOTE 4.3.7
_SHORT, _WIDE = struct.Struct("<3I"), struct.Struct("<I2Q")  # data descriptors, APPNOTE 4.3.9
_FLAGS = 0x0001 | 0x0006 | 0x0008 | 0x0800  # encrypted, deflate's effort, data descriptor, UTF-8
_TORCH_FLAGS = 0x0808
_NEAR = 256
_FIELD, _ALIGNED = 4, 64
"""Torch puts a field before each payload, of these four bytes and as many more as begin the payload at a
multiple of 64 (caffe2/serialize/inline_container.cc, getPadding).
"""


class Record(NamedTuple):
    """One file of the archive, as its central directory entry has it; offsets and sizes in bytes.

    ``header`` is where its local header lies, ``payload`` where its ``stored`` bytes begin (-1 when the local
    header is damaged), ``size`` what they decompress to.
    """

    name: str
    header: int
    payload: int
    stored: int
    size: int
    crc: int
    method: int
    flags: int

    @property
    def place(self) -> int:
        """Where to point at: the payload, or the header when that is all that is known."""
        return self.payload if self.payload >= 0 else self.header


class _Header(NamedTuple):
    """A local header (APPNOTE 4.3.7); ``name`` and ``extra`` are the lengths of what follows it."""

    magic: bytes
    need: int
    flags: int
    method: int
    time: int
    date: int
    crc: int
    stored: int
    size: int
    name: int
    extra: int


class _Near:
    """Reads a little more than asked, because a record's descriptor and the next record's header lie side by
    side.
    """

    def __init__(self, source: Source) -> None:
        self.source, self.at, self.data = source, 0, b""
        self._spares = getattr(source, "spares", None)

    @property
    def may_spare(self) -> bool:
        """Whether the source is far away."""
        return self._spares is not None

    def await_headers(self, directory: Sequence[Entry]) -> None:
        """Tell a source far away what is read next."""
        if (wait := getattr(self.source, "await_ranges", None)) is not None:
            wait([(max(0, e.header - _WIDE.size - 4), _NEAR + len(e.raw)) for e in directory])

    def spares(self, offset: int, length: int) -> bool:
        """Whether the source is so far away that these bytes are not worth a request."""
        return self._spares is not None and bool(self._spares(offset, length))

    def get(self, offset: int, length: int) -> bytes:
        if not (self.at <= offset and offset + length <= self.at + len(self.data)):
            left = max(self.source.size - offset, length)
            self.at, self.data = offset, self.source.read(offset, min(max(length, _NEAR), left))
        return self.data[offset - self.at : offset - self.at + length]


def read_zip(source: Source, anatomy: Anatomy, *, torch: bool) -> Generator[Finding, None, list[Record]]:
    """Check the container and return its records in file order. Raises Damage when there is no directory to
    go by.

    With ``torch`` the archive must be as torch writes it: no comments, no foreign extra fields, all directory
    entries alike.
    """
    end = yield from end_of(source, anatomy, comment=not torch)
    directory = yield from entries(source, end, torch, anatomy)
    records: list[Record] = []
    near, at = _Near(source), 0
    directory.sort(key=lambda e: e.header)
    borders = (*(e.header for e in directory[1:]), end.directory)[: len(directory)]  # of none there is none
    near.await_headers(directory)
    assuming = torch and near.may_spare
    for e, border in zip(directory, borders, strict=True):
        name = name_of(e)
        if e.header != at:
            yield _gap(near, at, e.header, f"record {name[:200]!r}", "two records overlap")
        if assuming and (payload := _assumed(near, e, border)) >= 0:
            records.append(Record(name, e.header, payload, e.stored, e.size, e.crc, e.method, e.flags))
            at = border
            continue
        head = near.get(e.header, _LOCAL.size)
        payload = _as_torch_writes(near, e, head, border) if torch else -1
        if payload >= 0:
            if anatomy.regions is not None:
                anatomy.explain(e.header, payload - e.header, f"header of {name[:200]!r}")
        else:
            try:
                payload = yield from _local(near, e, head, name, border, torch=torch, anatomy=anatomy)
            except Damage as d:
                yield d.finding
        records.append(Record(name, e.header, payload, e.stored, e.size, e.crc, e.method, e.flags))
        if payload < 0:
            at = border
            continue
        at = payload + e.stored
        if e.flags & 8:
            at, wrong = _descriptor(near, e, at, border, anatomy)
            if wrong:
                yield finding("bad-header", f"record {name[:200]!r}{wrong}", offset=payload + e.stored)
    if at != end.directory:
        yield _gap(near, at, end.directory, "the directory", "a record overlaps the directory")
    yield from _names(records, torch)
    return records


def _assumed(near: _Near, e: Entry, border: int) -> int:
    """Where the payload begins if the record fills its place as torch would have it, where its header or what
    follows it would cost a request of its own; else -1.
    """
    if e.flags != _TORCH_FLAGS or e.method != STORED or e.wide or e.stored != e.size:
        return -1
    payload = -(-(e.header + _LOCAL.size + len(e.raw) + _FIELD) // _ALIGNED) * _ALIGNED
    if border - payload - e.stored not in (_SHORT.size + 4, _WIDE.size + 4):
        return -1
    far = near.spares(e.header, payload - e.header) or near.spares(payload + e.stored, _SHORT.size + 4)
    return payload if far else -1


def _gap(near: _Near, at: int, begin: int, before: str, overlap: str) -> Finding:
    """What is wrong when a record ends at ``at``, but what is next in the directory begins at ``begin``."""
    what = overlap
    if begin > at:
        hidden = near.get(at, 4) == b"PK\3\4"
        what = f"{begin - at} bytes belong to no record"
        what += ", and begin like a record that the directory does not name" if hidden else ""
    return finding("bad-header", f"before {before}: {what}", offset=min(at, begin))


def _as_torch_writes(near: _Near, e: Entry, head: bytes, border: int) -> int:
    """Where the payload begins, if every byte of the local header is as torch writes it, so that nothing
    needs a closer look; else -1.

    That is a stored record whose checksum and sizes follow it in a descriptor, with a field that pads its
    payload to 64 bytes.
    """
    if e.flags != _TORCH_FLAGS or e.method != STORED or e.wide or e.stored != e.size:
        return -1
    extra = int.from_bytes(head[-2:], "little")
    payload = e.header + _LOCAL.size + len(e.raw) + extra
    fixed = (b"PK\3\4", e.need, e.flags, STORED, e.time, e.date, 0, 0, 0, len(e.raw), extra)
    if extra < 4 or payload + e.stored > border or head != _LOCAL.pack(*fixed):
        return -1
    padding = b"FB" + (extra - 4).to_bytes(2, "little") + b"Z" * (extra - 4)
    return payload if near.get(e.header + _LOCAL.size, len(e.raw) + extra) == e.raw + padding else -1


def _local(
    near: _Near, e: Entry, raw: bytes, name: str, border: int, *, torch: bool, anatomy: Anatomy
) -> Generator[Finding, None, int]:
    """Compare one local header with its directory entry and return where the payload begins.

    Raises Damage when that is not known.
    """
    head = _Header(*_LOCAL.unpack(raw))
    payload = e.header + 30 + head.name + head.extra
    if head.magic != b"PK\3\4" or head.name != len(e.raw) or payload + e.stored > border:
        raise Damage("bad-header", f"record {name[:200]!r}: its header is damaged", e.header)
    texts = near.get(e.header + 30, head.name + head.extra)
    if (texts[: head.name], head.flags, head.method) != (e.raw, e.flags, e.method):
        yield _disagree(e, name, "name, flags or method")
    if (head.need, head.time, head.date) != (e.need, e.time, e.date):
        what = f"record {name[:200]!r}: header and directory disagree on version or time"
        yield finding("odd-header", what, offset=e.header)
    wide, foreign = yield from _local_extras(e, texts[head.name :], name, torch)
    yield from _sizes(e, head, name, wide=wide, torch=torch)
    if e.flags & 1 or e.flags & ~_FLAGS:
        what = f"record {name[:200]!r} is encrypted or has unknown flags"
        yield finding("bad-header", what, offset=e.header + 6)
    if e.method not in (STORED, DEFLATED) or (e.method == STORED and e.stored != e.size):
        what = f"record {name[:200]!r}: method {e.method} does not fit its sizes or is not known"
        yield finding("bad-header", what, offset=e.header + 8)
    anatomy.explain(e.header, 30 + head.name, f"header of {name[:200]!r}")
    what = f"header of {name[:200]!r}: extra fields" + (" that nothing checks" if foreign else "")
    guard = Guard.UNPROTECTED if foreign else Guard.STRUCTURE
    anatomy.explain(e.header + 30 + head.name, head.extra, what, guard)
    return payload


def _disagree(e: Entry, name: str, what: str) -> Finding:
    text = f"record {name[:200]!r}: its header and the directory disagree on {what}"
    return finding("bad-header", text, offset=e.header)


def _sizes(e: Entry, head: _Header, name: str, *, wide: bool, torch: bool) -> Iterator[Finding]:
    """Whether checksum and sizes are those of the directory.

    Where a descriptor follows the payload miniz leaves all three zero, and other writers may know them.
    """
    late = bool(e.flags & 8)
    pairs = (
        (head.crc, e.crc, "the checksum"),
        (head.stored, e.stored, "the size"),
        (head.size, e.size, "the size"),
    )
    for here, there, what in pairs:
        fits = here == 0 if late and torch else here == there or (late and here == 0)
        in_extra = here == 0xFFFFFFFF and wide and what == "the size"
        if not fits and not in_extra:
            yield _disagree(e, name, what)


def _local_extras(
    e: Entry, fields: bytes, name: str, torch: bool
) -> Generator[Finding, None, tuple[bool, bool]]:
    """Check a local header's extra fields; returns whether they hold both sizes in 64 bits, and whether there
    are some that nothing checks.
    """
    wide = foreign = False
    record, at = f"record {name[:200]!r}", e.header + 30 + len(e.raw)
    for kind, value in extras(fields):
        if kind == 1:
            wide = len(value) >= 16
            if not _are_sizes(e, value, torch):
                yield _disagree(e, name, "its 64-bit sizes")
        elif kind == 0x4246:  # "FB": pads a payload to 64 bytes
            if value.strip(b"Z"):
                yield finding("odd-header", f"{record}: its padding is not all 'Z'", offset=at)
        elif kind < 0 or (torch and kind not in KNOWN):
            yield finding("bad-header", f"{record}: its header has a damaged extra field", offset=at)
        else:
            foreign = True
    return wide, foreign


def _are_sizes(e: Entry, value: bytes, torch: bool) -> bool:
    """Whether a local header's ZIP64 field repeats the sizes of the directory, or leaves them out.

    With a descriptor behind the payload they need not be known yet; miniz knows one of them, and adds the
    header's own offset.
    """
    sizes: list[tuple[int, ...]] = [(), (e.size, e.stored)]
    if e.flags & 8:
        sizes = [(), (e.size, 0)] if torch and not e.made else [*sizes, (e.size, 0), (0, 0)]
    whole = len(value) - len(value) % 8
    parts = struct.unpack(f"<{whole // 8}Q", value[:whole])
    return whole == len(value) and any(parts in (s, (*s, e.header)) for s in sizes)


def _descriptor(near: _Near, e: Entry, at: int, border: int, anatomy: Anatomy) -> tuple[int, str]:
    """Where the data descriptor at ``at`` ends (APPNOTE 4.3.9), and what is wrong with it; "" where it says
    what the directory says.
    """
    n = border - at
    if n not in (12, 16, 20, 24):
        n = 24 if e.wide else 16
        if at + n > border:
            return at, " has no room for its descriptor"
    if n < 20:
        sizes = _SHORT.pack(e.crc, e.stored & 0xFFFFFFFF, e.size & 0xFFFFFFFF)
    else:
        sizes = _WIDE.pack(e.crc, e.stored, e.size)
    # The signature is optional in the standard, and always there in practice.
    says_so = near.get(at, n) == (sizes if n in (12, 20) else b"PK\7\x08" + sizes)
    if anatomy.regions is not None:
        anatomy.explain(at, n, f"data descriptor of {name_of(e)[:200]!r}")
    return at + n, "" if says_so else ": its descriptor and the directory disagree"


def _names(records: Sequence[Record], torch: bool) -> Iterator[Finding]:
    twice = Severity.ERROR if torch else None  # torch takes the first, Python's zipfile the last
    seen: set[str] = set()
    for r in records:
        if "\0" in r.name:
            what = f"record {r.name[:200]!r} has a NUL in its name"
            yield finding("bad-header", what, offset=r.header + 30)
        if r.name.startswith(("/", "\\")) or (".." in r.name and _climbs(r.name)):
            what = f"record {r.name[:200]!r} leaves the archive's directory"
            yield finding("path-escape", what, offset=r.header + 30)
        # miniz finds names regardless of case
        key = r.name.lower() if torch and "/code/" not in r.name else r.name
        if key in seen:
            what = f"two records are called {r.name[:200]!r}"
            yield finding("duplicate-key", what, offset=r.header, severity=twice)
        seen.add(key)


def _climbs(name: str) -> bool:
    return ".." in name.replace("\\", "/").split("/")


def read_record(source: Source, record: Record, limit: int) -> bytes:
    """The uncompressed bytes of one record of at most ``limit`` bytes. Raises Damage."""
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


def protect(records: Sequence[Record], anatomy: Anatomy, skipped: Collection[Record] = ()) -> None:
    """Put the CRCs of ``records`` and the bytes they protect into the anatomy, except for those ``skipped``,
    which have none.
    """
    for r in records:
        if not r.stored or r.payload < 0:
            continue
        if skipped and r in skipped:
            what = f"{r.name[:200]!r}: its writer stored no checksum"
            anatomy.explain(r.payload, r.stored, what, Guard.UNPROTECTED)
        elif r.method == STORED:
            anatomy.sums.append(Sum(r.name, r.crc, (Extent(r.payload, r.stored),), r.payload))
        elif r.method == DEFLATED:
            anatomy.sums.append(Sum(r.name, r.crc, (Deflated(r.payload, r.stored, r.size),), r.payload))
        else:
            what = f"{r.name[:200]!r}: an unknown method of compression"
            anatomy.explain(r.payload, r.stored, what, Guard.UNPROTECTED)


def of_numpy(head: bytes) -> bool:
    """Whether the first local header is as numpy.savez writes it: its extra field has 64-bit sizes, where
    torch's pads.
    """
    return head[4:6] == b"\x2d\0" and head[28:30] == b"\x14\0"


def unsummed(records: Sequence[Record]) -> bool:
    """Whether the writer stored no CRC at all: one record with CRC 0 is damaged, all of them are not (torch's
    set_crc32_options).
    """
    with_data = [r for r in records if r.size]
    return bool(with_data) and not any(r.crc for r in with_data)
