"""The central directory of a zip archive: one entry per record (APPNOTE 4.3.12)."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple

from ckpt_tools.codes import finding
from ckpt_tools.formats._base import Damage
from ckpt_tools.formats._zipend import End
from ckpt_tools.model import Finding
from ckpt_tools.storage import Source

MAX_DIRECTORY = 256 << 20
"""Bytes of central directory read at most: three million records."""
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_TOP = 0xFFFFFFFF


class Entry(NamedTuple):
    """One entry; ``where`` is its own offset, ``header`` that of the record, ``wide`` says whether it needed 64 bits."""

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
    wide: bool
    where: int


def entries(source: Source, end: End, torch: bool) -> Generator[Finding, None, list[Entry]]:
    """All entries in the directory's order. Raises Damage when the directory cannot be followed to its end."""
    if end.size > MAX_DIRECTORY:
        raise Damage("too-complex", f"the archive's directory has {end.size:,} bytes; more than {MAX_DIRECTORY:,} are not read", end.directory)
    data, at, out = source.read(end.directory, end.size), 0, list[Entry]()
    for i in range(end.entries):
        where = end.directory + at
        if at + 46 > len(data):
            raise Damage("bad-header", f"the directory holds {i} records, its end says {end.entries}", where)
        sig, made, need, flags, method, time, date, crc, stored, size, n, x, c, disk, internal, external, header = _CENTRAL.unpack_from(data, at)
        if sig != b"PK\1\2":
            raise Damage("bad-header", f"directory entry {i} has a damaged signature", where)
        raw, extra = data[at + 46 : at + 46 + n], data[at + 46 + n : at + 46 + n + x]
        at += 46 + n + x + c
        if at > len(data):
            raise Damage("bad-header", f"directory entry {i} reaches beyond the directory", where)
        wide = _TOP in (stored, size, header)
        for kind, value in extras(extra):
            if kind == 1:
                size, stored, header = _wide(value, (size, stored, header), torch, where)
            elif kind < 0 or torch:
                yield finding("bad-header", f"directory entry {i} has an extra field that does not belong there", offset=where)
        if header + 30 + n + stored > end.directory:
            raise Damage("bad-header", f"directory entry {i} places its record outside the file", where)
        if disk or (torch and c):
            yield finding("odd-header", f"directory entry {i} has a disk number or a comment, which its writer never sets", offset=where)
        out.append(Entry(raw, made, need, flags, method, time, date, crc, stored, size, internal, external, header, wide, where))
    if at != len(data):
        raise Damage("bad-header", f"the directory has {len(data) - at} bytes after its last entry", end.directory + at)
    if torch:
        yield from _alike(out)
    return out


def _wide(value: bytes, told: tuple[int, int, int], torch: bool, where: int) -> tuple[int, int, int]:
    """Size, stored size and header offset from a ZIP64 field: it holds those that the entry itself has no room for (APPNOTE 4.5.3)."""
    missing = sum(v == _TOP for v in told)
    if len(value) < 8 * missing or (torch and len(value) != 8 * missing):
        raise Damage("bad-header", "a directory entry has a ZIP64 field of the wrong length", where)
    values = iter(struct.unpack(f"<{missing}Q", value[: 8 * missing]))
    size, stored, header = (next(values) if v == _TOP else v for v in told)
    return size, stored, header


def _alike(out: Sequence[Entry]) -> Iterator[Finding]:
    """The miniz of torch writes some fields alike in every entry, and nobody reads them: an odd one out is a flipped bit."""
    for field in ("made", "internal", "external"):
        values = [getattr(e, field) for e in out]
        usual = Counter(values).most_common(1)[0][0] if values else 0
        for e, v in zip(out, values, strict=True):
            if v != usual:
                yield finding("odd-header", f"the directory entry of {name_of(e)[:200]!r} is unlike the others", offset=e.where)


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
