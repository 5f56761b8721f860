"""The central directory of a zip archive: one entry per record (APPNOTE 4.3.12)."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple

from ckpt_tools.findings import finding
from ckpt_tools.formats.archives.zip_end import End
from ckpt_tools.formats.common.format import Anatomy, Damage
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Guard
from ckpt_tools.storage import Source

MAX_DIRECTORY = 64 << 20
"""Bytes of central directory read at most."""
MAX_RECORDS = 300_000
"""Records at most: each takes some 700 bytes of memory, and a state_dict has one for each tensor."""
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_DISKS = (0, 1)
"""Those on which torch (miniz) finds a record."""
_TOP = 0xFFFFFFFF
_PYTHON = (0x0314, 0x032D)  # zipfile's own version on Unix: 2.0, and 4.5 for ZIP64
_MODE, _REGULAR = 0o600 << 16, 1 << 31
"""The attributes it gives to a record that has none, and the bit that says "a regular file"."""
KNOWN = frozenset({0x5455, 0x7875, 0x5855, 0x7855, 0x000A, 0x7075, 0x6375, 0xCAFE, 0xD935})
"""Extra fields of other programs: times, owners and names that every reader may ignore (APPNOTE 4.5.2,
Info-ZIP's extrafld.txt).
"""


class Entry(NamedTuple):
    """One entry; ``where`` is its own offset, ``header`` that of the record, ``wide`` counts its 64-bit
    numbers, ``comment`` is a length in bytes.
    """

    raw: bytes
    made: int
    need: int
    flags: int
    method: int
    time: int
    date: int
    crc: int
    stored: int
    size: int
    internal: int
    external: int
    header: int
    wide: int
    where: int
    extra: bytes
    comment: int


def entries(source: Source, end: End, torch: bool, anatomy: Anatomy) -> Generator[Finding, None, list[Entry]]:
    """All entries in the directory's order. Raises Damage when the directory cannot be followed to its end"""
    _bound(end)
    data, at, out = source.read(end.directory, end.size), 0, list[Entry]()
    for i in range(end.entries):
        where = end.directory + at
        if at + 46 > len(data):
            raise Damage("bad-header", f"the directory holds {i} records, its end says {end.entries}", where)
        fields = _CENTRAL.unpack_from(data, at)
        stored, size, n, x, comment, disk, internal, external, header = fields[8:]
        if fields[0] != b"PK\1\2":
            raise Damage("bad-header", f"directory entry {i} has a damaged signature", where)
        raw, extra = data[at + 46 : at + 46 + n], data[at + 46 + n : at + 46 + n + x]
        at += 46 + n + x + comment
        if at > len(data):
            raise Damage("bad-header", f"directory entry {i} reaches beyond the directory", where)
        wide = (stored, size, header).count(_TOP)
        if extra:
            told = (size, stored, header)
            size, stored, header = yield from _sizes(extra, i, told, torch, where)
        if header + 30 + n + stored > end.directory:
            raise Damage("bad-header", f"directory entry {i} places its record outside the file", where)
        if torch and disk not in _DISKS:
            yield finding("bad-header", f"directory entry {i} is on disk {disk}", offset=where)
        elif disk or (torch and comment):
            what = f"directory entry {i} has a disk number or a comment, which its writer never sets"
            yield finding("odd-header", what, offset=where)
        numbers = (*fields[1:8], stored, size, internal, external, header, wide, where)
        out.append(Entry._make((raw, *numbers, extra, comment)))
    if at != len(data):
        what = f"the directory has {len(data) - at} bytes after its last entry"
        raise Damage("bad-header", what, end.directory + at)
    writer = yield from _alike(out, torch)
    if anatomy.regions is not None:
        _explain(out, writer, anatomy)
    return out


def _bound(end: End) -> None:
    """Raises Damage for a directory that is too large to be read."""
    if end.size > MAX_DIRECTORY:
        why = f"the archive's directory has {end.size:,} bytes; more than {MAX_DIRECTORY:,} are not read"
        raise Damage("unread-pickle", why, end.directory)
    if end.entries > MAX_RECORDS:
        why = f"the archive has {end.entries:,} records; more than {MAX_RECORDS:,} are not read"
        raise Damage("unread-pickle", why, end.directory)


def _sizes(
    extra: bytes, i: int, told: tuple[int, int, int], torch: bool, where: int
) -> Generator[Finding, None, tuple[int, int, int]]:
    """Size, stored size and header offset of entry ``i``,
    those in its ZIP64 field before those in the entry.
    """
    for kind, value in extras(extra):
        if kind == 1:
            told = _wide(value, told, torch, where)
        elif kind < 0 or (torch and kind not in KNOWN):
            why = f"directory entry {i} has an extra field that does not belong there"
            yield finding("bad-header", why, offset=where)
    return told


def _wide(value: bytes, told: tuple[int, int, int], torch: bool, where: int) -> tuple[int, int, int]:
    """Size, stored size and header offset from a ZIP64 field: it holds those that the entry itself has no
    room for (APPNOTE 4.5.3).
    """
    missing = sum(v == _TOP for v in told)
    if len(value) < 8 * missing or (torch and len(value) != 8 * missing):
        raise Damage("bad-header", "a directory entry has a ZIP64 field of the wrong length", where)
    values = iter(struct.unpack(f"<{missing}Q", value[: 8 * missing]))
    size, stored, header = (next(values) if v == _TOP else v for v in told)
    return size, stored, header


def _alike(out: Sequence[Entry], torch: bool) -> Generator[Finding, None, str]:
    """Three fields that no reader needs. Returns whose values they are checked against.

    That is "miniz", "python" or "" for an unknown writer. The miniz of torch writes 0 in all of them.
    Python's zipfile writes few values; one that is a single bit off is a flipped bit.
    """
    writer = _writer(out, torch)
    odd = {"miniz": _not_miniz, "python": _flipped}.get(writer)
    if odd is None:
        return writer
    for e in out:
        if odd(e):
            why = f"the directory entry of {name_of(e)[:200]!r} is unlike the others"
            yield finding("odd-header", why, offset=e.where)
    return writer


def _writer(out: Sequence[Entry], torch: bool) -> str:
    usual = Counter(e.made for e in out).most_common(1)
    if torch and usual and not usual[0][0]:
        return "miniz"
    return "python" if len(out) > 1 and any(e.made in _PYTHON for e in out) else ""


def _not_miniz(e: Entry) -> bool:
    return bool(e.made or e.internal or e.external)


def _flipped(e: Entry) -> bool:
    """Whether a field is one bit away from what Python's zipfile writes."""
    if any((e.made ^ m).bit_count() == 1 for m in _PYTHON) or e.internal.bit_count() == 1:
        return True
    off = e.external ^ _MODE
    return off.bit_count() == 1 and off != _REGULAR


def _explain(out: Sequence[Entry], writer: str, anatomy: Anatomy) -> None:
    """The bytes of the directory: nearly all repeat what a record's own header says."""
    miniz = writer == "miniz"
    for e in out:
        what = f"directory entry of {name_of(e)[:200]!r}"
        stop = e.where + 46 + len(e.raw)
        if miniz and not e.extra:
            anatomy.explain(e.where, stop - e.where, what)
            continue
        made = miniz or (writer != "" and e.made in _PYTHON)
        mode = miniz or (writer != "" and e.external == _MODE)
        own = all(kind == 1 for kind, _ in extras(e.extra)) and len(e.extra) == 4 + 8 * e.wide
        fields = ": 64-bit sizes" if own else ": extra fields that nothing checks"
        anatomy.explain(e.where, 4, what)
        anatomy.explain(e.where + 4, 2, what + ": version of its writer", _guard(made))
        anatomy.explain(e.where + 6, 30, what)
        internal = _guard(writer != "" and not e.internal)
        anatomy.explain(e.where + 36, 2, what + ": internal attributes", internal)
        anatomy.explain(e.where + 38, 3, what + ": attributes", _guard(mode))
        anatomy.explain(e.where + 41, 1, what + ": attributes, type of file", _guard(miniz))
        anatomy.explain(e.where + 42, stop - e.where - 42, what)
        anatomy.explain(stop, len(e.extra), what + fields, _guard(own))
        comment = what + ": comment that nothing checks"
        anatomy.explain(stop + len(e.extra), e.comment, comment, Guard.UNPROTECTED)


def _guard(known: bool) -> Guard:
    return Guard.STRUCTURE if known else Guard.UNPROTECTED


def extras(extra: bytes) -> Iterator[tuple[int, bytes]]:
    """The (id, value) pairs of an extra field; id -1 for bytes that form no pair."""
    at = 0
    while at < len(extra):
        kind, n = struct.unpack_from("<2H", extra, at) if at + 4 <= len(extra) else (-1, 0)
        if kind < 0 or at + 4 + n > len(extra):
            yield -1, extra[at:]
            return
        yield kind, extra[at + 4 : at + 4 + n]
        at += 4 + n


def name_of(e: Entry) -> str:
    """The record's name; bytes that are not UTF-8 though the entry says so are escaped."""
    try:
        return e.raw.decode("utf-8" if e.flags & 0x800 else "cp437")
    except UnicodeDecodeError:
        return e.raw.decode("utf-8", "backslashreplace")
