"""Compare two checkpoints, or two files: the files are paired, and each pair is read side by side."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ckpt_tools.checksum import chunks, default_jobs
from ckpt_tools.comparison.difference import Change, Difference, FileDifference, Side, compare, is_index, lone
from ckpt_tools.comparison.pairs import File, Pair, files, match
from ckpt_tools.discovery.roots import require_file, roots
from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.findings import finding
from ckpt_tools.inspection.digests import file_digest, tensor_digests
from ckpt_tools.layouts import Claim, Layouts
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.report import Level
from ckpt_tools.model.seal import SealedFile
from ckpt_tools.model.selection import ReadOptions, StoreOptions
from ckpt_tools.reading.opening import open_session
from ckpt_tools.reading.session import Progress, Session, with_findings
from ckpt_tools.reading.unseen import not_seen
from ckpt_tools.storage import ShortRead
from ckpt_tools.storage.paths import Path, one
from ckpt_tools.storage.retry import is_directory, status, there
from ckpt_tools.storage.trust import OURS, Trust
from ckpt_tools.storage.urls import absolute, is_url

if TYPE_CHECKING:
    from ckpt_tools.checksum.store_sums import Agreement


class _Reader:
    """Reads the files of both sides and counts their bytes: both at once, each with half of the threads."""

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
        self.done = self.total = self.headers = 0
        self.lock = threading.Lock()
        self.hear = getattr(progress, "file", None)
        self.files: int | None = None

    def advance(self, n: int) -> None:
        with self.lock:
            self.done += n
        if self.progress:
            self.progress(self.done, max(self.total, self.done))

    def pairs(self, pairs: Sequence[Pair], *, several: bool) -> tuple[FileDifference, ...]:
        """What differs between the files of each pair. ``several``: a side has more than one."""
        if self.level >= Level.CONTENT:
            self.total = sum(map(_bytes_to_compare, pairs))
        self.files = len({f.path for pair in pairs for f in pair if f is not None})
        return tuple(self.pair(pair, several) for pair in pairs)

    def pair(self, pair: Pair, several: bool) -> FileDifference:
        (in_a, in_b), (first, second) = pair, self.sessions
        if in_a is not None and in_b is not None:
            return self.both(in_a, in_b, several)
        if in_a is not None:
            return lone(in_a.name, Change.REMOVED, self.inspect(first, in_a))
        assert in_b is not None  # noqa: S101 - a pair has at least one file; for the type checker
        return lone(in_b.name, Change.ADDED, self.inspect(second, in_b))

    def both(self, in_a: File, in_b: File, several: bool) -> FileDifference:
        """What differs between two files."""
        told = self.by_store(in_a, in_b) if is_url(in_a.path) or is_url(in_b.path) else None
        if told is not None and told.same:
            return self.same(in_a, in_b, told)
        first, second = self.sessions
        a, b = self.inspect(first, in_a), self.inspect(second, in_b)
        if told is not None:
            a.whole, b.whole, a.by_store = "one", "other", told.checksum.algorithm
        if self.level >= Level.CONTENT:
            self.digest(a, b)
        return compare(in_a.name, a, b, self.level, described=several and is_index(a) and is_index(b))

    def by_store(self, a: File, b: File) -> Agreement | None:
        """Whether a store's checksum says that they are the same."""
        from ckpt_tools.comparison.by_store import agreement  # most comparisons are of local files

        return agreement(self.sessions, (a, b), self.jobs, self.advance)

    def same(self, in_a: File, in_b: File, told: Agreement) -> FileDifference:
        """Two files of the same bytes: one of them is looked at, a local one if there is one."""
        first = is_url(in_b.path) or not is_url(in_a.path)
        f, other = (in_a, in_b) if first else (in_b, in_a)
        here = self.inspect(self.sessions[0 if first else 1], f)
        if here.report.verdict is Verdict.UNKNOWN:
            there = self.inspect(self.sessions[1 if first else 0], other)
        else:
            there = replace(here, report=replace(here.report, path=other.path))
        here.whole = there.whole = here.by_store = there.by_store = told.checksum.algorithm
        self.total -= max(0, in_a.size) + max(0, in_b.size) if self.level >= Level.CONTENT else 0
        a, b = (here, there) if first else (there, here)
        return compare(in_a.name, a, b, self.level)

    def inspect(self, s: Session, f: File) -> Side:
        piece = s.layouts.piece_of(f.part) if f.part else None
        expect = () if piece is None or piece.claim is Claim.WEAK else piece.formats
        if self.hear is not None:
            self.hear(f.path, self.files)
        report, anatomy = s.inspect(f.path, Level.STRUCTURE, f.seen, expect)
        self.headers += report.bytes_read
        sound = s.indexes.seals is not None and report.verdict not in (Verdict.BROKEN, Verdict.UNKNOWN)
        seals = s.indexes.seals if sound else None
        return Side(report, anatomy, seals.unchanged(f.path, report.size, report.mtime_ns) if seals else None)

    def digest(self, a: Side, b: Side) -> None:
        """Digests of the tensors; of the whole files where neither has a tensor with a place,
        unless their sizes differ already. What seals say of files that are as they were then is not read.
        """
        if a.sealed is not None and b.sealed is not None and a.sealed.chunks == b.sealed.chunks:
            a.digests, b.digests = dict(a.sealed.tensors), dict(b.sealed.tensors)
            a.whole = b.whole = _whole(a.sealed)
            self.total -= a.report.size + b.report.size
        elif any(side.stored for side in (a, b)):
            list(self.pool.map(self.tensors, (a, b)))
        elif a.report.size == b.report.size:
            list(self.pool.map(self.everything, (a, b)))
        elif min(a.report.size, b.report.size) >= 0:
            a.whole, b.whole = (f"{side.report.size} bytes" for side in (a, b))

    def tensors(self, side: Side) -> None:
        if side.sealed is not None and side.sealed.tensors:
            side.digests = dict(side.sealed.tensors)
            self.total -= side.report.size
            return
        try:
            side.digests = tensor_digests(side.report.path, side.anatomy, self.advance, jobs=self.jobs)
            self.hold(side)
        except (OSError, ShortRead) as e:
            _spoil(side, e)

    def everything(self, side: Side) -> None:
        if side.sealed is not None:
            side.whole = _whole(side.sealed)
            self.total -= side.report.size
            return
        try:
            side.whole = file_digest(side.report.path, self.advance, jobs=self.jobs)
            self.hold(side)
        except (OSError, ShortRead) as e:
            _spoil(side, e)

    @staticmethod
    def hold(side: Side) -> None:
        """Raise OSError when the file is not the one any more that the report is about."""
        now = status(side.report.path)
        if side.report.format is not None and (now.st_size, now.st_mtime_ns) != (
            side.report.size,
            side.report.mtime_ns,
        ):
            raise OSError(errno.ESTALE, "changed")


