"""What a damaged file can be mended with: the bits that CRCs tell, a zip directory, or a shard index.

The directory of a torch archive that was cut behind its last whole record is written anew from the records.
Facts: PKWARE APPNOTE 6.3.10, sections 4.3.7 (local headers), 4.3.9 (data descriptors), 4.3.12 (directory),
4.3.14 to 4.3.16 (its end); torch writes a descriptor behind each record and a ZIP64 end
(caffe2/serialize/inline_container.cc, third_party/miniz).
"""

from __future__ import annotations

import math
import os
import struct
import tempfile
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ckpt_tools.checksum import Sum, mismatches
from ckpt_tools.checksum.combine import crc32
from ckpt_tools.checksum.single_bit import flipped_bit, odds
from ckpt_tools.formats.lost_indexes import text_of, whole_sets
from ckpt_tools.guard.repair.damage import Bench, Damaged, crc_of, crcs_of_chunks, extents_of, length_of
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.report import Level
from ckpt_tools.reading.session import Session
from ckpt_tools.storage import LocalSource, ShortRead, Source

_ROUNDS = 4
_TRIED = 4 << 30
"""Bytes of a file at most that is written to a temporary place to see whether it is mended."""
_BLOCK = 8 << 20


class Mended(NamedTuple):
    """How a file can be mended: ``bits`` are the bytes that change, by their offset; ``tail`` (offset, bytes)
    replaces all from its offset on. ``odds`` is the probability at most that the repair is wrong, 0 where it
    has a witness beside the checksum that it was worked out from. ``why`` is for people.
    """

    why: str
    bits: dict[int, int]
    odds: float = 0.0
    tail: tuple[int, bytes] | None = None


class Patched:
    """A Source with other bytes in places: what a repair is proven on before anything is written."""

    def __init__(self, source: Source, bits: dict[int, int]) -> None:
        self.source, self.bits = source, bits
        self.size, self.path = source.size, source.path

    @property
    def bytes_read(self) -> int:
        """Those of the file itself."""
        return self.source.bytes_read

    def read(self, offset: int, length: int) -> bytes:
        data = bytearray(length)
        self.readinto(offset, memoryview(data))
        return bytes(data)

    def readinto(self, offset: int, buffer: memoryview) -> None:
        self.source.readinto(offset, buffer)
        for at, value in self.bits.items():
            if offset <= at < offset + len(buffer):
                buffer[at - offset] = value


def mend(bench: Bench, damaged: Damaged) -> Mended | None:
    """The first way in the order of evidence; None where there is none."""
    if (damaged.wrong or damaged.beside) and (found := _flip_back(bench, damaged)):
        return found
    if damaged.report.format == "torch_zip" and (found := _write_directory(bench, damaged)):
        return found
    index = lost_indexes(bench.session, damaged.path) if damaged.path.endswith(".index.json") else ()
    for _, data, _ in index:
        return Mended("written anew from its shards", {}, tail=(0, data))
    return None


def lost_indexes(s: Session, damaged: str | None = None) -> Iterator[tuple[str, bytes, str]]:
    """(path, bytes, one of its shards) of every index that is not there, or of a ``damaged`` one, all of
    whose shards are there, sound as far as their structure shows.
    """
    files = dict.fromkeys((*(p.path for p in s.parts), *(f.path for f in s.found.bare)))
    for path, shards in sorted(whole_sets(files).items()):
        if path != damaged if damaged is not None else os.path.lexists(path):
            continue
        looks = [s.inspect(shard, Level.STRUCTURE) for shard in shards]
        if all(report.verdict in (Verdict.OK, Verdict.SUSPECT) for report, _ in looks):
            names = (os.path.basename(shard) for shard in shards)
            tensors = {name: anatomy.tensors for name, (_, anatomy) in zip(names, looks, strict=True)}
            if (data := text_of(tensors)) is not None:
                yield path, data, shards[0]


def _write_directory(bench: Bench, damaged: Damaged) -> Mended | None:
    """A torch archive that has lost its directory and nothing else."""
    found = rebuild_directory(damaged.path)
    if found is None or found[0] > _TRIED:
        return None
    with LocalSource(damaged.path) as source, tempfile.TemporaryDirectory(prefix="ckpt-repair-") as home:
        now = bench.look(_write_trial(home, source, *found), instead_of=damaged.path)
    if now.is_damaged or now.wrong:
        return None
    why = "its directory written anew: every record fits its own CRC, and none is missing"
    return Mended(why, {}, tail=found)


