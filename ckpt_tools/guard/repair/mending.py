"""What a damaged file can be mended with: the bits that CRCs tell, a zip directory, or a shard index."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from ckpt_tools.checksum import Crc, Sum, mismatches
from ckpt_tools.checksum.combine import CRC32, CRC32C, flipped_bit, odds
from ckpt_tools.checksum.sums import Deflated, Extent, chunks
from ckpt_tools.formats import Anatomy, format_of, names, structure
from ckpt_tools.formats.common.zeros import watching
from ckpt_tools.formats.lost_indexes import text_of, whole_sets
from ckpt_tools.guard.repair.zip_directory import rebuild_directory
from ckpt_tools.inspection.check import Inspection, Told
from ckpt_tools.model.finding import Severity, Verdict
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Level, Report
from ckpt_tools.model.seal import SealedFile
from ckpt_tools.reading.session import Session, formats_allowed
from ckpt_tools.storage import LocalSource, OpenFile, ShortRead, Source

Lost = tuple[str, bytes, str]
"""(path of an index, its bytes, one of its shards)."""
_CRC_DIGITS = 8
_ROUNDS = 4
_TRIED = 4 << 30
"""Bytes of a file at most that is written to a temporary place to see whether it is mended."""
_BLOCK = 8 << 20


class Damaged(NamedTuple):
    """One file: its report, all its stored checksums, those that do not fit, and others that may not."""

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
        """Whether nothing but checksums is wrong with it: then all that is known of its structure holds."""
        errors = sum(f.severity is Severity.ERROR for f in self.report.findings)
        return self.report.level >= Level.CONTENT and errors == len(self.wrong)


class Bench:
    """Looks at the files of one root, as they are and as they would be in the place of another."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.parts: dict[str, Part] = {p.path: p for p in session.parts}

    def look(self, path: str, instead_of: str | None = None) -> Damaged:
        """A file to level content, against all that layouts, indexes and seals say about it; or a file that
        is to take the place of another, against what they say about that one.
        """
        s, named = self.session, instead_of or path
        part = self.parts.get(named)
        inspection = Inspection(
            path,
            Level.CONTENT,
            expect=formats_allowed(part, s.layouts.piece_of(part)) if part else (),
            claims=s.indexes.claims(named),
            progress=None,
            require=s.options.require,
            key=s.reader.key,
            io=s.options.io,
        )
        wrong = list[Sum]()

        def read(source: OpenFile, sums: list[Sum], empty: list[tuple[int, int]]) -> Told:
            told = mismatches(source, sums, jobs=s.options.jobs, gaps=True, watch=watching(empty))
            for pair in told:
                wrong.append(pair[0])
                yield pair

        report, anatomy = inspection.run(read)
        beside = list[Sum]()
        if report.verdict is Verdict.BROKEN:
            # not compared: structure has found them wrong, or its damage kept the content from being read
            beside += (*anatomy.failed, *(anatomy.sums if report.level < Level.CONTENT else ()))
            if file := self.find_sealed(named):
                beside += (first for first, _ in _crcs_of_chunks(file, report.size))
            if report.format is None:
                beside += _sums_by_name(path)
        return Damaged(path, report, anatomy.sums, wrong, beside)

    def find_sealed(self, path: str) -> SealedFile | None:
        """What a seal says of the file, where seals say one thing."""
        seals = self.session.indexes.seals
        said = seals.sealed_by(path) if seals is not None else []
        return said[0][0] if len({f.chunks for f, _ in said}) == 1 else None


def _sums_by_name(path: str) -> Iterator[Sum]:
    """What is stored in a file that begins like none of the formats that its name stands for, as each of them
    would read it.
    """
    with LocalSource(path) as source:
        for name in names.allowed(os.path.basename(path)):
            anatomy = Anatomy()
            with suppress(ShortRead, OSError):
                for _ in structure(source, anatomy, format_of(name).checks[Level.STRUCTURE]):
                    pass
            yield from (*anatomy.sums, *anatomy.failed)


def _crcs_of_chunks(file: SealedFile, size: int) -> Iterator[tuple[Sum, Sum]]:
    """The CRC-32 and the CRC-32C of each chunk that a seal names."""
    for i, extent in enumerate(chunks(size) if size == file.size else ()):
        digits = slice(i * _CRC_DIGITS, (i + 1) * _CRC_DIGITS)
        first, second = int(file.chunk_crc32[digits], 16), int(file.chunk_crc32c[digits], 16)
        yield (
            Sum("a sealed chunk", first, (extent,), extent.offset, hash=CRC32),
            Sum("a sealed chunk", second, (extent,), extent.offset, hash=CRC32C),
        )


