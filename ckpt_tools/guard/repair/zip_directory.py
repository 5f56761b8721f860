"""Rebuilds the directory of a torch archive that was cut behind its last whole record, from the records.

Facts: PKWARE APPNOTE 6.3.10, sections 4.3.7 (local headers), 4.3.9 (data descriptors), 4.3.12 (directory),
4.3.14 to 4.3.16 (its end); torch writes a descriptor behind each record and a ZIP64 end
(caffe2/serialize/inline_container.cc, third_party/miniz).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from ckpt_tools.checksum.combine import crc32
from ckpt_tools.formats.archives.zip_directory import MAX_RECORDS
from ckpt_tools.storage import LocalSource, ShortRead, Source

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_SHORT, _WIDE = struct.Struct("<4s3I"), struct.Struct("<4sI2Q")
_END64, _LOCATOR, _END = struct.Struct("<4sQ2H2I4Q"), struct.Struct("<4sIQI"), struct.Struct("<4s4H2IH")
_HEADER, _DESCRIPTOR, _DIRECTORY = b"PK\3\4", b"PK\7\10", b"PK\1\2"
_TOP = 0xFFFFFFFF  # in a field of 32 bits: the value is in a ZIP64 field
_BLOCK = 8 << 20
_VERSION_MADE_BY = 0x031E  # as torch's writer has it in the end of its directory


class _Record(NamedTuple):
    """A stored record of ``size`` bytes that fit its CRC, from its ``header`` to the offset behind it."""

    name: bytes
    header: int
    flags: int
    method: int
    crc: int
    size: int
    end: int


def rebuild_directory(path: str) -> tuple[int, bytes] | None:
    """Return (offset, bytes) of the directory of an archive whose records all fit their CRCs up to that
    offset; None if there is no such record, or a part of another record lies behind them. Raises OSError.
    """
    records, at = list[_Record](), 0
    with LocalSource(path) as source:
        with suppress(ShortRead):
            while len(records) < MAX_RECORDS and (record := _read_record(source, at)):
                records.append(record)
                at = record.end
        magic = source.read(at, min(len(_DIRECTORY), source.size - at))
    return (at, _write_directory(records)) if records and _DIRECTORY.startswith(magic) else None


def _read_record(source: Source, at: int) -> _Record | None:
    """Return the record at an offset; None if there is none with a descriptor, as torch writes all of them,
    whose CRC fits the bytes. Raises ShortRead.
    """
    header = source.read(at, _LOCAL.size)
    magic, _, flags, method, _, _, _, _, _, name_size, extra_size = _LOCAL.unpack(header)
    if magic != _HEADER or not flags & 8:
        return None
    payload = at + _LOCAL.size + name_size + extra_size
    name = source.read(at + _LOCAL.size, name_size)
    for end in _find_descriptors(source, payload):  # the first that fits the length and the bytes before it
        for layout in (_SHORT, _WIDE):
            if end + layout.size > source.size:
                continue
            _, crc, stored, size = layout.unpack(source.read(end, layout.size))
            if stored == size == end - payload and _compute_crc(source, payload, stored) == crc:
                return _Record(name, at, flags, method, crc, size, end + layout.size)
    return None


def _find_descriptors(source: Source, start: int) -> Iterator[int]:
    """Yield the offsets from ``start`` on where a data descriptor may begin."""
    while start < source.size:
        data = source.read(start, min(_BLOCK, source.size - start))
        at = data.find(_DESCRIPTOR)
        while at >= 0:
            yield start + at
            at = data.find(_DESCRIPTOR, at + 1)
        if start + len(data) == source.size:
            return
        start += len(data) - len(_DESCRIPTOR) + 1


def _compute_crc(source: Source, start: int, length: int) -> int:
    value = 0
    for at in range(start, start + length, _BLOCK):
        value = crc32(source.read(at, min(_BLOCK, start + length - at)), value)
    return value


def _write_directory(records: Sequence[_Record]) -> bytes:
    """Return the directory of the records, with its ZIP64 end and its end."""
    rows = list[bytes]()
    for r in records:
        wide = [n for n in (r.size, r.size, r.header) if n >= _TOP]
        extra = struct.pack(f"<2H{len(wide)}Q", 1, 8 * len(wide), *wide) if wide else b""
        size, numbers = min(r.size, _TOP), (len(r.name), len(extra), 0, 0, 0, 0, min(r.header, _TOP))
        head = _CENTRAL.pack(_DIRECTORY, 0, 0, r.flags, r.method, 0, 0, r.crc, size, size, *numbers)
        rows.append(head + r.name + extra)
    entries = b"".join(rows)
    start, n, size = records[-1].end, len(records), len(entries)
    count16 = min(n, 0xFFFF)
    end64 = _END64.pack(b"PK\6\6", _END64.size - 12, _VERSION_MADE_BY, 45, 0, 0, n, n, size, start)
    locator = _LOCATOR.pack(b"PK\6\7", 0, start + size, 1)
    end = _END.pack(b"PK\5\6", 0, 0, count16, count16, min(size, _TOP), min(start, _TOP), 0)
    return b"".join((entries, end64, locator, end))