def _whole(sealed: SealedFile) -> str:
    """What ``file_digest`` would say."""
    n = chunks.DIGITS
    return chunks.whole(sealed.size, [sealed.chunks[i : i + n] for i in range(0, len(sealed.chunks), n)])


def _spoil(side: Side, e: OSError | ShortRead) -> None:
    """The file could not be read to its end, or changed meanwhile: nothing is known about its tensors."""
    if isinstance(e, OSError) and e.errno != errno.ESTALE:
        why = finding("unreadable", e.strerror or str(e))
    else:
        why = finding("in-use", "size or modification time changed while the file was read")
    side.digests, side.whole = {}, ""
    side.report = replace(with_findings(side.report, (why,)), verdict=Verdict.UNKNOWN)


def _sides(a: str, b: str) -> None:
    """Raises UsageError when one is a file and the other a directory: nothing would match. Raises CannotLook
    for what cannot be looked at, or is neither there nor a prefix of anything.
    """
    try:
        kinds = [_is_file(p) for p in (a, b)]
        if kinds[0] == kinds[1]:
            return
        one, other = (a, b) if kinds[0] else (b, a)
        if is_url(one):
            require_file(one)
    except OSError as e:
        raise CannotLook(f"cannot look at {e.filename}: {e.strerror}") from e
    raise UsageError(
        f"{one} is a file and {other} is none",
        "compare two files, or two directories (or prefixes) of checkpoints",
    )


