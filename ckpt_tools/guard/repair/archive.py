"""The directory of a torch archive that was cut behind its last whole record, written anew from the records.

Facts: PKWARE APPNOTE 6.3.10, sections 4.3.7 (local headers), 4.3.9 (data descriptors), 4.3.12 (directory),
4.3.14 to 4.3.16 (its end); torch writes a descriptor behind each record and a ZIP64 end
(caffe2/serialize/inline_container.cc, third_party/miniz).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ckpt_tools.checksum.combine import crc32
from ckpt_tools.storage import LocalSource, ShortRead, Source

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_SHORT, _WIDE = struct.Struct("<4s3I"), struct.Struct("<4sI2Q")
_END64, _LOCATOR, _END = struct.Struct("<4sQ2H2I4Q"), struct.Struct("<4sIQI"), struct.Struct("<4s4H2IH")
_HEADER, _DESCRIPTOR, _DIRECTORY = b"PK\3\4", b"PK\7\10", b"PK\1\2"
_TOP = 0xFFFFFFFF
_BLOCK = 8 << 20
_RECORDS = 300_000
_MADE = 0x031E
"""The version that torch's writer names in the end of its directory."""


class _Record(NamedTuple):
    """A record that proves itself; offsets and sizes in bytes."""

    name: bytes
    header: int
    flags: int
    method: int
    crc: int
    stored: int
    size: int
    end: int


def rebuild_directory(path: str) -> tuple[int, bytes] | None:
    """(where the directory belongs, its bytes) for an archive whose records all fit their CRCs up to there;
    None where there is no such record, or a part of one more behind them. Raises OSError.
    """
    with LocalSource(path) as source:
        records = list(_records(source))
        if not records:
            return None
        end = records[-1].end
        left = source.read(end, min(len(_DIRECTORY), source.size - end))
    return (end, _directory(records)) if _DIRECTORY.startswith(left) else None


def _records(source: Source) -> Iterator[_Record]:
    """The whole records from the beginning on, as far as they follow one another."""
    at = 0
    for _ in range(_RECORDS):
        try:
            record = _record(source, at)
        except (ShortRead, struct.error):
            return
        if record is None:
            return
        yield record
        at = record.end


def _record(source: Source, at: int) -> _Record | None:
    magic, _, flags, method, _, _, crc, stored, size, name, extra = _LOCAL.unpack(
        source.read(at, _LOCAL.size)
    )
    if magic != _HEADER:
        return None
    payload = at + _LOCAL.size + name + extra
    known = source.read(at + _LOCAL.size, name)
    if flags & 8:
        found = _described(source, payload)
        return found and _Record(known, at, flags, method, *found)
    if _crc(source, payload, stored) != crc or method:
        return None
    return _Record(known, at, flags, method, crc, stored, size, payload + stored)


def _described(source: Source, payload: int) -> tuple[int, int, int, int] | None:
    """(CRC, stored size, size, where it ends) of a stored record, by the first descriptor behind it that fits
    its length and its bytes.
    """
    for at in _found(source, payload, _DESCRIPTOR):
        for layout in (_SHORT, _WIDE):
            if at + layout.size > source.size:
                continue
            _, crc, stored, size = layout.unpack(source.read(at, layout.size))
            if stored == size == at - payload and _crc(source, payload, stored) == crc:
                return crc, stored, size, at + layout.size
    return None


def _found(source: Source, start: int, what: bytes) -> Iterator[int]:
    """Every place from ``start`` on where the bytes are ``what``."""
    while start < source.size:
        data = source.read(start, min(_BLOCK, source.size - start))
        at = data.find(what)
        while at >= 0:
            yield start + at
            at = data.find(what, at + 1)
        if start + len(data) == source.size:
            return
        start += len(data) - len(what) + 1


def _crc(source: Source, start: int, length: int) -> int:
    value = 0
    for at in range(start, start + length, _BLOCK):
        value = crc32(source.read(at, min(_BLOCK, start + length - at)), value)
    return value


def _directory(records: Sequence[_Record]) -> bytes:
    start = records[-1].end
    entries = b"".join(map(_entry, records))
    n, size, end = len(records), len(entries), start + len(entries)
    wide = _END64.pack(b"PK\6\6", _END64.size - 12, _MADE, 45, 0, 0, n, n, size, start)
    return b"".join(
        (
            entries,
            wide,
            _LOCATOR.pack(b"PK\6\7", 0, end, 1),
            _END.pack(b"PK\5\6", 0, 0, min(n, 0xFFFF), min(n, 0xFFFF), min(size, _TOP), min(start, _TOP), 0),
        )
    )


def _entry(r: _Record) -> bytes:
    wide = [n for n in (r.size, r.stored, r.header) if n >= _TOP]
    extra = struct.pack(f"<2H{len(wide)}Q", 1, 8 * len(wide), *wide) if wide else b""
    sizes = (r.crc, min(r.stored, _TOP), min(r.size, _TOP), len(r.name), len(extra), 0, 0, 0, 0)
    head = _CENTRAL.pack(_DIRECTORY, 0, 0, r.flags, r.method, 0, 0, *sizes, min(r.header, _TOP))
    return head + r.name + extra
