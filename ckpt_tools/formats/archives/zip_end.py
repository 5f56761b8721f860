"""The end of a zip archive: finds the central directory from the end records, which must tile the file's last
bytes exactly.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator
from typing import NamedTuple

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Damage
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Guard
from ckpt_tools.storage import Source

_EOCD = struct.Struct("<4s4H2IH")  # APPNOTE 4.3.16
_LOCATOR = struct.Struct("<4sIQI")  # APPNOTE 4.3.15
_END64 = struct.Struct("<4sQ2H2I4Q")  # APPNOTE 4.3.14
_TOPS = (0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF)
_MADE = (798, 45)  # what miniz and Python's zipfile write as the version that made a ZIP64 end record
_WINDOW = 22 + 0xFFFF  # how far from the end a comment may push the end record


class End(NamedTuple):
    """Where the central directory lies, how many bytes it has and how many entries."""

    directory: int
    size: int
    entries: int


class _Record(NamedTuple):
    """What an end record says: entries on this disk, entries in all, bytes of the directory, and where it
    begins.
    """

    here: int
    entries: int
    size: int
    start: int


def end_of(source: Source, anatomy: Anatomy, *, comment: bool) -> Generator[Finding, None, End]:
    """Find and check the end records; ``comment`` says whether the archive may have one.

    Raises Damage when there is no end.
    """
    at = yield from _eocd(source, comment)
    base = max(0, at - 76)
    data = source.read(base, at + 22 - base)
    _, disk, disk_cd, here, entries, size, start, _ = _EOCD.unpack(data[-22:])
    record, limit = _Record(here, entries, size, start), at
    anatomy.explain(at, 22, "end record")
    rest = source.size - at - 22
    anatomy.explain(at + 22, rest, "the archive's comment: nothing checks it", Guard.UNPROTECTED)
    if len(data) >= 42 and data[-42:-38] == b"PK\6\7":
        limit = _LOCATOR.unpack(data[-42:-22])[2]
        record = yield from _zip64(source, anatomy, data, at, record, comment=comment)
    if record.here != record.entries:
        yield finding("bad-header", "the end record has two different numbers of records", offset=at)
    if disk or disk_cd:
        yield finding("odd-header", "the end record names other disks than one", offset=at)
    yield from _place(source, record, at, limit)
    return End(record.start, record.size, record.entries)


def _zip64(
    source: Source, anatomy: Anatomy, data: bytes, at: int, told: _Record, *, comment: bool
) -> Generator[Finding, None, _Record]:
    """Check the ZIP64 locator and the record that it leads to, which counts for more than ``told``.

    ``data`` are the file's bytes up to the end of its end record, which begins at ``at``.
    """
    _, disk64, where, disks = _LOCATOR.unpack(data[-42:-22])
    if where + 56 > at - 20:
        raise Damage("bad-header", "the ZIP64 locator points outside the file", at - 20)
    raw = source.read(where, 56) if where != at - 76 else data[:56]
    sig, length, made, need, own, own_cd, *more = _END64.unpack(raw)
    record = _Record(*more)
    if sig != b"PK\6\6" or where + 12 + length != at - 20:
        raise Damage(
            "bad-header", "the ZIP64 end record is damaged, or is not where its locator says", at - 20
        )
    if _contradicts(told, record, comment):
        yield finding("bad-header", "the two end records disagree on the directory", offset=at)
    if disk64 or disks != 1 or own or own_cd:
        yield finding("odd-header", "an end record names other disks than one", offset=where)
    if need != 45 or not _is_version(made, comment):
        yield finding("odd-header", "the ZIP64 end record has an unusual version", offset=where + 12)
    known = Guard.STRUCTURE if made in _MADE else Guard.UNPROTECTED
    anatomy.explain(where, 12, "ZIP64 end record")
    anatomy.explain(where + 12, 2, "ZIP64 end record: version of its writer", known)
    anatomy.explain(where + 14, 42, "ZIP64 end record")
    rest = at - 20 - where - 56
    anatomy.explain(where + 56, rest, "ZIP64 end record: data that nothing checks", Guard.UNPROTECTED)
    anatomy.explain(at - 20, 20, "ZIP64 locator")
    return record


def _is_version(made: int, foreign: bool) -> bool:
    """Whether a writer may have set this version; foreign ones set what they like."""
    return made in _MADE or (foreign and all((made ^ m).bit_count() > 1 for m in _MADE))


def _contradicts(told: _Record, record: _Record, comment: bool) -> bool:
    """Whether the short record says neither the same nor "see the ZIP64 record", which is its top value.

    miniz writes the top value only where it must, some other writers everywhere.
    """
    return any(
        a != min(b, top) and not (comment and a == top) for a, b, top in zip(told, record, _TOPS, strict=True)
    )


def _place(source: Source, record: _Record, at: int, limit: int) -> Iterator[Finding]:
    """Whether the directory ends at ``limit``, where the end records begin. Raises Damage where it cannot lie
    in the file.
    """
    start, size = record.start, record.size
    if start + size > limit or record.entries * 46 > size:
        raise Damage("bad-header", "the end record describes a directory that does not fit", at)
    if start + size == limit:
        return
    between = f"{limit - start - size} bytes lie between the directory and its end record"
    yield finding("bad-header", between, offset=start + size)
    if source.read(start, min(4, size)) != b"PK\1\2":  # bytes put before the archive move it all
        moved = "the archive does not begin where its directory says: there are bytes before it"
        raise Damage("bad-header", moved, 0)


def _eocd(source: Source, comment: bool) -> Generator[Finding, None, int]:
    """Where the end record lies. Raises Damage: without one the archive was never finished, because it is
    written last.
    """
    last = source.read(source.size - 22, 22) if source.size >= 22 else b""
    if last.startswith(b"PK\5\6") and last.endswith(b"\0\0"):
        return source.size - 22
    n = min(_WINDOW + 76, source.size)
    tail = source.read(source.size - n, n)
    at = tail.rfind(b"PK\5\6")
    if at < 0 or n - at < 22:
        raise _without_end(tail, source.size)
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


def _without_end(tail: bytes, size: int) -> Damage:
    """What to call an archive of ``size`` bytes in whose last bytes no end record begins."""
    if tail[-42:-38] == b"PK\6\7":
        return Damage("bad-header", "the end record's signature is damaged", size - 22)
    zeros = len(tail) - len(tail.rstrip(b"\0"))
    why = "its end record is missing or cut off"
    if zeros > 64:
        why = f"its last {zeros:,} bytes or more are zero"
    return Damage("truncated", f"the archive is not complete: {why}", size)
