"""Verify a file at level content and digest it for a seal, in one pass over its bytes."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ckpt_tools import formats
from ckpt_tools.checksum import Extent, Outcome, Progress, Sum, mismatches
from ckpt_tools.checksum.combine import crc32_combine, crc32c_combine
from ckpt_tools.checksum.sums import ASKED, ChunkDigests, chunks, join_digests
from ckpt_tools.errors import UsageError
from ckpt_tools.formats import Claim
from ckpt_tools.formats.common.zeros import watching
from ckpt_tools.formats.seals.document import hash_of
from ckpt_tools.inspection.check import Inspection, Mismatches, is_in_doubt
from ckpt_tools.inspection.digests import tensor_digests
from ckpt_tools.model.finding import Verdict
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
"""Names of metadata numbers that differ from save to save."""
_COUNTERS = 16  # counters that a seal keeps of a file, at most
_XXH3 = 16  # bytes of an XXH3-128
_CRC = 4  # bytes of a CRC-32 or CRC-32C


class Digested(NamedTuple):
    """One file after a pass: its entry in a seal (``file``), None if it is damaged, in doubt or not read to
    its end. ``report`` is None for a sound file of no known format.
    """

    report: Report | None
    file: SealedFile | None
    identity: Identity | None = None


class DigestPass(NamedTuple):
    """The options of a pass: the seal's ``algorithm``, further ones (``also``), and if ``tensors`` count."""

    algorithm: str
    also: tuple[str, ...] = ()
    tensors: bool = False
    jobs: int = 0
    io: str = "auto"
    require: tuple[str, ...] = ()
    key: bytes | None = None
    progress: Progress | None = None

    def read(self, path: str, name: str, expect: Sequence[str], claims: Sequence[Claim]) -> Digested:
        """Read the file that the seal calls ``name``, twice if in doubt. Raises OSError if unreadable."""
        first = self._attempt_read(path, name, expect, claims)
        if first.report is None or not is_in_doubt(first.report):
            return first
        from ckpt_tools.inspection.kept_checksum import weigh_again  # a file on a disk is read once

        second = self._attempt_read(path, name, expect, claims)
        return Digested(weigh_again(first.report, second.report, self.progress), None, second.identity)

    def _compare(self, source: OpenFile, sums: list[Sum], runs: list[tuple[int, int]] | None) -> Mismatches:
        """Yield the sums that do not match; add the ranges of zero pages to ``runs``, unless it is None."""
        watch, gaps = None if runs is None else watching(runs), runs is not None
        return mismatches(source, sums, jobs=self.jobs, progress=self.progress, gaps=gaps, watch=watch)

    def _attempt_read(self, path: str, name: str, expect: Sequence[str], claims: Sequence[Claim]) -> Digested:
        """Return one attempt, in one pass: ``file`` is None if damaged, or not read to its end."""
        if not (expect or claims or formats.names.known(os.path.basename(path))):
            return self.read_plain(path, name)  # many files of other kinds begin like JSON
        progress, require, key = self.progress, self.require, self.key
        inspection = Inspection(
            path, Level.CONTENT, expect, claims, progress, require, key, io=self.io, asks_store=True
        )
        digests = _Digests(0, ())

        def read(source: OpenFile, sums: list[Sum], zero_pages: list[tuple[int, int]]) -> Mismatches:
            nonlocal digests
            digests = self._make_digests(source.size)
            return digests.collect(self._compare(source, [*sums, *digests.sums], zero_pages))

        report, anatomy = inspection.run(read)
        if report.format is None and not report.findings:
            return self.read_plain(path, name)
        # a read that was stopped leaves some digests out
        if report.verdict in (Verdict.BROKEN, Verdict.UNKNOWN) or len(digests.got) != len(digests.sums):
            return Digested(report, None, anatomy.identity)
        tensors = dict[str, str]()
        if self.tensors:
            tensors = tensor_digests(path, anatomy, self.progress, jobs=self.jobs, io=self.io)
        numbers = {
            key: value
            for key, value in report.metadata.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool) and _COUNTER.fullmatch(key)
        }
        counters = dict(sorted(numbers.items())[:_COUNTERS])
        return Digested(report, digests.seal(name, self.algorithm, counters, tensors), anatomy.identity)

    def read_plain(self, path: str, name: str) -> Digested:
        """Read a file of no known format. Raises OSError."""
        with opened(path, self.io) as source:
            digests, wrong = self._make_digests(source.size), None
            if source.size:
                checksum: KeptChecksum | None = None
                if is_url(path):
                    from ckpt_tools.inspection.kept_checksum import kept_checksum

                    checksum = kept_checksum(source)
                sums = digests.sums if checksum is None else [*digests.sums, *checksum.sums]
                differing = self._compare(source, sums, None)
                for _ in digests.collect(differing if checksum is None else checksum.collect(differing)):
                    raise AssertionError("nothing is stored that could differ")
                wrong = None if checksum is None else checksum.finding()
            if source.changed():
                raise OSError(errno.ESTALE, "size or modification time changed while the file was read", path)
            if wrong is not None:
                report = Report(path, None, source.size, Verdict.BROKEN, Level.CONTENT, findings=(wrong,))
                return Digested(report, None)
            return Digested(None, digests.seal(name, self.algorithm, {}, {}), source.identity())

    def _make_digests(self, size: int) -> _Digests:
        return _Digests(size, dict.fromkeys(n for n in (self.algorithm, *self.also) if n != "xxh3"))


