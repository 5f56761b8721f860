"""How a damaged file can be mended: flipped bits that CRCs locate, a new zip directory, a new shard index."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from ckpt_tools.checksum import Crc, Sum, mismatches
from ckpt_tools.checksum.combine import CRC32, CRC32C, flipped_bit, odds
from ckpt_tools.checksum.sums import Deflated, Extent, chunks
from ckpt_tools.formats import Anatomy, format_of, names, structure
from ckpt_tools.formats.lost_indexes import text_of, whole_sets
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
        return not self.is_damaged and not self.wrong


class Bench:
    """Inspects files of one root, also as they would be once they are repaired."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.parts: dict[str, Part] = {p.path: p for p in session.parts}

    def look(self, path: str, trial: Callable[[], OpenFile] | None = None) -> Damaged:
        """Inspect the file at ``path`` to level content, against layouts, indexes and seals. What ``trial``
        opens is held to what they say about the file that it would replace.
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
        report, anatomy = inspection.run(trial() if trial else None), inspection.anatomy
        beside = list[Sum]()
        if report.verdict is Verdict.BROKEN:
            # not compared: structure rejected them, or structural damage kept the content from being read
            beside += (*anatomy.failed, *(anatomy.sums if report.level < Level.CONTENT else ()))
            beside += self.list_sealed(path, report.size)
            beside += _sums_by_name(trial or partial(LocalSource, path)) if report.format is None else ()
        return Damaged(path, report, anatomy.sums, inspection.wrong, beside)

    def list_sealed(self, path: str, size: int) -> Iterator[Sum]:
        """Yield the CRC-32 and the CRC-32C of each chunk in the seal of a file; nothing if no seal names it,
        if seals differ about its chunks, or if it has another ``size`` than the sealed one.
        """
        seals = self.session.indexes.seals
        entries = seals.sealed_by(path)
        if len({f.chunks for f, _ in entries}) != 1 or entries[0][0].size != size:
            return
        file = entries[0][0]
        for i, extent in enumerate(chunks(size)):
            digits = slice(i * _CRC_DIGITS, (i + 1) * _CRC_DIGITS)
            for crc, values in ((CRC32, file.chunk_crc32), (CRC32C, file.chunk_crc32c)):
                yield Sum("a sealed chunk", int(values[digits], 16), (extent,), extent.offset, hash=crc)


def _sums_by_name(open_file: Callable[[], OpenFile]) -> Iterator[Sum]:
    """Yield the checksums of a file that begins like no format, as the formats of its name read it."""
    with open_file() as source:
        for name in names.allowed(os.path.basename(source.path)):
            anatomy = Anatomy()
            with suppress(ShortRead, OSError):
                for _ in structure(source, anatomy, format_of(name).checks[Level.STRUCTURE]):
                    pass
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


class Patched(LocalSource):
    """A file with some bytes replaced (new value by offset), and with a ``tail`` (offset, bytes) in place of
    all from that offset on: to prove a repair before it is written.
    """

    def __init__(self, path: str, new_bytes: dict[int, int], tail: tuple[int, bytes] | None = None) -> None:
        super().__init__(path)
        self.new_bytes, (self._cut, self._tail) = new_bytes, tail or (self.size, b"")
        self.size = self._cut + len(self._tail)

    def read(self, offset: int, length: int) -> bytes:
        data = bytearray(length)
        self.readinto(offset, memoryview(data))
        return bytes(data)

    def readinto(self, offset: int, buffer: memoryview) -> None:
        if offset + len(buffer) > self.size:
            raise ShortRead(offset, len(buffer), max(0, self.size - offset))
        n = min(len(buffer), max(0, self._cut - offset))  # bytes before the tail
        super().readinto(offset, buffer[:n])
        at = max(0, offset - self._cut)
        buffer[n:] = self._tail[at : at + len(buffer) - n]
        for place, value in self.new_bytes.items():
            if offset <= place < offset + len(buffer):
                buffer[place - offset] = value


def mend(bench: Bench, damaged: Damaged) -> Mended | None:
    """Return the best-proven repair: flipped bits, else a zip directory, else a shard index; None without."""
    path = damaged.path
    if (damaged.wrong or damaged.beside) and (mended := _flip_back(bench, damaged)):
        return mended
    tail = rebuild_directory(path) if damaged.report.format == "torch_zip" else None
    if tail and bench.look(path, lambda: Patched(path, {}, tail)).is_sound:
        why = "its directory rewritten: every record fits its own CRC, and none is missing"
        return Mended(why, {}, tail=tail)
    for _, data, _ in find_lost_indexes(bench.session, path) if path.endswith(".index.json") else ():
        return Mended("rewritten from its shards", {}, tail=(0, data))
    return None


def find_lost_indexes(s: Session, damaged_index: str | None = None) -> Iterator[Lost]:
    """Yield each missing index (or only ``damaged_index``) whose shards are there and sound in structure."""
    files = dict.fromkeys((*(p.path for p in s.parts), *(f.path for f in s.found.bare)))
    for path, shards in sorted(whole_sets(files).items()):
        is_wanted = not os.path.lexists(path) if damaged_index is None else path == damaged_index
        if not is_wanted:
            continue
        looks = [s.inspect(shard, Level.STRUCTURE) for shard in shards]
        if all(report.verdict in (Verdict.OK, Verdict.SUSPECT) for report, _ in looks):
            tensors = {os.path.basename(p): a.tensors for p, (_, a) in zip(shards, looks, strict=True)}
            if (data := text_of(tensors)) is not None:
                yield path, data, shards[0]


def _flip_back(bench: Bench, damaged: Damaged) -> Mended | None:
    """Return the flipped bits that make every checksum fit; None if there are none. Damage may hide where
    checksums lie and what they say, so the file is inspected anew with the bits found so far.
    """
    now, new_bytes, source_of = damaged, dict[int, int](), dict[int, Sum]()
    with Patched(damaged.path, new_bytes) as patched:
        for _ in range(_ROUNDS):
            before = len(new_bytes)
            _add_bits(now, patched, source_of)
            if len(new_bytes) == before:
                return None
            now = bench.look(damaged.path, lambda: Patched(damaged.path, new_bytes))
            if now.is_sound:
                break
        else:
            return None
        unconfirmed = (s for at, s in source_of.items() if not _has_witness(patched, at, s, bench, now))
        odds_wrong = _round_up(min(1.0, sum(odds(length_of(s)) for s in unconfirmed)))
    why = (f"one flipped bit in byte {at:,}, told by the checksum of {s.what}" for at, s in source_of.items())
    return Mended("; ".join(why), new_bytes, odds_wrong)


def _round_up(probability: float) -> float:
    """Round a probability up to two significant digits: a user reads it and gives it back (--accept-odds)."""
    if not probability:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(probability)) - 1)
    return float(f"{math.ceil(probability / unit) * unit:.1e}")


def _is_wrong(source: Source, s: Sum) -> bool:
    return any(True for _ in mismatches(source, [s], jobs=1))


def length_of(s: Sum) -> int:
    return sum(len(p) if isinstance(p, bytes) else p.length for p in s.pieces)


def _add_bits(damaged: Damaged, patched: Patched, source_of: dict[int, Sum]) -> None:
    """Add the bits that wrong CRCs locate, CRCs of few bytes first, which locate a bit with less doubt."""
    for s in sorted(dict.fromkeys((*damaged.wrong, *damaged.beside)), key=length_of):
        if not isinstance(s.hash, Crc) or not isinstance(s.expected, int) or extents_of(s) is None:
            continue
        misfit = next(iter(mismatches(patched, [s], jobs=1)), None)  # None: an earlier flip mended it
        if misfit is None or not isinstance(misfit[1], int):
            continue
        flip = flipped_bit(s.hash, misfit[1] ^ s.expected, length_of(s))
        place = _place_in_file(s, flip.offset) if flip else None
        if flip is not None and place is not None:
            patched.new_bytes[place] = patched.read(place, 1)[0] ^ 1 << flip.bit
            source_of[place] = s


def extents_of(s: Sum) -> list[Extent] | None:
    """Return where in the file the bytes lie that a checksum covers; None if they are compressed."""
    if any(isinstance(p, Deflated) for p in s.pieces):
        return None
    return [p for p in s.pieces if isinstance(p, Extent)]


def _place_in_file(s: Sum, index: int) -> int | None:
    """Return the file offset of the byte at ``index`` of a checksum's bytes; None if it lies in no file."""
    for p in s.pieces:
        length = len(p) if isinstance(p, bytes) else p.length
        if index < length:
            return None if isinstance(p, bytes) else p.offset + index
        index -= length
    return None


def _has_witness(patched: Source, at: int, locator: Sum, bench: Bench, inspected: Damaged) -> bool:
    """Return whether a checksum other than the ``locator`` of a bit covers byte ``at`` as well, and fits."""
    others = (s for s in (*inspected.sums, *bench.list_sealed(patched.path, patched.size)) if s != locator)
    covering = (s for s in others if any(0 <= at - e.offset < e.length for e in extents_of(s) or ()))
    return any(not _is_wrong(patched, s) for s in covering)
