"""How a damaged file can be mended: flipped bits that CRCs locate, a new zip directory, a new shard index.

Facts: PKWARE APPNOTE 6.3.10, sections 4.3.7 (local headers), 4.3.9 (data descriptors), 4.3.12 (directory),
4.3.14 to 4.3.16 (its end); torch writes a descriptor behind each record and a ZIP64 end
(caffe2/serialize/inline_container.cc, third_party/miniz).
"""

from __future__ import annotations

import errno
import os
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from decimal import ROUND_UP, Context
from typing import NamedTuple

from ckpt_tools.checksum import Crc, Sum, mismatches
from ckpt_tools.checksum.combine import CRC32, CRC32C, find_flipped_bit, odds
from ckpt_tools.checksum.sums import Deflated, Extent, chunks
from ckpt_tools.formats import Anatomy, format_of, names, structure
from ckpt_tools.formats.archives.zip_directory import MAX_RECORDS
from ckpt_tools.formats.lost_indexes import find_whole, make_text
from ckpt_tools.inspection.check import Inspection
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Level, Report
from ckpt_tools.reading.session import Session, formats_allowed
from ckpt_tools.storage import LocalSource, OpenFile, ShortRead, Source

Lost = tuple[str, bytes, str]
"""(path of a lost shard index, the bytes to write there, path of one of its shards)."""
_CRC_DIGITS = 8  # hexadecimal
_ROUNDS = 4  # of flipping bits and inspecting the file anew, at most
_BLOCK = 8 << 20


class Damaged(NamedTuple):
    """One inspected file: all its checksums (``sums``), and the ones that do not fit its bytes (``wrong``).
    ``beside`` are checksums that nobody compared, or that structure rejects, and that may be wrong.
    """

    path: str
    report: Report
    sums: Sequence[Sum]
    wrong: Sequence[Sum]
    beside: Sequence[Sum] = ()

    @property
    def is_damaged(self) -> bool:
        return self.report.verdict is Verdict.BROKEN

    @property
    def is_sound(self) -> bool:
        """Whether all was read, and nothing is wrong."""
        return not (self.is_damaged or self.wrong) and self.report.level >= Level.CONTENT