def _is_file(path: str) -> bool:
    if there(path):
        return not is_directory(path)
    if absolute(path) in roots(path):
        raise CannotLook(f"{path} was not there a moment ago, and is there now", "run it again")
    return False


def diff(
    a: Path,
    b: Path,
    level: Level = Level.CONTENT,
    *,
    jobs: int = 0,
    key_file: str | None = None,
    seal_dir: str | None = None,
    progress: Progress | None = None,
    trust: Trust = OURS,
    layouts: Layouts | None = None,
    stores: StoreOptions | None = None,
) -> Difference:
    """Say what differs between two checkpoints (directories, or prefixes), or two files.

    Files are matched by their role and rank in their layout, whatever their step; tensors and metadata by
    name. At level content the bytes of all tensors are compared by their digests, below it only names, types
    and shapes. For files that were not written since they were sealed, the digests come from their seals.
    Both sides are read at the same time, with half of the ``jobs`` each; with 1 job one after the other.
    ``stores`` are the options of stores, None for those that this process was given before.

    Raises CannotLook when a side does not exist or holds nothing that is recognised, and UsageError when a
    file is compared with a directory.
    """
    started = time.perf_counter()
    a, b = one(a, "A"), one(b, "B")
    options = ReadOptions(
        jobs=jobs, key_file=key_file, seal_dir=seal_dir, by_store=True, trust=trust, layouts=layouts
    )
    if stores is not None:
        from ckpt_tools.storage.stores import mounts

        mounts.configure(stores)
    _sides(a, b)
    first, second = open_session(a, options), open_session(b, options)
    in_a, in_b = _files(first, a), _files(second, b)
    pairs = match(in_a, in_b)
    if first.found.alone and second.found.alone:
        pairs = _with_roots(pairs, first.root, second.root)
    with ThreadPoolExecutor(1 if jobs == 1 else 2) as pool:
        reader = _Reader((first, second), level, pool, progress)
        compared = reader.pairs(pairs, several=max(len(in_a), len(in_b)) > 1)
    return Difference(
        a=first.root,
        b=second.root,
        level=level,
        files=compared,
        findings=(*not_seen(first), *not_seen(second)),
        bytes_read=reader.done + reader.headers,
        seconds=round(time.perf_counter() - started, 6),
    )


def _files(s: Session, root: str) -> list[File]:
    """The checkpoint files of one side. Raises CannotLook when there are none."""
    found = files(s)
    if not found:
        raise CannotLook(f"there is no checkpoint file in {root}", "'ckpt ls -v' shows where checkpoints are")
    return found


def _bytes_to_compare(pair: Pair) -> int:
    """The size of two files that are there on both sides."""
    a, b = pair
    return 0 if a is None or b is None else max(0, a.size) + max(0, b.size)


def _with_roots(pairs: list[Pair], a: str, b: str) -> list[Pair]:
    """The two files that were asked for stand for each other, whatever they are called."""
    both: list[File | None] = [None, None]
    loose: list[Pair] = []
    for in_a, in_b in pairs:
        is_a = in_a is not None and in_a.path == a
        is_b = in_b is not None and in_b.path == b
        if is_a and is_b:
            return pairs
        if is_a:
            both[0] = in_a
        if is_b:
            both[1] = in_b
        rest = (None if is_a else in_a, None if is_b else in_b)
        loose += [rest] if any(rest) else []
    return [(both[0], both[1]), *loose]