class _Digests:
    """The digests of one file: ``sums`` are to be read, ``got`` maps the name of each sum to its digest."""

    def __init__(self, size: int, names: Iterable[str]) -> None:
        self.size, self.got = size, dict[str, bytes]()
        self._extents = list(chunks(size))
        self.sums = [
            Sum(f"chunk {e.offset}", ASKED, (e,), e.offset, hash=ChunkDigests) for e in self._extents
        ]
        self._whole, self._empty = list[str](), dict[str, str]()
        for name in names:
            make_hash = hash_of(name)
            if make_hash is None:
                hint = f"pip install 'ckpt-tools[{name}]'"
                raise UsageError(f"{name} needs a package that is not installed", hint)
            if size:
                self._whole.append(name)
                self.sums.append(Sum(name, ASKED, (Extent(0, size),), 0, hash=make_hash))
            else:
                digest = make_hash().digest()
                self._empty[name] = digest.hex() if isinstance(digest, bytes) else ""

    def collect(self, mismatched: Iterator[tuple[Sum, Outcome]]) -> Iterator[tuple[Sum, Outcome]]:
        """Keep the digests in ``got``; yield the stored checksums that do not match."""
        for s, got in mismatched:
            if s.expected == ASKED and isinstance(got, bytes):
                self.got[s.what] = got
            else:
                yield s, got

    def seal(
        self, name: str, algorithm: str, counters: Mapping[str, Scalar], tensors: Mapping[str, str]
    ) -> SealedFile:
        """Return the entry of the file in a seal; all ``sums`` must have come."""
        rows = [self.got[f"chunk {e.offset}"] for e in self._extents]
        strong = [row[:_XXH3].hex() for row in rows]
        crc, crc_c = 0, 0
        for e, row in zip(self._extents, rows, strict=True):
            crc = crc32_combine(crc, int.from_bytes(row[_XXH3 : _XXH3 + _CRC], "big"), e.length)
            crc_c = crc32c_combine(crc_c, int.from_bytes(row[-_CRC:], "big"), e.length)
        whole = {n: self.got[n].hex() for n in self._whole} | self._empty
        return SealedFile(
            path=name,
            size=self.size,
            digest=whole.pop(algorithm) if algorithm != "xxh3" else join_digests(self.size, strong),
            crc32=f"{crc:08x}",
            crc32c=f"{crc_c:08x}",
            chunks="".join(strong),
            chunk_crc32="".join(row[_XXH3 : _XXH3 + _CRC].hex() for row in rows),
            chunk_crc32c="".join(row[-_CRC:].hex() for row in rows),
            counters=counters,
            also=whole,
            tensors=tensors,
        )