class Bench:
    """Inspects files of one root, also as they would be if they were repaired."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.parts: dict[str, Part] = {p.path: p for p in session.parts}

    def look(self, path: str, source: OpenFile | None = None) -> Damaged:
        """Inspect the file at ``path``, or the ``source`` that is to take its place, to level content against
        layouts, indexes and seals.
        """
        s, part = self.session, self.parts.get(path)
        inspection = Inspection(
            path,
            Level.CONTENT,
            expect=formats_allowed(part, s.layouts.piece_of(part)) if part else (),
            claims=s.indexes.claims(path),
            require=s.options.require,
            key=s.reader.key,
            io=s.options.io,
            jobs=s.options.jobs,
        )
        report, anatomy = inspection.run(source), inspection.anatomy
        beside = list[Sum]()
        if report.verdict is Verdict.BROKEN:
            # not compared: structure rejected them, or structural damage kept the content from being read
            beside += (*anatomy.failed, *(anatomy.sums if report.level < Level.CONTENT else ()))
            beside += (s for s in self.list_sealed_crcs(path, report.size) if s.hash is CRC32)
            if report.format is None:
                beside += _list_sums_by_name(path)
        return Damaged(path, report, anatomy.sums, inspection.wrong, beside)

    def list_sealed_crcs(self, path: str, size: int) -> list[Sum]:
        """Return the CRCs of each chunk of a file of this size; none if no seal has them, or seals differ."""
        files, out = [file for file, _ in self.session.indexes.seals.sealed_by(path)], list[Sum]()
        if len({f.chunks for f in files}) == 1 and files[0].size == size:
            for i, extent in enumerate(chunks(size)):
                digits = slice(i * _CRC_DIGITS, (i + 1) * _CRC_DIGITS)
                for text, crc in ((files[0].chunk_crc32, CRC32), (files[0].chunk_crc32c, CRC32C)):
                    out.append(
                        Sum("a sealed chunk", int(text[digits], 16), (extent,), extent.offset, hash=crc)
                    )
        return out


def _list_sums_by_name(path: str) -> Iterator[Sum]:
    """Yield the checksums of a file that begins like no format, as the formats of its name read it."""
    with LocalSource(path) as source:
        for name in names.allowed(os.path.basename(path)):
            anatomy = Anatomy()
            with suppress(ShortRead, OSError):
                deque(structure(source, anatomy, format_of(name).checks[Level.STRUCTURE]), maxlen=0)
            yield from (*anatomy.sums, *anatomy.failed)


class Mended(NamedTuple):
    """How a file can be mended: ``bits`` are new byte values by offset; ``tail`` (offset, bytes) replaces the
    file from that offset on. ``odds`` is the highest probability that the repair is wrong, 0 if a second
    checksum confirms each bit. ``why`` is for people.
    """

    why: str
    bits: dict[int, int]
    odds: float = 0.0
    tail: tuple[int, bytes] | None = None

    def say(self) -> str:
        if not self.odds:
            return self.why
        return f"{self.why}; the probability that it was another damage is at most {self.odds:.2g}"

    def read(self, path: str) -> Iterator[bytes]:
        """Yield the bytes of the mended file, whose damaged one lies at ``path``. Raises OSError."""
        with MendedSource(path, self.bits, self.tail) as source:
            for at in range(0, source.size, _BLOCK):
                yield source.read(at, min(_BLOCK, source.size - at))


class MendedSource(LocalSource):
    """A damaged file as it would be if it were mended, to prove a repair before it is written."""

    def __init__(self, path: str, bits: dict[int, int], tail: tuple[int, bytes] | None = None) -> None:
        super().__init__(path)
        self.bits = bits
        self.end, self.tail = tail or (self.size, b"")
        self.size = self.end + len(self.tail)

    def read(self, offset: int, length: int) -> bytes:
        data = bytearray(length)
        self.readinto(offset, memoryview(data))
        return bytes(data)

    def readinto(self, offset: int, buffer: memoryview) -> None:
        length = len(buffer)
        if offset + length > self.size:
            raise ShortRead(offset, length, max(0, self.size - offset))
        kept = min(length, max(0, self.end - offset))
        try:
            super().readinto(offset, buffer[:kept])
        except ShortRead as e:
            raise OSError(errno.EIO, "it was cut meanwhile", self.path) from e
        begin = offset + kept - self.end
        buffer[kept:] = self.tail[begin : begin + length - kept]
        for at, value in self.bits.items():
            if offset <= at < offset + length:
                buffer[at - offset] = value


def mend(bench: Bench, damaged: Damaged) -> Mended | None:
    """Return the best-proven repair: flipped bits, else a zip directory, else a shard index; None without."""
    path = damaged.path
    if (damaged.wrong or damaged.beside) and (mended := _flip_back(bench, damaged)):
        return mended
    tail = rebuild_directory(path) if damaged.report.format == "torch_zip" else None
    if tail and bench.look(path, MendedSource(path, {}, tail)).is_sound:
        why = "its directory rewritten: every record fits its own CRC, and none is missing"
        return Mended(why, {}, tail=tail)
    for _, data, _ in find_lost_indexes(bench.session, path) if path.endswith(".index.json") else ():
        return Mended("rewritten from its shards", {}, tail=(0, data))
    return None


def find_lost_indexes(s: Session, damaged_index: str | None = None) -> Iterator[Lost]:
    """Yield each missing index (or only ``damaged_index``) whose shards are there and sound in structure."""
    files = dict.fromkeys((*(p.path for p in s.parts), *(f.path for f in s.found.bare)))
    for path, shards in sorted(find_whole(files).items()):
        is_wanted = not os.path.lexists(path) if damaged_index is None else path == damaged_index
        if not is_wanted:
            continue
        looks = [s.inspect(shard, Level.STRUCTURE) for shard in shards]
        if all(report.verdict in (Verdict.OK, Verdict.SUSPECT) for report, _ in looks):
            tensors = {os.path.basename(p): a.tensors for p, (_, a) in zip(shards, looks, strict=True)}
            if (data := make_text(tensors)) is not None:
                yield path, data, shards[0]


def _flip_back(bench: Bench, damaged: Damaged) -> Mended | None:
    """Return the flipped bits that make every checksum fit; None if there are none. Damage may hide where
    checksums lie and what they say, so the file with the bits found so far is inspected anew.
    """
    new_bytes, source_of, now = dict[int, int](), dict[int, Sum](), damaged
    with MendedSource(damaged.path, new_bytes) as mended:
        for _ in range(_ROUNDS):
            before = len(new_bytes)
            _add_bits(now, mended, source_of)
            if len(new_bytes) == before:
                return None
            now = bench.look(damaged.path, MendedSource(damaged.path, new_bytes))
            if now.is_sound:
                break
        else:
            return None
        unconfirmed = (s for at, s in source_of.items() if not _has_witness(mended, at, s, bench, now))
        odds_wrong = _round_up(min(1.0, sum(odds(length_of(s)) for s in unconfirmed)))
    why = (f"one flipped bit in byte {at:,}, told by the checksum of {s.what}" for at, s in source_of.items())
    return Mended("; ".join(why), new_bytes, odds_wrong)


def _round_up(probability: float) -> float:
    """Round a probability up to two significant digits: a user reads it and gives it back (--accept-odds)."""
    return float(Context(prec=2, rounding=ROUND_UP).create_decimal_from_float(probability))


def extents_of(s: Sum) -> list[Extent] | None:
    """Return where in the file the bytes lie that a checksum covers; None if they are compressed."""
    if any(isinstance(p, Deflated) for p in s.pieces):
        return None
    return [p for p in s.pieces if isinstance(p, Extent)]


def length_of(s: Sum) -> int:
    return sum(len(p) if isinstance(p, bytes) else p.length for p in s.pieces)


def _add_bits(damaged: Damaged, mended: MendedSource, source_of: dict[int, Sum]) -> None:
    """Add the bits that wrong CRCs locate, CRCs of few bytes first, which locate a bit with less doubt."""
    candidates = dict.fromkeys((*damaged.wrong, *damaged.beside))
    for s in sorted(candidates, key=length_of):
        if not isinstance(s.hash, Crc) or extents_of(s) is None or not isinstance(s.expected, int):
            continue
        misfit = next(iter(mismatches(mended, [s], jobs=1)), None)  # None: an earlier flip mended it
        if misfit is None or not isinstance(misfit[1], int):
            continue
        flip = find_flipped_bit(s.hash, misfit[1] ^ s.expected, length_of(s))
        place = _place_in_file(s, flip.offset) if flip else None
        if flip is not None and place is not None:
            mended.bits[place] = mended.read(place, 1)[0] ^ 1 << flip.bit
            source_of[place] = s


def _place_in_file(s: Sum, index: int) -> int | None:
    """Return the file offset of the byte at ``index`` of a checksum's bytes; None if it lies in no file."""
    for p in s.pieces:
        length = len(p) if isinstance(p, bytes) else p.length
        if index < length:
            return None if isinstance(p, bytes) else p.offset + index
        index -= length
    return None


