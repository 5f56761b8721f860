"""Compare two checkpoints, or two files: the files are paired, and each pair is read side by side."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from ckpt_tools.checksum import Progress as Advance
from ckpt_tools.checksum.store_sums import Agreement, choose_sum, compare_sums, work_out
from ckpt_tools.comparison.difference import (
    Change,
    Difference,
    File,
    FileDifference,
    Pair,
    Side,
    compare,
    describe_lone_file,
    files,
    is_index,
    match,
)
from ckpt_tools.discovery.walk import require_file
from ckpt_tools.errors import CannotLook, UsageError, explain_refusal
from ckpt_tools.findings import finding
from ckpt_tools.inspection.digests import file_digest, runs_by_name, tensor_digests
from ckpt_tools.layouts import Claim
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.report import Level
from ckpt_tools.model.seal import StoreChecksum, StoreChecksums
from ckpt_tools.model.selection import ReadOptions
from ckpt_tools.reading.opening import open_session
from ckpt_tools.reading.session import Progress, Session, with_findings
from ckpt_tools.reading.unseen import list_unlisted
from ckpt_tools.storage import ShortRead, opened
from ckpt_tools.storage.paths import Path, one
from ckpt_tools.storage.retry import status
from ckpt_tools.storage.stalls import default_jobs
from ckpt_tools.storage.urls import is_url


class _Reader:
    """The pass over both sides, at the same time, each with half of the threads; counts the bytes read."""

    def __init__(
        self,
        sessions: tuple[Session, Session],
        level: Level,
        pool: ThreadPoolExecutor,
        progress: Progress | None,
    ) -> None:
        self.sessions, self.level, self.pool, self.progress = sessions, level, pool, progress
        jobs = sessions[0].options.jobs or default_jobs()
        self.jobs = max(1, jobs // 2)
        self.done = self.total = 0
        self.lock = threading.Lock()
        self.hear = getattr(progress, "file", None)
        self.files: int | None = None

    def advance(self, n: int) -> None:
        """Count ``n`` bytes that were just read, from any thread; tell ``progress``."""
        with self.lock:
            self.done += n
        if self.progress:
            self.progress(self.done, max(self.total, self.done))

    def compare_all(self, pairs: Sequence[Pair], *, several: bool) -> tuple[FileDifference, ...]:
        """Return the difference of each pair. ``several``: a side has more than one file."""
        complete = [pair for pair in pairs if None not in pair] if self.level >= Level.CONTENT else []
        self.total = sum(max(0, f.size) for pair in complete for f in pair if f is not None)
        self.files = len({f.path for pair in pairs for f in pair if f is not None})
        return tuple(self.compare_pair(*pair, several) for pair in pairs)

    def compare_pair(self, in_a: File | None, in_b: File | None, several: bool) -> FileDifference:
        """Read both files as far as stores do not tell their checksums; return their difference."""
        first, second = self.sessions
        if in_b is None:
            assert in_a is not None  # noqa: S101 - a pair has at least one file; for the type checker
            return describe_lone_file(in_a.name, Change.REMOVED, self.inspect(first, in_a))
        if in_a is None:
            return describe_lone_file(in_b.name, Change.ADDED, self.inspect(second, in_b))
        a, b = self.read_pair(in_a, in_b)
        found = compare(in_a.name, a, b, self.level, described=several and is_index(a) and is_index(b))
        return self.measure(found, a, b) if self.level >= Level.VALUES else found

    def read_pair(self, in_a: File, in_b: File) -> tuple[Side, Side]:
        """Return both sides of a pair, read as deep as the level says if no store tells more."""
        first, second = self.sessions
        by_store: Agreement | None = None
        if is_url(in_a.path) or is_url(in_b.path):
            by_store = find_agreement(self.sessions, (in_a, in_b), self.jobs, self.advance)
        if by_store is not None and by_store.same:  # one is read for both, a local one if possible
            is_a = is_url(in_b.path) or not is_url(in_a.path)
            side = self.inspect(first, in_a) if is_a else self.inspect(second, in_b)
            side.whole = side.by_store = by_store.algorithm
            a, b = (replace(side, report=replace(side.report, path=f.path)) for f in (in_a, in_b))
            return a, b
        a, b = self.inspect(first, in_a), self.inspect(second, in_b)
        if by_store is not None:
            a.whole, b.whole, a.by_store = "one", "other", by_store.algorithm
        if self.level >= Level.CONTENT:
            self.digest(a, b)
        return a, b

    def measure(self, found: FileDifference, a: Side, b: Side) -> FileDifference:
        """Return the difference with the largest one of each changed tensor; reads these once more."""
        try:
            from ckpt_tools.inspection.tensor_values import find_largest_difference
        except ImportError as e:
            raise UsageError("looking at values needs numpy", "pip install 'ckpt-tools[values]'") from e
        runs = [runs_by_name(side.anatomy.tensors, side.report.size) for side in (a, b)]
        known, forms = runs[0].keys() & runs[1].keys(), a.forms  # digests of others come from seals
        changed = {t.name: forms[t.name] for t in found.tensors if t.change is Change.CHANGED}
        where = {n: (runs[0][n], runs[1][n]) for n, of in changed.items() if n in known and len(of) == 1}
        self.total += sum(length for sides in where.values() for side in sides for _, length in side)
        largest = dict[str, float | None]()
        with suppress(OSError, ShortRead), opened(a.report.path) as in_a, opened(b.report.path) as in_b:
            for name, sides in where.items():
                dtype = forms[name][0].dtype
                largest[name] = find_largest_difference(in_a, in_b, sides, dtype, self.advance)
        return replace(found, tensors=tuple(replace(t, largest=largest.get(t.name)) for t in found.tensors))

    def inspect(self, s: Session, f: File) -> Side:
        """Read the structure of a file."""
        piece = s.layouts.piece_of(f.part) if f.part else None
        expect = () if piece is None or piece.claim is Claim.WEAK else piece.formats
        if self.hear is not None:
            self.hear(f.path, self.files)
        report, anatomy = s.inspect(f.path, Level.STRUCTURE, f.seen, expect)
        self.advance(report.bytes_read)
        return Side(report, anatomy)

    def digest(self, a: Side, b: Side) -> None:
        """Digest the tensors, or whole files of the same size if no tensor has a known place."""
        sizes, is_whole = (a.report.size, b.report.size), not (a.stored or b.stored)
        if is_whole and sizes[0] != sizes[1]:
            a.whole, b.whole = (f"{size} bytes" if min(sizes) >= 0 else "" for size in sizes)
        else:
            list(self.pool.map(self.digest_side, (a, b), (is_whole, is_whole)))

    def digest_side(self, side: Side, is_whole: bool) -> None:
        """Digest the whole file or its tensors; the verdict on a file that changed meanwhile is unknown."""
        report = side.report
        why = finding("in-use", "size or modification time changed while the file was read")
        try:
            if is_whole:
                side.whole = file_digest(report.path, self.advance, jobs=self.jobs)
            else:
                side.digests = tensor_digests(report.path, side.anatomy, self.advance, jobs=self.jobs)
            now = status(report.path)
            if report.format is None or (now.st_size, now.st_mtime_ns) == (report.size, report.mtime_ns):
                return
        except OSError as e:
            if e.errno != errno.ESTALE:
                why = finding("unreadable", e.strerror or str(e))
        except ShortRead:
            pass
        side.digests, side.whole = {}, ""
        side.report = replace(with_findings(report, (why,)), verdict=Verdict.UNKNOWN)


def diff(
    a: Path, b: Path, level: Level = Level.CONTENT, *, progress: Progress | None = None, **read: Any
) -> Difference:
    """Say what differs between two checkpoints (directories, or prefixes), or two files.

    Files are matched by their role and rank in their layout, whatever their step; tensors and metadata by
    name. At level content the bytes of all tensors are compared by their digests, below it only names, types
    and shapes; level values (which needs numpy) also tells how far the numbers of changed tensors are apart.
    Both sides are read at the same time, with half of the ``jobs`` each; with 1 job one after the other.
    ``read`` are fields of ``ReadOptions``, such as ``jobs``, ``key_file`` and ``stores``.

    Raises CannotLook when a side does not exist or holds nothing that is recognised, and UsageError when a
    file is compared with a directory.
    """
    started = time.perf_counter()
    a, b, options = one(a, "A"), one(b, "B"), ReadOptions(**read, by_store=True)
    first, second = open_session(a, options), open_session(b, options)
    if first.found.alone != second.found.alone:
        file, other = (first.root, second.root) if first.found.alone else (second.root, first.root)
        if is_url(file):  # a store may say that it is a directory as well
            with explain_refusal(f"cannot look at {file}"):
                require_file(file)
        hint = "compare two files, or two directories (or prefixes) of checkpoints"
        raise UsageError(f"{file} is a file and {other} is none", hint)
    in_a, in_b = files(first), files(second)
    if not in_a or not in_b:
        why = f"there is no checkpoint file in {b if in_a else a}"
        raise CannotLook(why, "'ckpt ls -v' shows where checkpoints are")
    pairs = _make_pairs(in_a, first.root, in_b, second.root)
    with ThreadPoolExecutor(1 if options.jobs == 1 else 2) as pool:
        reader = _Reader((first, second), level, pool, progress)
        compared = reader.compare_all(pairs, several=max(len(in_a), len(in_b)) > 1)
    return Difference(
        a=first.root,
        b=second.root,
        level=level,
        files=compared,
        findings=(*list_unlisted(first), *list_unlisted(second)),
        bytes_read=reader.done,
        seconds=round(time.perf_counter() - started, 6),
    )


def _make_pairs(a: Sequence[File], root_a: str, b: Sequence[File], root_b: str) -> list[Pair]:
    """Return the pairs of files that are compared; two files that the caller named are one."""
    first = next((f for f in a if f.path == root_a), None)
    second = next((f for f in b if f.path == root_b), None)
    pairs = match([f for f in a if f is not first], [f for f in b if f is not second])
    return [(first, second), *pairs] if first or second else pairs


def find_agreement(
    sides: tuple[Session, Session], pair: tuple[File, File], jobs: int, progress: Advance
) -> Agreement | None:
    """Compare two files by the checksums that stores keep; None if that proves nothing, or a read fails."""
    a, b = pair
    if a.size != b.size or a.size <= 0:
        return None
    try:
        if is_url(a.path) and is_url(b.path):
            sums = _stored_sums(sides[1], b).sums
            expected = {s.algorithm: s.value for s in sums if s.whole and not s.claimed and not s.weak}
            return compare_sums(_stored_sums(sides[0], a), expected)
        local, other = (1, 0) if is_url(a.path) else (0, 1)
        stored = _stored_sums(sides[other], pair[other])
        of = choose_sum(stored, to_prove=True)
        return None if of is None else _compare_bytes(stored, of, pair[local].path, jobs, progress)
    except (OSError, ShortRead):
        return None


def _compare_bytes(
    stored: StoreChecksums, of: StoreChecksum, path: str, jobs: int, progress: Advance
) -> Agreement | None:
    """Read a local file and compare its checksum with the store's; None if that proves nothing."""
    with opened(path) as source:
        value = None if source.size != stored.size else work_out(source, of, jobs=jobs, progress=progress)
        if value is None or source.changed():
            return None
    same = value == of.value
    return Agreement(same, of.algorithm) if same or not of.weak else None


def _stored_sums(s: Session, f: File) -> StoreChecksums:
    """Return the checksums that the store keeps of a file. Raises OSError."""
    return StoreChecksums(f.path, f.size) if s.evidence is None else s.evidence.told(f.path)
