"""One pass over a file that is to be sealed: verified at level content, and digested, its bytes read once."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ckpt_tools import formats
from ckpt_tools.checksum import Extent, Outcome, Progress, Sum, chunks, mismatches
from ckpt_tools.checksum.combine import crc32_combine, crc32c_combine
from ckpt_tools.checksum.sums import ASKED
from ckpt_tools.errors import UsageError
from ckpt_tools.formats import Claim
from ckpt_tools.formats.common.zero_pages import watching
from ckpt_tools.formats.seals.document import hash_of
from ckpt_tools.inspection.check import Inspection, Told
from ckpt_tools.inspection.digests import tensor_digests
from ckpt_tools.inspection.twice import held_against_store, in_doubt, judged
from ckpt_tools.model.finding import Finding, Verdict
from ckpt_tools.model.report import Level, Report, Scalar
from ckpt_tools.model.seal import SealedFile
from ckpt_tools.storage import Identity, OpenFile, opened
from ckpt_tools.storage.urls import is_url

if TYPE_CHECKING:
    from ckpt_tools.inspection.kept_checksum import KeptChecksum

_COUNTER = re.compile(
    r"(?:.*[._])?(?:global_?step|steps?|step_num|epoch(?:_num)?|iteration|iter(?:_num)?|num_updates"
    r"|optimizer_step|batch_idx|current_step|consumed_(?:train_)?samples|\w+_timestamp_nsecs)"
)
"""Names of numbers that are others in every save."""
_COUNTERS = 16
_XXH3 = 16
_CRC = 4


class Seen(NamedTuple):
    """What the pass saw: ``file`` is None where the file must not be sealed, as the report says; ``identity``
    is that of the file that was read.
    """

    report: Report | None
    file: SealedFile | None
    identity: Identity | None = None


class DigestPass(NamedTuple):
    """How files are read, and which digests are wanted of them."""

    algorithm: str
    also: tuple[str, ...] = ()
    tensors: bool = False
    jobs: int = 0
    io: str = "auto"
    require: tuple[str, ...] = ()
    key: bytes | None = None
    progress: Progress | None = None

    def read(self, path: str, name: str, expect: Sequence[str], claims: Sequence[Claim]) -> Seen:
        """A file that the seal calls ``name``. Raises OSError where nobody can look at it."""
        seen = self._once(path, name, expect, claims)
        if seen.report is None or not in_doubt(seen.report):
            return seen
        again = self._once(path, name, expect, claims)  # it may have been damaged on its way here
        report = held_against_store(judged(seen.report, again.report), self.progress)
        return Seen(report, None, again.identity)

    def _read(self, source: OpenFile, sums: list[Sum], empty: list[tuple[int, int]] | None) -> Told:
        """Yield what does not match; ``empty`` is None where nobody asks for zero pages."""
        return mismatches(
            source,
            sums,
            jobs=self.jobs,
            progress=self.progress,
            gaps=empty is not None,
            watch=None if empty is None else watching(empty),
        )

    def _once(self, path: str, name: str, expect: Sequence[str], claims: Sequence[Claim]) -> Seen:
        if not (expect or claims or formats.names.known(os.path.basename(path))):
            return self.plain(path, name)  # many bytes begin as JSON does
        inspection = Inspection(
            path,
            Level.CONTENT,
            expect=expect,
            claims=claims,
            progress=self.progress,
            require=self.require,
            key=self.key,
            io=self.io,
            asks_store=True,
        )
        found = _Digests(0, ())

        def read(source: OpenFile, sums: list[Sum], empty: list[tuple[int, int]]) -> Told:
            nonlocal found
            found = self._wanted(source.size)
            return found.taken(self._read(source, [*sums, *found.sums], empty))

        report, anatomy = inspection.run(read, hold=True)
        if report.format is None and not report.findings:
            return self.plain(path, name)
        if report.verdict in (Verdict.BROKEN, Verdict.UNKNOWN) or not found.complete:
            return Seen(report, None, anatomy.identity)
        tensors = (
            tensor_digests(path, anatomy, self.progress, jobs=self.jobs, io=self.io) if self.tensors else {}
        )
        file = found.file(name, self.algorithm, counters(report.metadata), tensors)
        return Seen(report, file, anatomy.identity)

    def plain(self, path: str, name: str) -> Seen:
        """Read a file of no format that anybody here knows: only an index could say what it is. Raises
        OSError where nobody can look at it.
        """
        with opened(path, self.io) as source:
            found, wrong = self._wanted(source.size), list[Finding]()
            if source.size:
                kept = _kept(source, found.sums)
                told = self._read(source, found.sums if kept is None else kept.sums, None)
                for _ in found.taken(told if kept is None else kept.taken(told)):
                    raise AssertionError("nothing is stored that could differ")
                wrong += kept.findings() if kept is not None else ()
            if source.changed():
                raise OSError(errno.ESTALE, "size or modification time changed while the file was read", path)
            if wrong:
                report = Report(path, None, source.size, Verdict.BROKEN, Level.CONTENT, findings=tuple(wrong))
                return Seen(report, None)
            return Seen(None, found.file(name, self.algorithm, {}, {}), source.identity())

    def _wanted(self, size: int) -> _Digests:
        others = [n for n in (self.algorithm, *self.also) if n != "xxh3"]
        return _Digests(size, dict.fromkeys(others))


def _kept(source: OpenFile, sums: Sequence[Sum]) -> KeptChecksum | None:
    """What the store has said of the bytes, where they lie in one."""
    if not is_url(source.path):
        return None
    from ckpt_tools.inspection.kept_checksum import kept_checksum

    return kept_checksum(source, sums)


def counters(metadata: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """The numbers in a file that tell which save it is of."""
    told = {
        name: value
        for name, value in metadata.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and _COUNTER.fullmatch(name)
    }
    return dict(sorted(told.items())[:_COUNTERS])


class _Digests:
    """What is asked of one file, and what came."""

    def __init__(self, size: int, names: Iterable[str]) -> None:
        self.size, self._names = size, tuple(names) if size else ()
        self._extents = list(chunks.chunks(size))
        self.sums = [
            Sum(f"chunk {e.offset}", ASKED, (e,), e.offset, hash=chunks.ChunkDigests) for e in self._extents
        ]
        for name in self._names:
            made = hash_of(name)
            if made is None:
                raise UsageError(
                    f"{name} needs a package that is not installed", f"pip install 'ckpt-tools[{name}]'"
                )
            self.sums.append(Sum(name, ASKED, (Extent(0, size),), 0, hash=made))
        self._empty = dict.fromkeys(names, b"") if not size else {}
        self._came: dict[str, bytes] = {}

    def taken(self, told: Iterator[tuple[Sum, Outcome]]) -> Iterator[tuple[Sum, Outcome]]:
        """Keeps what was asked for, and passes on what differs from what is stored."""
        for s, got in told:
            if s.expected == ASKED and isinstance(got, bytes):
                self._came[s.what] = got
            else:
                yield s, got

    @property
    def complete(self) -> bool:
        """Whether everything came: a read that was stopped leaves some out."""
        return len(self._came) == len(self.sums)

    def file(
        self, name: str, algorithm: str, counters: Mapping[str, Scalar], tensors: Mapping[str, str]
    ) -> SealedFile:
        """The file as a seal has it."""
        rows = [self._came[f"chunk {e.offset}"] for e in self._extents]
        strong = [row[:_XXH3].hex() for row in rows]
        crc, crcc = 0, 0
        for e, row in zip(self._extents, rows, strict=True):
            crc = crc32_combine(crc, int.from_bytes(row[_XXH3 : _XXH3 + _CRC], "big"), e.length)
            crcc = crc32c_combine(crcc, int.from_bytes(row[-_CRC:], "big"), e.length)
        whole = {n: self._came[n].hex() for n in self._names} | {n: _of_nothing(n) for n in self._empty}
        return SealedFile(
            path=name,
            size=self.size,
            digest=whole.pop(algorithm) if algorithm != "xxh3" else chunks.whole(self.size, strong),
            crc32=f"{crc:08x}",
            crc32c=f"{crcc:08x}",
            chunks="".join(strong),
            chunk_crc32="".join(row[_XXH3 : _XXH3 + _CRC].hex() for row in rows),
            chunk_crc32c="".join(row[-_CRC:].hex() for row in rows),
            counters=counters,
            also=whole,
            tensors=tensors,
        )


def _of_nothing(name: str) -> str:
    """The digest of an empty file."""
    made = hash_of(name)
    digest = b"" if made is None else made().digest()
    return digest.hex() if isinstance(digest, bytes) else ""
