"""The end records of a zip archive, which must fill the last bytes of the file exactly, and the central
directory that they lead to: one entry per record (APPNOTE 4.3.12 to 4.3.16).
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Damage
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Guard
from ckpt_tools.storage import Source

MAX_DIRECTORY = 64 << 20
"""The most bytes of a central directory that is read."""
MAX_RECORDS = 300_000
"""The most records: each takes some 700 bytes of memory, and a state_dict has one for each tensor."""
_EOCD = struct.Struct("<4s4H2IH")  # APPNOTE 4.3.16
_LOCATOR = struct.Struct("<4sIQI")  # APPNOTE 4.3.15
_END64 = struct.Struct("<4sQ2H2I4Q")  # APPNOTE 4.3.14
_TOPS = (0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF)  # the highest values of an end record's numbers
_MAKERS = (798, 45)  # "version made by" of a ZIP64 end record by miniz and by Python's zipfile
_WINDOW = 22 + 0xFFFF  # how far from the end a comment may push the end record
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_DISKS = (0, 1)
"""The disk numbers with which torch (miniz) finds a record."""
_TOP = 0xFFFFFFFF  # in an entry: the number is in the ZIP64 field
_PYTHON_VERSIONS = (0x0314, 0x032D)  # "version made by" of zipfile on Unix: 2.0, and 4.5 for ZIP64
_PYTHON_MODE, _REGULAR = 0o600 << 16, 1 << 31
"""The attributes that zipfile gives to a record without any, and the bit that says "a regular file"."""
KNOWN = frozenset({0x5455, 0x7875, 0x5855, 0x7855, 0x000A, 0x7075, 0x6375, 0xCAFE, 0xD935})
"""Ids of other programs' extra fields: times, owners and names that every reader may ignore (APPNOTE 4.5.2,
Info-ZIP's extrafld.txt).
"""


class End(NamedTuple):
    """The numbers in an end record: entries on this disk and in all, the directory's bytes and offset."""

    here: int
    entries: int
    size: int
    directory: int


class Record(Struct, eq=False, gc=False):
    """One file of the archive, as its directory entry at ``where`` describes it. ``header`` and ``payload``
    (-1 if the local header is damaged) are offsets, ``wide`` counts 64-bit numbers, ``comment`` bytes;
    ``name`` has bytes that are no text escaped.
    """

    name: str
    header: int
    payload: int
    stored: int
    size: int
    crc: int
    method: int
    flags: int
    raw: bytes = b""
    made: int = 0
    need: int = 0
    time: int = 0
    date: int = 0
    internal: int = 0
    external: int = 0
    wide: int = 0
    where: int = 0
    extra: bytes = b""
    comment: int = 0

    @property
    def place(self) -> int:
        """The offset for findings: that of the payload, or of the header if the payload's is unknown."""
        return self.payload if self.payload >= 0 else self.header


def read_end(source: Source, anatomy: Anatomy, *, comment: bool) -> Generator[Finding, None, End]:
    """Check a zip's end records and return their numbers; ``comment``: a comment is allowed. Raise Damage."""
    at = yield from _find_end(source, comment)
    base = max(0, at - 76)
    data = source.read(base, at + 22 - base)
    _, disk, disk_cd, *numbers, _ = _EOCD.unpack(data[-22:])
    end, limit = End(*numbers), at
    anatomy.explain(at, 22, "end record")
    after = source.size - at - 22
    anatomy.explain(at + 22, after, "the archive's comment: nothing checks it", Guard.UNPROTECTED)
    if len(data) >= 42 and data[-42:-38] == b"PK\6\7":
        limit = _LOCATOR.unpack(data[-42:-22])[2]
        end = yield from _read_zip64(source, anatomy, data, at, end, comment=comment)
    if end.here != end.entries:
        yield finding("bad-header", "the end record has two different numbers of records", offset=at)
    if disk or disk_cd:
        yield finding("odd-header", "the end record names other disks than one", offset=at)
    stop = end.directory + end.size
    if stop > limit or end.entries * 46 > end.size:
        raise Damage("bad-header", "the end record describes a directory that does not fit", at)
    if stop != limit:
        between = f"{limit - stop} bytes lie between the directory and its end record"
        yield finding("bad-header", between, offset=stop)
        if source.read(end.directory, min(4, end.size)) != b"PK\1\2":  # bytes before the archive move it all
            moved = "the archive does not begin where its directory says: there are bytes before it"
            raise Damage("bad-header", moved, 0)
    if end.size > MAX_DIRECTORY:
        why = f"the archive's directory has {end.size:,} bytes; more than {MAX_DIRECTORY:,} are not read"
        raise Damage("unread-pickle", why, end.directory)
    if end.entries > MAX_RECORDS:
        why = f"the archive has {end.entries:,} records; more than {MAX_RECORDS:,} are not read"
        raise Damage("unread-pickle", why, end.directory)
    return end


