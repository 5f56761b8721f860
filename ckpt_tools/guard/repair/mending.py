"""How a damaged file can be mended: flipped bits that CRCs locate, a new zip directory, a new shard index."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from ckpt_tools.checksum import Crc, Sum, mismatches
from ckpt_tools.checksum.combine import CRC32, CRC32C, find_flipped_bit, odds
from ckpt_tools.checksum.sums import Deflated, Extent, chunks
from ckpt_tools.formats import Anatomy, format_of, names, structure
from ckpt_tools.formats.lost_indexes import find_whole, make_text
from ckpt_tools.guard.repair.zip_directory import rebuild_directory
from ckpt_tools.inspection.check import Inspection
from ckpt_tools.model.finding import Severity, Verdict
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Level, Report
from ckpt_tools.model.seal import SealedFile
from ckpt_tools.reading.session import Session, formats_allowed
from ckpt_tools.storage import LocalSource, ShortRead, Source

Lost = tuple[str, bytes, str]
"""(path of a lost shard index, the bytes to write there, path of one of its shards)."""
_CRC_DIGITS = 8  # hexadecimal
_ROUNDS = 4  # of mending a copy and inspecting it anew, at most
_MOST_COPIED = 4 << 30
"""Bytes of the largest file that is copied to a temporary directory to see whether it is mended."""
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
    def has_structure(self) -> bool:
        """Whether all errors are checksums that do not fit: then the structure is known and sound."""
        errors = sum(f.severity is Severity.ERROR for f in self.report.findings)
        return self.report.level >= Level.CONTENT and errors == len(self.wrong)


class Bench:
    """Inspects files of one root, also a repaired copy as if it lay at the damaged file's path."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.parts: dict[str, Part] = {p.path: p for p in session.parts}

    def look(self, path: str, instead_of: str | None = None) -> Damaged:
        """Inspect the file at ``path`` to level content, against layouts, indexes and seals. A repaired copy
        is held to what they say about ``instead_of``, the file that it would replace.
        """
        s, target = self.session, instead_of or path
        part = self.parts.get(target)
        inspection = Inspection(
            path,
            Level.CONTENT,
            expect=formats_allowed(part, s.layouts.piece_of(part)) if part else (),
            claims=s.indexes.claims(target),
            require=s.options.require,
            key=s.reader.key,
            io=s.options.io,
            jobs=s.options.jobs,
        )
        report, anatomy = inspection.run(), inspection.anatomy
        beside = list[Sum]()
        if report.verdict is Verdict.BROKEN:
            # not compared: structure rejected them, or structural damage kept the content from being read
            beside += (*anatomy.failed, *(anatomy.sums if report.level < Level.CONTENT else ()))
            if file := self.find_sealed(target):
                beside += (crc32 for crc32, _ in _crcs_of_chunks(file, report.size))
            if report.format is None:
                beside += _sums_by_name(path)
        return Damaged(path, report, anatomy.sums, inspection.wrong, beside)

    def find_sealed(self, path: str) -> SealedFile | None:
        """Return what seals say of the file; None if no seal names it, or seals differ about its chunks."""
        entries = self.session.indexes.seals.sealed_by(path)
        return entries[0][0] if len({f.chunks for f, _ in entries}) == 1 else None


def _sums_by_name(path: str) -> Iterator[Sum]:
    """Yield the checksums of a file that begins like no format, as the formats of its name read it."""
    with LocalSource(path) as source:
        for name in names.allowed(os.path.basename(path)):
            anatomy = Anatomy()
            with suppress(ShortRead, OSError):
                for _ in structure(source, anatomy, format_of(name).checks[Level.STRUCTURE]):
                    pass
            yield from (*anatomy.sums, *anatomy.failed)


def _crcs_of_chunks(file: SealedFile, size: int) -> Iterator[tuple[Sum, Sum]]:
    """Yield the CRC-32 and the CRC-32C of each chunk in a seal; nothing if the file's size is another."""
    for i, extent in enumerate(chunks(size) if size == file.size else ()):
        digits = slice(i * _CRC_DIGITS, (i + 1) * _CRC_DIGITS)
        crc32, crc32c = int(file.chunk_crc32[digits], 16), int(file.chunk_crc32c[digits], 16)
        yield (
            Sum("a sealed chunk", crc32, (extent,), extent.offset, hash=CRC32),
            Sum("a sealed chunk", crc32c, (extent,), extent.offset, hash=CRC32C),
        )


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


