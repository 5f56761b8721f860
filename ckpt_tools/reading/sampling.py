"""A part of the contents, read: which blocks of which files, in what order, and what that says about the
files. When each block was last checked the cache of verdicts keeps between runs.

Unless a part n/t alone is asked for, which every file answers for itself, the structure of all files is
looked at first, and then the contents of those that were picked.
"""

from __future__ import annotations

import os
import time
import zlib
from array import array
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from math import ceil

import xxhash
from msgspec import Struct, field
from msgspec.structs import replace

from ckpt_tools.cache.codec import Seen
from ckpt_tools.cache.verdicts import Cache, Entry
from ckpt_tools.checksum import Blocks, Picked, Sum, grid_of, mismatches
from ckpt_tools.errors import UsageError
from ckpt_tools.formats.common.zero_pages import watching
from ckpt_tools.inspection.check import Told, inspect_twice
from ckpt_tools.model import answers
from ckpt_tools.model.finding import Verdict, worst
from ckpt_tools.model.report import Level
from ckpt_tools.reading.inspecting import inspection_of, settled
from ckpt_tools.reading.prefetch import unknown_requests
from ckpt_tools.reading.scheduler import Request
from ckpt_tools.reading.session import Session
from ckpt_tools.settings.sample_size import Share
from ckpt_tools.storage import Identity, OpenFile

DAMAGED = -1
"""Instead of a time: the block did not match, so it comes first. 0 is never checked; any other negative
number is a time at which a run ended before the block did.
"""
_QUESTION, _DIGEST, _DEPTH = b"when its blocks were checked", 8, int(Level.CONTENT)


class File(Struct):
    """``home`` is a number that its place in the tree gives it, ``times`` has one for each of its ``blocks``,
    ``done`` those that this run has read. ``picked`` is being read, of the file that ``identity`` tells.
    """

    request: Request
    home: int
    seen: Seen | None = None
    blocks: Blocks = field(default_factory=Blocks)
    times: array[int] = field(default_factory=lambda: array("q"))
    done: set[int] = field(default_factory=set)
    picked: Picked | None = None
    identity: Identity | None = None
    looks: int = 0

    @property
    def is_read(self) -> bool:
        return len(self.done) == len(self.blocks)

    def size(self, numbers: Iterable[int]) -> int:
        """Return the bytes of some blocks."""
        return sum(self.blocks.lengths[k] for k in numbers)


Todo = list[tuple[File, Sequence[int]]]
"""Blocks of files, in the order in which they are to be read."""


class Asked:
    """How much to read, over all roots of one question, and what came of it."""

    def __init__(self, share: Share | None, max_duration: float | None, level: Level) -> None:
        if level is not Level.CONTENT:
            what = "--max-duration" if share is None else f"--sample {share.text}"
            raise UsageError(
                f"{what} is about reading contents, and level {level}"
                f" {'reads none' if level < Level.CONTENT else 'needs all of them'}",
                "say --level content, or leave it out",
            )
        self.share, self.max_duration, self.stopped = share, max_duration, False
        self._ends = None if max_duration is None else time.monotonic() + max_duration
        self.left = share.size if share else None
        self.files: list[File] = []

    @property
    def seconds(self) -> float | None:
        """Return how much time is left."""
        return None if self._ends is None else max(0.0, self._ends - time.monotonic())

    @property
    def blocks_read(self) -> int:
        return sum(len(f.done) for f in self.files)

    def told(self) -> answers.Sample:
        """Return the part of the answer that is about the sample."""
        files = [f for f in self.files if f.blocks]
        never = sum(t <= 0 for f in files for t in f.times)
        return answers.Sample(
            asked=self.share.text if self.share else None,
            max_duration=self.max_duration,
            stopped=self.stopped,
            bytes=sum(sum(f.blocks.lengths) for f in files),
            bytes_read=sum(f.size(f.done) for f in files),
            blocks=sum(len(f.blocks) for f in files),
            blocks_read=self.blocks_read,
            files=len(files),
            files_read=sum(f.is_read for f in files),
            never=never,
            oldest_ns=None if never else min((t for f in files for t in f.times), default=None),
        )

    def why_nothing(self) -> str:
        """Return what to tell the user when the time did not suffice for anything; "" when it did."""
        if not self.stopped or self.blocks_read:
            return ""
        return (
            "--max-duration was over before any block of contents had been read to its end (a checksum over a"
            " whole file makes that one block): give more time"
        )