def _has_witness(mended: Source, at: int, locator: Sum, bench: Bench, inspected: Damaged) -> bool:
    """Return whether a checksum other than the ``locator`` of a bit covers byte ``at`` as well, and fits."""
    others = (s for s in (*inspected.sums, *bench.list_sealed_crcs(mended.path, mended.size)) if s != locator)
    covering = (s for s in others if any(e.offset <= at < e.offset + e.length for e in extents_of(s) or ()))
    return any(_fits(mended, s) for s in covering)


def _fits(source: Source, s: Sum) -> bool:
    return next(mismatches(source, [s], jobs=1), None) is None


# ---- the directory of a torch archive that was cut behind its last whole record

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_SHORT, _WIDE = struct.Struct("<4s3I"), struct.Struct("<4sI2Q")
_END64, _LOCATOR, _END = struct.Struct("<4sQ2H2I4Q"), struct.Struct("<4sIQI"), struct.Struct("<4s4H2IH")
_HEADER, _DESCRIPTOR, _DIRECTORY = b"PK\3\4", b"PK\7\10", b"PK\1\2"
_TOP = 0xFFFFFFFF  # in a field of 32 bits: the value is in a ZIP64 field
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
    """Return the record at an offset; None if there is none whose CRC fits the bytes. Raises ShortRead."""
    header = source.read(at, _LOCAL.size)
    magic, _, flags, method, _, _, crc, stored, size, name_size, extra_size = _LOCAL.unpack(header)
    if magic != _HEADER:
        return None
    payload = at + _LOCAL.size + name_size + extra_size
    name = source.read(at + _LOCAL.size, name_size)
    if not flags & 8:  # no descriptor: another program than torch has written it
        is_whole = stored == size and _fits(source, Sum("", crc, (Extent(payload, size),), at))
        return _Record(name, at, flags, method, crc, size, payload + size) if is_whole else None
    for end in _find_descriptors(source, payload):  # the first that fits the length and the bytes before it
        for layout in (_SHORT, _WIDE):
            if end + layout.size > source.size:
                continue
            _, crc, stored, size = layout.unpack(source.read(end, layout.size))
            if stored == size == end - payload and _fits(source, Sum("", crc, (Extent(payload, size),), end)):
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


def _write_directory(records: Sequence[_Record]) -> bytes:
    """Return the directory of the records, with its ZIP64 end and its end."""
    rows = list[bytes]()
    for r in records:
        wide = [n for n in (r.size, r.size, r.header) if n >= _TOP]
        extra = struct.pack(f"<2H{len(wide)}Q", 1, 8 * len(wide), *wide) if wide else b""
        least, numbers = min(r.size, _TOP), (len(r.name), len(extra), 0, 0, 0, 0, min(r.header, _TOP))
        head = _CENTRAL.pack(_DIRECTORY, 0, 0, r.flags, r.method, 0, 0, r.crc, least, least, *numbers)
        rows.append(head + r.name + extra)
    entries = b"".join(rows)
    start, n, size = records[-1].end, len(records), len(entries)
    count16 = min(n, 0xFFFF)
    end64 = _END64.pack(b"PK\6\6", _END64.size - 12, _VERSION_MADE_BY, 45, 0, 0, n, n, size, start)
    locator = _LOCATOR.pack(b"PK\6\7", 0, start + size, 1)
    end = _END.pack(b"PK\5\6", 0, 0, count16, count16, min(size, _TOP), min(start, _TOP), 0)
    return b"".join((entries, end64, locator, end))