class Mended(NamedTuple):
    """How a file can be mended: ``bits`` are the bytes that change, by their offset; ``tail`` (offset, bytes)
    replaces all from its offset on. ``odds`` is the probability at most that the repair is wrong, 0 where it
    has a witness beside the checksum that it was worked out from. ``why`` is for people.
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
    """A Source with other bytes in places: what a repair is proven on before anything is written."""

    def __init__(self, source: Source, bits: dict[int, int]) -> None:
        self.source, self.bits = source, bits
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
        for at, value in self.bits.items():
            if offset <= at < offset + len(buffer):
                buffer[at - offset] = value


def mend(bench: Bench, damaged: Damaged) -> Mended | None:
    """The first way in the order of evidence; None where there is none."""
    path = damaged.path
    if (damaged.wrong or damaged.beside) and (mended := _flip_back(bench, damaged)):
        return mended
    tail = rebuild_directory(path) if damaged.report.format == "torch_zip" else None
    if tail and tail[0] <= _TRIED:
        with LocalSource(path) as source, tempfile.TemporaryDirectory(prefix="ckpt-repair-") as home:
            now = bench.look(_write_trial(home, source, *tail), instead_of=path)
        if not now.is_damaged and not now.wrong:
            why = "its directory rewritten: every record fits its own CRC, and none is missing"
            return Mended(why, {}, tail=tail)
    for _, data, _ in find_lost_indexes(bench.session, path) if path.endswith(".index.json") else ():
        return Mended("rewritten from its shards", {}, tail=(0, data))
    return None


def find_lost_indexes(s: Session, damaged: str | None = None) -> Iterator[Lost]:
    """Every index that is not there, or of a ``damaged`` one, all of
    whose shards are there, sound as far as their structure shows.
    """
    files = dict.fromkeys((*(p.path for p in s.parts), *(f.path for f in s.found.bare)))
    for path, shards in sorted(whole_sets(files).items()):
        if path != damaged if damaged is not None else os.path.lexists(path):
            continue
        looks = [s.inspect(shard, Level.STRUCTURE) for shard in shards]
        if all(report.verdict in (Verdict.OK, Verdict.SUSPECT) for report, _ in looks):
            tensors = {os.path.basename(p): a.tensors for p, (_, a) in zip(shards, looks, strict=True)}
            if (data := text_of(tensors)) is not None:
                yield path, data, shards[0]


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
            if (
                now is damaged
                and damaged.has_structure
                and not any(_differs(patched, s) for s in damaged.sums)
            ):
                break
            if len(bits) == before or source.size > _TRIED:
                return None
            now = bench.look(_write_trial(home, patched, source.size), instead_of=damaged.path)
            if not now.is_damaged and not now.wrong:
                break
        else:
            return None
        doubtful = (s for at, s in told_by.items() if not _has_witness(patched, at, s, bench, now))
        chance = _round_up(min(1.0, sum(odds(length_of(s)) for s in doubtful)))
    told = (f"one flipped bit in byte {at:,}, told by the checksum of {s.what}" for at, s in told_by.items())
    return Mended("; ".join(told), bits, chance)


def _round_up(chance: float) -> float:
    """Two significant digits of a probability: it is said, and said back."""
    if not chance:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(chance)) - 1)
    return float(f"{math.ceil(chance / unit) * unit:.1e}")


def _differs(source: Source, s: Sum) -> bool:
    return any(True for _ in mismatches(source, [s], jobs=1))


def extents_of(s: Sum) -> list[Extent] | None:
    """Where the bytes lie that a sum covers; None where they are compressed."""
    if any(isinstance(p, Deflated) for p in s.pieces):
        return None
    return [p for p in s.pieces if isinstance(p, Extent)]


def length_of(s: Sum) -> int:
    """Bytes that a sum covers."""
    return sum(len(p) if isinstance(p, bytes) else p.length for p in s.pieces)


def _add_bits(damaged: Damaged, patched: Patched, told_by: dict[int, Sum]) -> None:
    """Flip back what CRCs tell that do not fit, first those of few bytes, which tell it with less doubt."""
    rows = dict.fromkeys((*damaged.wrong, *damaged.beside))
    for s in sorted(rows, key=length_of):
        if not isinstance(s.hash, Crc) or extents_of(s) is None or not isinstance(s.expected, int):
            continue
        told = next(iter(mismatches(patched, [s], jobs=1)), None)  # none: mended by what another one told
        if told is None or not isinstance(told[1], int):
            continue
        flip = flipped_bit(s.hash, told[1] ^ s.expected, length_of(s))
        place = _place_in_file(s, flip.offset) if flip else None
        if flip is not None and place is not None:
            patched.bits[place] = patched.read(place, 1)[0] ^ 1 << flip.bit
            told_by[place] = s


def _place_in_file(s: Sum, offset: int) -> int | None:
    """Where in the file a byte lies that a sum covers, by its number among them; None where in no file."""
    for p in s.pieces:
        length = len(p) if isinstance(p, bytes) else p.length
        if offset < length:
            return None if isinstance(p, bytes) else p.offset + offset
        offset -= length
    return None


def _has_witness(now: Source, at: int, by: Sum, bench: Bench, sound: Damaged) -> bool:
    """Whether another checksum than the one that a bit was worked out from covers it as well, and fits."""
    file = bench.find_sealed(now.path)
    sealed = (s for pair in _crcs_of_chunks(file, now.size) for s in pair) if file else ()
    covering = (
        s
        for s in (*sound.sums, *sealed)
        if any(e.offset <= at < e.offset + e.length for e in extents_of(s) or ())
    )
    return any(s != by and not _differs(now, s) for s in covering)
