"""How a damaged file can be mended: flipped bits that CRCs locate, a new zip directory, a new shard index."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from decimal import ROUND_UP, Context
from typing import NamedTuple

from ckpt_tools.checksum import Crc, Sum, mismatches
from ckpt_tools.checksum.combine import CRC32, CRC32C, find_flipped_bit, odds
from ckpt_tools.checksum.sums import Deflated, Extent, chunks
from ckpt_tools.formats.lost_indexes import find_whole, make_text
from ckpt_tools.guard.repair.zip_directory import rebuild_directory
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
    return any(next(mismatches(mended, [s], jobs=1), None) is None for s in covering)