def _find_end(source: Source, comment: bool) -> Generator[Finding, None, int]:
    """Return the offset of a zip's end record. Raise Damage if there is none: it is written last."""
    last = source.read(source.size - 22, 22) if source.size >= 22 else b""
    if last.startswith(b"PK\5\6") and last.endswith(b"\0\0"):
        return source.size - 22
    n = min(_WINDOW + 76, source.size)
    tail = source.read(source.size - n, n)
    at = tail.rfind(b"PK\5\6")
    if at < 0 or n - at < 22:
        if tail[-42:-38] == b"PK\6\7":
            raise Damage("bad-header", "the end record's signature is damaged", source.size - 22)
        zeros = len(tail) - len(tail.rstrip(b"\0"))
        why = f"its last {zeros:,} bytes or more are zero" if zeros > 64 else ""
        why = why or "its end record is missing or cut off"
        raise Damage("truncated", f"the archive is not complete: {why}", source.size)
    end = at + 22 + int.from_bytes(tail[at + 20 : at + 22], "little")
    where = source.size - n + at
    if end > n:
        what = f"the archive's comment reaches {end - n} bytes beyond the file"
        yield finding("bad-header", what, offset=where + 20)
    elif end < n:
        what = f"{n - end} bytes follow the end of the archive"
        yield finding("trailing-data", what, offset=where + end - at)
    elif not comment:
        what = f"the archive ends in a comment of {end - at - 22} bytes, which its writer never adds"
        yield finding("trailing-data", what, offset=where + 22)
    return where


def _read_zip64(
    source: Source, anatomy: Anatomy, data: bytes, at: int, short: End, *, comment: bool
) -> Generator[Finding, None, End]:
    """Check the ZIP64 locator and end record; return its numbers, which supersede ``short``. Raise Damage."""
    _, disk64, where, disks = _LOCATOR.unpack(data[-42:-22])
    if where + 56 > at - 20:
        raise Damage("bad-header", "the ZIP64 locator points outside the file", at - 20)
    raw = source.read(where, 56) if where != at - 76 else data[:56]
    sig, length, made, need, own, own_cd, *numbers = _END64.unpack(raw)
    end = End(*numbers)
    if sig != b"PK\6\6" or where + 12 + length != at - 20:
        raise Damage("bad-header", "the ZIP64 end record is damaged or not where its locator says", at - 20)
    if _do_ends_differ(short, end, comment):
        yield finding("bad-header", "the two end records disagree on the directory", offset=at)
    if disk64 or disks != 1 or own or own_cd:
        yield finding("odd-header", "an end record names other disks than one", offset=where)
    foreign = comment and all((made ^ m).bit_count() > 1 for m in _MAKERS)  # another writer
    if need != 45 or not (made in _MAKERS or foreign):
        yield finding("odd-header", "the ZIP64 end record has an unusual version", offset=where + 12)
    anatomy.explain(where, 12, "ZIP64 end record")
    anatomy.explain(where + 12, 2, "ZIP64 end record: version of its writer", _choose_guard(made in _MAKERS))
    anatomy.explain(where + 14, 42, "ZIP64 end record")
    between = at - 20 - where - 56
    anatomy.explain(where + 56, between, "ZIP64 end record: data that nothing checks", Guard.UNPROTECTED)
    anatomy.explain(at - 20, 20, "ZIP64 locator")
    return end


def _do_ends_differ(short: End, end: End, comment: bool) -> bool:
    """Return whether the short record has a number that is neither the long one's nor refers to it."""
    numbers = zip(short, end, _TOPS, strict=True)
    return any(a != min(b, top) and not (comment and a == top) for a, b, top in numbers)


def read_entries(
    source: Source, end: End, torch: bool, anatomy: Anatomy
) -> Generator[Finding, None, list[Record]]:
    """Return the entries of a zip's directory, in its order. Raise Damage if an entry is cut or misplaced."""
    data, at, out = source.read(end.directory, end.size), 0, list[Record]()
    for i in range(end.entries):
        where = end.directory + at
        if at + 46 > len(data):
            raise Damage("bad-header", f"the directory holds {i} records, its end says {end.entries}", where)
        sig, made, need, flags, method, time, date, crc, stored, size, *more = _CENTRAL.unpack_from(data, at)
        n, x, comment, disk, internal, external, header = more
        if sig != b"PK\1\2":
            raise Damage("bad-header", f"directory entry {i} has a damaged signature", where)
        raw, extra = data[at + 46 : at + 46 + n], data[at + 46 + n : at + 46 + n + x]
        at += 46 + n + x + comment
        if at > len(data):
            raise Damage("bad-header", f"directory entry {i} reaches beyond the directory", where)
        wide = (stored, size, header).count(_TOP)
        if extra:
            size, stored, header = yield from _read_wide_sizes(extra, i, (size, stored, header), torch, where)
        if header + 30 + n + stored > end.directory:
            raise Damage("bad-header", f"directory entry {i} places its record outside the file", where)
        if torch and disk not in _DISKS:
            yield finding("bad-header", f"directory entry {i} is on disk {disk}", offset=where)
        elif disk or (torch and comment):
            what = f"directory entry {i} has a disk number or a comment, which its writer never sets"
            yield finding("odd-header", what, offset=where)
        try:
            name = raw.decode("utf-8" if flags & 0x800 else "cp437")
        except UnicodeDecodeError:
            name = raw.decode("utf-8", "backslashreplace")
        main, attributes = (name, header, -1, stored, size, crc, method, flags), (internal, external)
        out.append(Record(*main, raw, made, need, time, date, *attributes, wide, where, extra, comment))
    if at != len(data):
        what = f"the directory has {len(data) - at} bytes after its last entry"
        raise Damage("bad-header", what, end.directory + at)
    yield from _check_unused_fields(out, torch, anatomy)
    return out


