"""What is damaged in one file: the stored checksums that do not fit, and what else its report says."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from ckpt_tools.checksum import Crc, Outcome, Sum, mismatches
from ckpt_tools.checksum.chunks import chunks
from ckpt_tools.checksum.combine import CRC32, CRC32C
from ckpt_tools.checksum.sums import Deflated, Extent
from ckpt_tools.formats import Anatomy, format_of, names, structure
from ckpt_tools.formats.common.zero_pages import watching
from ckpt_tools.inspection.check import Inspection, Told
from ckpt_tools.model.finding import Severity, Verdict
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Level, Report
from ckpt_tools.model.seal import SealedFile
from ckpt_tools.reading.session import Session, formats_allowed
from ckpt_tools.storage import LocalSource, OpenFile, ShortRead

_CRC_DIGITS = 8


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
    def by_checksums_alone(self) -> bool:
        """Whether nothing else is wrong with it: then all that is known of its structure holds."""
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
        expect = formats_allowed(part, s.layouts.piece_of(part)) if part else ()
        inspection = Inspection(
            path,
            Level.CONTENT,
            expect=expect,
            claims=s.indexes.claims(named),
            progress=None,
            require=s.options.require,
            key=s.reader.key,
            io=s.options.io,
        )
        wrong = list[Sum]()

        def read(source: OpenFile, sums: list[Sum], empty: list[tuple[int, int]]) -> Told:
            told = mismatches(source, sums, jobs=s.options.jobs, gaps=True, watch=watching(empty))
            return _noting(told, wrong)

        report, anatomy = inspection.run(read, hold=True)
        beside = list(self._beside(report, anatomy, named)) if report.verdict is Verdict.BROKEN else []
        if report.verdict is Verdict.BROKEN and report.format is None:
            beside += _by_name(path)
        return Damaged(path, report, anatomy.sums, wrong, beside)

    def _beside(self, report: Report, anatomy: Anatomy, named: str) -> Iterator[Sum]:
        """Checksums that were not compared: structure has found them wrong, or its damage kept the content
        from being read; and the CRCs of what was sealed.
        """
        yield from anatomy.failed
        if report.level < Level.CONTENT:
            yield from anatomy.sums
        if file := self.sealed(named):
            yield from (first for first, _ in crcs_of_chunks(file, report.size))

    def sealed(self, path: str) -> SealedFile | None:
        """What a seal says of the file, where seals say one thing."""
        seals = self.session.indexes.seals
        said = seals.sealed(path) if seals is not None else []
        return said[0] if len({f.chunks for f in said}) == 1 else None


def _by_name(path: str) -> Iterator[Sum]:
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


def _noting(told: Iterator[tuple[Sum, Outcome]], wrong: list[Sum]) -> Iterator[tuple[Sum, Outcome]]:
    for s, value in told:
        wrong.append(s)
        yield s, value


def crcs_of_chunks(file: SealedFile, size: int) -> Iterator[tuple[Sum, Sum]]:
    """The CRC-32 and the CRC-32C of each chunk that a seal names."""
    for i, extent in enumerate(chunks(size) if size == file.size else ()):
        digits = slice(i * _CRC_DIGITS, (i + 1) * _CRC_DIGITS)
        first, second = int(file.chunk_crc32[digits], 16), int(file.chunk_crc32c[digits], 16)
        yield (
            Sum("a sealed chunk", first, (extent,), extent.offset, hash=CRC32),
            Sum("a sealed chunk", second, (extent,), extent.offset, hash=CRC32C),
        )


def extents_of(s: Sum) -> list[Extent] | None:
    """Where the bytes lie that a sum covers; None where they are compressed."""
    if any(isinstance(p, Deflated) for p in s.pieces):
        return None
    return [p for p in s.pieces if isinstance(p, Extent)]


def crc_of(s: Sum) -> Crc | None:
    """The CRC that a sum is, of bytes as they lie in the file."""
    return s.hash if isinstance(s.hash, Crc) and extents_of(s) is not None else None


def length_of(s: Sum) -> int:
    """Bytes that a sum covers."""
    return sum(len(p) if isinstance(p, bytes) else p.length for p in s.pieces)