class Sampling:
    """What was asked, of one root."""

    def __init__(self, asked: Asked, s: Session, cache: Cache | None) -> None:
        self.asked, self.s, self.reader = asked, s, s.reader
        self.cache, self.now_ns = cache, time.time_ns()
        self.at_once = asked.max_duration is None and asked.share is not None and asked.share.parts > 0

    def read(self, level: Level) -> None:
        """Have a report on every file ready for when it is asked for."""
        base = self.s.root if self.s.found.tree else os.path.dirname(self.s.root)
        files = [
            File(w, xxhash.xxh3_64_intdigest(os.fsencode(os.path.relpath(w.path, base))))
            for w in unknown_requests(self.s, self.s.parts, level, bare=True)
        ]
        self.asked.files += files
        if self.at_once:
            self._contents([(f, ()) for f in files])
        else:
            for f in files:
                self._look(f, ())
            todo = self._todo(files)
            self._contents(todo)
            if self.reader.stopped:
                self.asked.stopped = True
                self._postpone(todo)
        for f in files:
            if f.seen is not None:
                self.reader.prefetched[f.request.path] = level, f.seen
            if not f.is_read:
                self.reader.partial.add(f.request.path)

    def _todo(self, files: Sequence[File]) -> Todo:
        asked, share = self.asked, self.asked.share
        rows = in_turn(files, share, self.now_ns)
        limit = asked.left
        if share is not None and share.fraction is not None:
            limit = ceil(share.fraction * sum(f.size(numbers) for f, numbers in rows))
        todo = first(rows, limit)
        size = sum(f.size(numbers) for f, numbers in todo)
        asked.left = None if asked.left is None else max(0, asked.left - size)
        self.s.bytes_total = self.s.bytes_done + size
        return todo if asked.max_duration is not None else by_file(todo)

    def _postpone(self, todo: Todo) -> None:
        """A block that takes more time than there is must not be the first one for ever."""
        for f, numbers in [] if self.asked.blocks_read else todo[:1]:
            if f.looks and f.seen is not None and f.seen.identity is not None:
                f.times[numbers[0]] = -self.now_ns
                self._keep_times(f, f.seen.identity)

    def _contents(self, todo: Todo) -> None:
        """Read until the time is over."""
        for f, numbers in todo:
            if self._is_over():
                return
            self._look(f, numbers)

    def _is_over(self) -> bool:
        self.reader.stopped = self.reader.stopped or self.reader.spent
        return self.reader.stopped

    # ---- one file

    def _look(self, f: File, numbers: Sequence[int]) -> None:
        """Read its structure, and the content of some blocks."""
        reader, opened_ns, f.picked = self.reader, time.time_ns(), None
        reader.opened(f.request.path)

        def read(source: OpenFile, sums: list[Sum], empty: list[tuple[int, int]]) -> Told:
            picked = self._pick(f, numbers, source, sums)
            if picked is not None and not picked.numbers:
                return iter(())
            return mismatches(
                source,
                sums,
                jobs=reader.options.jobs,
                progress=reader.advance,
                gaps=True,
                watch=watching(empty),
                picked=picked,
            )

        once = partial(inspection_of, f.request, reader, progress=reader.advance, io=reader.io)
        try:
            report, anatomy = inspect_twice(once, read)
        except BaseException:  # Ctrl-C
            self._break_off(f, opened_ns)
            raise
        self._take(f, Seen(report, anatomy.places, settled(anatomy.identity, opened_ns)))

    def _break_off(self, f: File, opened_ns: int) -> None:
        """Remember what was read until then."""
        if f.picked is not None and f.picked.numbers:
            self._note(f, f.picked)
            self._keep_times(f, settled(f.identity, opened_ns))

    def _pick(self, f: File, numbers: Sequence[int], source: OpenFile, sums: Sequence[Sum]) -> Picked | None:
        """Return the blocks to read now; None where there is nothing to divide."""
        grid, f.identity, share = grid_of(sums, source.size), None, self.asked.share
        with suppress(OSError):  # nobody can tell, which is said in the end
            f.identity = source.identity()
        if (grid.starts, grid.lengths) != (f.blocks.starts, f.blocks.lengths):
            f.blocks, f.times, f.done = grid, self._times_of(f, grid), set()
        if not grid:
            return None
        if self.at_once and share is not None:
            numbers = [k for k in range(len(grid)) if share.has(f.home, k)]
        f.picked = Picked(grid, (k for k in numbers if k < len(grid)))
        return f.picked

    def _take(self, f: File, seen: Seen) -> None:
        """Take in what came of a look."""
        picked, f.picked = f.picked, None
        if picked is None:
            f.seen = seen
            return
        for finding in seen.report.findings:
            if finding.code == "zero-pages" and finding.offset is not None:
                picked.damaged.add(f.blocks.at(finding.offset))
        if len(f.blocks) == 1 and seen.report.verdict is Verdict.BROKEN:
            picked.damaged.add(0)
        before = f.seen if f.looks else None
        self._note(f, picked)
        f.looks += bool(picked.numbers)
        whole = f.is_read and seen.report.level >= Level.CONTENT
        level = seen.report.level if whole else Level.STRUCTURE
        f.seen = join_looks(before, seen._replace(report=replace(seen.report, level=level)))
        if picked.numbers:
            if self.cache is not None and f.seen.report.verdict in (Verdict.BROKEN, Verdict.UNKNOWN):
                self.cache.forget(f.request.path)  # what an earlier run said of the whole
            self._keep_times(f, seen.identity)

    def _note(self, f: File, picked: Picked) -> None:
        f.done |= picked.done
        for k in picked.done | picked.damaged:
            f.times[k] = DAMAGED if k in picked.damaged else self.now_ns

    def _times_of(self, f: File, grid: Blocks) -> array[int]:
        """Return when earlier runs checked each block, or all of them with the whole content."""
        times, path, cache = array("q", bytes(8 * len(grid))), f.request.path, self.cache
        if cache is None or f.identity is None or not grid:
            return times
        own = cache.get(path, _QUESTION, _DEPTH, f.identity, ever=True)
        if own is not None and own.data[:_DIGEST] == _digest(grid):
            with suppress(zlib.error):  # it is not what was compressed
                known = zlib.decompressobj().decompress(own.data[_DIGEST:], 8 * len(grid))
                times = array("q", known) if len(known) == 8 * len(grid) else times
        if (based := self.s.indexes.based(path)) is not None:
            question = self.reader.question(f.request.expect, based)
            whole = cache.get(path, question, _DEPTH, f.identity, ever=True)
            if whole is not None and not whole.bad:
                times = array("q", (max(t, whole.seen_ns) for t in times))
        return times

    def _keep_times(self, f: File, identity: Identity | None) -> None:
        """Keep them for later runs, if it is still the file that was read."""
        if self.cache is not None and identity is not None:
            data = _digest(f.blocks) + zlib.compress(f.times.tobytes(), 1)
            self.cache.put(f.request.path, _QUESTION, identity, Entry(data, _DEPTH, self.now_ns, False))