def _read_wide_sizes(
    extra: bytes, i: int, sizes: tuple[int, int, int], torch: bool, where: int
) -> Generator[Finding, None, tuple[int, int, int]]:
    """Return size, stored size and header offset, some from the ZIP64 field (APPNOTE 4.5.3). Raise Damage."""
    for kind, value in extras(extra):
        if kind == 1:
            missing = sizes.count(_TOP)
            if len(value) < 8 * missing or (torch and len(value) != 8 * missing):
                raise Damage("bad-header", "a directory entry has a ZIP64 field of the wrong length", where)
            values = iter(struct.unpack(f"<{missing}Q", value[: 8 * missing]))
            size, stored, header = (next(values) if v == _TOP else v for v in sizes)
            sizes = size, stored, header
        elif kind < 0 or (torch and kind not in KNOWN):
            why = f"directory entry {i} has an extra field that does not belong there"
            yield finding("bad-header", why, offset=where)
    return sizes


def _check_unused_fields(out: Sequence[Record], torch: bool, anatomy: Anatomy) -> Iterator[Finding]:
    """Check the fields made, internal and external, which no reader needs: torch's miniz writes 0 in each,
    Python's zipfile few values, and one bit off is a flipped bit. Also explain all entries to ``anatomy``.
    """
    made = [e.made for e in out]
    miniz = torch and (not any(made) or not Counter(made).most_common(1)[0][0])
    python = not miniz and len(out) > 1 and not set(made).isdisjoint(_PYTHON_VERSIONS)
    for e in out if miniz or python else ():
        odd = bool(e.made or e.internal or e.external) if miniz else _is_flipped(e)
        if odd:
            why = f"the directory entry of {e.name[:200]!r} is unlike the others"
            yield finding("odd-header", why, offset=e.where)
    for e in out if anatomy.regions is not None else ():
        _explain_entry(e, miniz, python, anatomy)


def _is_flipped(e: Record) -> bool:
    """Return whether made, internal or external is one bit away from a value of Python's zipfile."""
    if any((e.made ^ m).bit_count() == 1 for m in _PYTHON_VERSIONS) or e.internal.bit_count() == 1:
        return True
    off = e.external ^ _PYTHON_MODE
    return off.bit_count() == 1 and off != _REGULAR


def _explain_entry(e: Record, miniz: bool, python: bool, anatomy: Anatomy) -> None:
    """Explain an entry's bytes to ``anatomy``: the record's own header repeats nearly all of them."""
    what = f"directory entry of {e.name[:200]!r}"
    stop = e.where + 46 + len(e.raw)
    if miniz and not e.extra:
        anatomy.explain(e.where, stop - e.where, what)
        return
    own = all(kind == 1 for kind, _ in extras(e.extra)) and len(e.extra) == 4 + 8 * e.wide
    fields = ": 64-bit sizes" if own else ": extra fields that nothing checks"
    anatomy.explain(e.where, 4, what)
    guard = _choose_guard(miniz or (python and e.made in _PYTHON_VERSIONS))
    anatomy.explain(e.where + 4, 2, what + ": version of its writer", guard)
    anatomy.explain(e.where + 6, 30, what)
    guard = _choose_guard((miniz or python) and not e.internal)
    anatomy.explain(e.where + 36, 2, what + ": internal attributes", guard)
    guard = _choose_guard(miniz or (python and e.external == _PYTHON_MODE))
    anatomy.explain(e.where + 38, 3, what + ": attributes", guard)
    anatomy.explain(e.where + 41, 1, what + ": attributes, type of file", _choose_guard(miniz))
    anatomy.explain(e.where + 42, stop - e.where - 42, what)
    anatomy.explain(stop, len(e.extra), what + fields, _choose_guard(own))
    comment = what + ": comment that nothing checks"
    anatomy.explain(stop + len(e.extra), e.comment, comment, Guard.UNPROTECTED)


def _choose_guard(is_known: bool) -> Guard:
    """Return the guard of a field: structure if its right value is known, so that any change is seen."""
    return Guard.STRUCTURE if is_known else Guard.UNPROTECTED


def extras(extra: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the (id, value) pairs of an extra field; id -1 for bytes at its end that form no pair."""
    at = 0
    while at < len(extra):
        kind, n = struct.unpack_from("<2H", extra, at) if at + 4 <= len(extra) else (-1, 0)
        if kind < 0 or at + 4 + n > len(extra):
            yield -1, extra[at:]
            return
        yield kind, extra[at + 4 : at + 4 + n]
        at += 4 + n