def _write_trial(home: str, source: Source, length: int, tail: bytes = b"") -> str:
    path = os.path.join(home, os.path.basename(source.path))
    with open(path, "wb") as out:
        out.writelines(source.read(at, min(_BLOCK, length - at)) for at in range(0, length, _BLOCK))
        out.write(tail)
    return path


def _flip_back(bench: Bench, damaged: Damaged) -> Mended | None:
    """The bits that make every checksum fit. Where more than what they cover is damaged, where they lie and
    what they say may be known only when some of it is mended: then it is tried on a copy.
    """
    with LocalSource(damaged.path) as source, tempfile.TemporaryDirectory(prefix="ckpt-repair-") as home:
        bits, told_by = dict[int, int](), dict[int, Sum]()
        now, patched = damaged, Patched(source, bits)
        for _ in range(_ROUNDS):
            before = len(bits)
            _add_bits(now, patched, told_by)
            known = now is damaged and damaged.by_checksums_alone
            if known and not any(_differs(patched, s) for s in damaged.sums):
                break
            if len(bits) == before or source.size > _TRIED:
                return None
            now = bench.look(_write_trial(home, patched, source.size), instead_of=damaged.path)
            if not now.is_damaged and not now.wrong:
                break
        else:
            return None
        doubtful = (s for at, s in told_by.items() if not _has_witness(patched, at, s, bench, now))
        chance = min(1.0, sum(odds(length_of(s)) for s in doubtful))
    told = (f"one flipped bit in byte {at:,}, told by the checksum of {s.what}" for at, s in told_by.items())
    return Mended("; ".join(told), bits, _round_up(chance))


def _differs(source: Source, s: Sum) -> bool:
    return any(True for _ in mismatches(source, [s], jobs=1))


def _round_up(chance: float) -> float:
    """Two significant digits of a probability, rounded up: it is said, and said back."""
    if not chance:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(chance)) - 1)
    return float(f"{math.ceil(chance / unit) * unit:.1e}")


def _add_bits(damaged: Damaged, patched: Patched, told_by: dict[int, Sum]) -> None:
    """Flip back what CRCs tell that do not fit, first those of few bytes, which tell it with less doubt."""
    rows = dict.fromkeys((*damaged.wrong, *damaged.beside))
    for s in sorted(rows, key=length_of):
        crc = crc_of(s)
        if crc is None or not isinstance(s.expected, int):
            continue
        told = next(iter(mismatches(patched, [s], jobs=1)), None)  # none: mended by what another one told
        if told is None or not isinstance(told[1], int):
            continue
        flip = flipped_bit(crc, told[1] ^ s.expected, length_of(s))
        place = _place_in_file(s, flip.offset) if flip else None
        if flip is not None and place is not None:
            patched.bits[place] = patched.read(place, 1)[0] ^ 1 << flip.bit
            told_by[place] = s


def _place_in_file(s: Sum, offset: int) -> int | None:
    """Where in the file a byte lies that a sum covers, by its number among them; None for one that lies in no
    file.
    """
    for p in s.pieces:
        length = len(p) if isinstance(p, bytes) else p.length
        if offset < length:
            return None if isinstance(p, bytes) else p.offset + offset
        offset -= length
    return None


def _has_witness(now: Source, at: int, by: Sum, bench: Bench, sound: Damaged) -> bool:
    """Whether another checksum than the one that a bit was worked out from covers it as well, and fits."""
    others: Sequence[Sum] = sound.sums
    if file := bench.sealed(now.path):
        others = [*others, *(s for pair in crcs_of_chunks(file, now.size) for s in pair)]
    covering = (s for s in others if any(e.offset <= at < e.offset + e.length for e in extents_of(s) or ()))
    return any(s != by and not _differs(now, s) for s in covering)


_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_SHORT, _WIDE = struct.Struct("<4s3I"), struct.Struct("<4sI2Q")
_END64, _LOCATOR, _END = struct.Struct("<4sQ2H2I4Q"), struct.Struct("<4sIQI"), struct.Struct("<4s4H2IH")
_HEADER, _DESCRIPTOR, _DIRECTORY = b"PK\3\4", b"PK\7\10", b"PK\1\2"
_TOP = 0xFFFFFFFF
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