# ---- which blocks


def in_turn(files: Sequence[File], share: Share | None, seed: int) -> Todo:
    """Return all blocks that belong to the share: those least recently checked first, files that were begun
    before others, and then at random, so that no file is always the last.
    """
    rows: list[tuple[int, bool, int, int, array[int]]] = []
    for i, f in enumerate(files):
        groups: dict[int, array[int]] = {}
        for k, t in enumerate(f.times):
            if share is None or share.has(f.home, k):
                groups.setdefault(t if t >= DAMAGED else -t, array("q")).append(k)
        chance, new = xxhash.xxh3_64_intdigest(i.to_bytes(8, "big"), seed), not any(t > 0 for t in f.times)
        rows += ((key, new, chance, i, numbers) for key, numbers in groups.items())
    rows.sort(key=lambda row: row[:4])
    return [(files[i], numbers) for *_, i, numbers in rows]


def first(rows: Todo, limit: int | None) -> Todo:
    """Return the first of them that have ``limit`` bytes together, or a block more."""
    if limit is None:
        return rows
    out = Todo()
    for f, numbers in rows:
        some = list[int]()
        for k in numbers:
            if limit > 0:
                some.append(k)
                limit -= f.blocks.lengths[k]
        if some:
            out.append((f, some))
    return out


def by_file(todo: Todo) -> Todo:
    """Return each file in one go, by their paths: for where all is read in any case."""
    out: dict[str, tuple[File, list[int]]] = {}
    for f, numbers in todo:
        out.setdefault(f.request.path, (f, []))[1].extend(numbers)
    return [out[path] for path in sorted(out)]


def join_looks(before: Seen | None, seen: Seen) -> Seen:
    """Return what either of two looks at one file found."""
    if before is None:
        return seen
    findings = tuple(dict.fromkeys((*before.report.findings, *seen.report.findings)))
    unknown = Verdict.UNKNOWN in (before.report.verdict, seen.report.verdict)
    report = replace(
        seen.report,
        findings=findings,
        verdict=Verdict.UNKNOWN if unknown else worst(findings),
        bytes_read=before.report.bytes_read + seen.report.bytes_read,
    )
    return Seen(report, seen.places, seen.identity if seen.identity == before.identity else None)


def _digest(blocks: Blocks) -> bytes:
    """Return that of the grid: another version of ckpt may draw another."""
    return xxhash.xxh3_64_digest(blocks.starts.tobytes() + blocks.lengths.tobytes())