class Patched:
    """A Source with some bytes replaced (new value by offset), to prove a repair before it is written."""

    def __init__(self, source: Source, new_bytes: dict[int, int]) -> None:
        self.source, self.new_bytes = source, new_bytes
        self.size, self.path = source.size, source.path

    @property
    def bytes_read(self) -> int:
        return self.source.bytes_read

    def read(self, offset: int, length: int) -> bytes:
        data = bytearray(length)
        self.readinto(offset, memoryview(data))
        return bytes(data)

    def readinto(self, offset: int, buffer: memoryview) -> None:
        self.source.readinto(offset, buffer)
        for at, value in self.new_bytes.items():
            if offset <= at < offset + len(buffer):
                buffer[at - offset] = value


def mend(bench: Bench, damaged: Damaged) -> Mended | None:
    """Return the best-proven repair: flipped bits, else a zip directory, else a shard index; None without."""
    path = damaged.path
    if (damaged.wrong or damaged.beside) and (mended := _flip_back(bench, damaged)):
        return mended
    tail = rebuild_directory(path) if damaged.report.format == "torch_zip" else None
    if tail and tail[0] <= _MOST_COPIED:
        with LocalSource(path) as source, tempfile.TemporaryDirectory(prefix="ckpt-repair-") as home:
            copy = bench.look(_write_trial(home, source, *tail), instead_of=path)
        if not copy.is_damaged and not copy.wrong:
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


def _write_trial(home: str, source: Source, length: int, tail: bytes = b"") -> str:
    """Return the path of a copy in ``home``: ``length`` bytes of the source, then ``tail``."""
    path = os.path.join(home, os.path.basename(source.path))
    with open(path, "wb") as out:
        out.writelines(source.read(at, min(_BLOCK, length - at)) for at in range(0, length, _BLOCK))
        out.write(tail)
    return path


def _flip_back(bench: Bench, damaged: Damaged) -> Mended | None:
    """Return the flipped bits that make every checksum fit; None if there are none. Damage may hide where
    checksums lie and what they say, so a copy with the bits found so far is inspected anew.
    """
    with LocalSource(damaged.path) as source, tempfile.TemporaryDirectory(prefix="ckpt-repair-") as home:
        new_bytes, source_of = dict[int, int](), dict[int, Sum]()
        now, patched = damaged, Patched(source, new_bytes)
        for _ in range(_ROUNDS):
            before = len(new_bytes)
            _add_bits(now, patched, source_of)
            sees_all = now is damaged and damaged.has_structure  # damage hides no checksum
            if sees_all and not any(_is_wrong(patched, s) for s in damaged.sums):
                break
            if len(new_bytes) == before or source.size > _MOST_COPIED:
                return None
            now = bench.look(_write_trial(home, patched, source.size), instead_of=damaged.path)
            if not now.is_damaged and not now.wrong:
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


def extents_of(s: Sum) -> list[Extent] | None:
    """Return where in the file the bytes lie that a checksum covers; None if they are compressed."""
    if any(isinstance(p, Deflated) for p in s.pieces):
        return None
    return [p for p in s.pieces if isinstance(p, Extent)]


def length_of(s: Sum) -> int:
    return sum(len(p) if isinstance(p, bytes) else p.length for p in s.pieces)


def _add_bits(damaged: Damaged, patched: Patched, source_of: dict[int, Sum]) -> None:
    """Add the bits that wrong CRCs locate, CRCs of few bytes first, which locate a bit with less doubt."""
    candidates = dict.fromkeys((*damaged.wrong, *damaged.beside))
    for s in sorted(candidates, key=length_of):
        if not isinstance(s.hash, Crc) or extents_of(s) is None or not isinstance(s.expected, int):
            continue
        misfit = next(iter(mismatches(patched, [s], jobs=1)), None)  # None: an earlier flip mended it
        if misfit is None or not isinstance(misfit[1], int):
            continue
        flip = find_flipped_bit(s.hash, misfit[1] ^ s.expected, length_of(s))
        place = _place_in_file(s, flip.offset) if flip else None
        if flip is not None and place is not None:
            patched.new_bytes[place] = patched.read(place, 1)[0] ^ 1 << flip.bit
            source_of[place] = s


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
    file = bench.find_sealed(patched.path)
    sealed = (s for pair in _crcs_of_chunks(file, patched.size) for s in pair) if file else ()
    covering = (
        s
        for s in (*inspected.sums, *sealed)
        if any(e.offset <= at < e.offset + e.length for e in extents_of(s) or ())
    )
    return any(s != locator and not _is_wrong(patched, s) for s in covering)
