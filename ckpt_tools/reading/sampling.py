"""A part of the contents, read: which blocks of which files, in what order, and what that says about the
files.

Unless a part n/t alone is asked for, which every file answers for itself, the structure of all files is
looked at first, and then the contents of those that were picked.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING

from ckpt_tools.cache.codec import Seen
from ckpt_tools.cache.verdicts import Cache
from ckpt_tools.checksum import Picked, grid_of, mismatches
from ckpt_tools.errors import UsageError
from ckpt_tools.formats import Anatomy
from ckpt_tools.formats.common.zero_pages import watching
from ckpt_tools.inspection.check import Ask, Inspection, Told, driven, steps_twice
from ckpt_tools.inspection.digest_pass import Wanted
from ckpt_tools.model import answers
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.frozen import replace
from ckpt_tools.model.report import Level, Report
from ckpt_tools.reading.history import DAMAGED, Times
from ckpt_tools.reading.prefetch import unknown_requests
from ckpt_tools.reading.request import Request
from ckpt_tools.reading.schedule import File, Todo, by_file, first, in_turn, joined, rounds
from ckpt_tools.reading.session import Session
from ckpt_tools.settings.sample_size import Share
from ckpt_tools.storage import Identity, OpenFile

if TYPE_CHECKING:
    from ckpt_tools.reading.engines import Engine


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
        self.share, self.max_duration = share, max_duration
        self._ends = None if max_duration is None else time.monotonic() + max_duration
        self.left = share.size if share else None
        self.stopped = False
        self.bytes = self.bytes_read = self.blocks = self.blocks_read = self.files = self.files_read = (
            self.never
        ) = 0
        self.oldest: int | None = None

    @property
    def seconds(self) -> float | None:
        """How much time is left."""
        return None if self._ends is None else max(0.0, self._ends - time.monotonic())

    def told(self) -> answers.Sample:
        return answers.Sample(
            self.share.text if self.share else None,
            self.max_duration,
            self.stopped,
            self.bytes,
            self.bytes_read,
            self.blocks,
            self.blocks_read,
            self.files,
            self.files_read,
            self.never,
            None if self.never else self.oldest,
        )

    def why_nothing(self) -> str:
        """What to tell the user when the time did not suffice for anything; "" when it did."""
        if not self.stopped or self.blocks_read:
            return ""
        return (
            "--max-duration was over before any block of contents had been read to its end (a checksum over a"
            " whole file makes that one block): give more time"
        )


class Sampling:
    """What was asked, of one root."""

    def __init__(self, asked: Asked, s: Session, cache: Cache | None, engine: Engine | None) -> None:
        self.asked, self.s, self.reader, self.engine = asked, s, s.reader, engine
        self.times = Times(cache)
        self.at_once = asked.max_duration is None and asked.share is not None and asked.share.parts > 0

    def read(self, level: Level) -> None:
        """Have a report on every file ready for when it is asked for."""
        import xxhash

        base = self.s.root if self.s.found.tree else os.path.dirname(self.s.root)
        files = [
            File(w, xxhash.xxh3_64_intdigest(os.fsencode(os.path.relpath(w.path, base))))
            for w in unknown_requests(self.s, self.s.parts, level, bare=True)
        ]
        if self.at_once:
            self._contents([(f, ()) for f in files])
        else:
            for f in files:
                self._look(f, ())
            todo = self._todo(files)
            self._contents(todo)
            if self.reader.stopped:
                self.asked.stopped = True
                self._tried(todo)
        for f in files:
            self._told(f, level)

    def _contents(self, todo: Todo) -> None:
        """Until the time is over."""
        if self.engine is not None:
            todo = [left for some in rounds(todo) for left in self._by_engine(self.engine, some)]
        for f, numbers in todo:
            if self.reader.spent:
                self.reader.stopped = True
            if self.reader.stopped:
                return
            self._look(f, numbers)

    def _by_engine(self, engine: Engine, todo: Todo) -> Todo:
        """The same by an engine, each file once; returns what is to be read here."""
        from ckpt_tools.reading.inspecting import Inspecting

        by, numbers = {f.request.path: f for f, _ in todo}, {f.request.path: some for f, some in todo}
        reader = self.reader

        def over() -> bool:
            reader.stopped = reader.stopped or reader.spent
            return reader.stopped

        def pick(request: Request, ask: Wanted) -> Picked | None:
            return self._pick(by[request.path], ask, numbers[request.path])

        for request, seen in Inspecting(engine, reader, pick, over).read(
            [by[path].request for path in numbers]
        ):
            self._took(by[request.path], seen)
            del numbers[request.path]
        return [(by[path], some) for path, some in numbers.items()]

    # ---- one file

    def _look(self, f: File, numbers: Sequence[int]) -> None:
        """Its structure, and the content of some blocks."""
        reader, opened_ns, f.picked = self.reader, time.time_ns(), None
        reader.opened(f.request.path)

        def once() -> Inspection:
            return Inspection(
                f.request.path,
                f.request.level,
                expect=f.request.expect,
                claims=f.request.claims,
                progress=reader.advance,
                require=reader.options.require,
                key=reader.key,
                explain=reader.options.explain,
                io=reader.io,
            )

        try:
            report, anatomy = driven(steps_twice(once), lambda ask: self._blocks(f, ask, numbers))
        except BaseException:  # Ctrl-C
            self._broken_off(f, opened_ns)
            raise
        self._took(f, _seen(report, anatomy, opened_ns))

    def _blocks(self, f: File, ask: Ask, numbers: Sequence[int]) -> Told:
        """The blocks that are to be read now."""
        picked, (source, sums, empty), reader = self._pick(f, ask, numbers), ask, self.reader
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

    def _broken_off(self, f: File, opened_ns: int) -> None:
        """What was read until then is remembered."""
        if f.picked is not None and f.picked.numbers:
            self._note(f, f.picked)
            if f.identity is not None and f.identity.settled(opened_ns):
                self.times.put(f.request.path, f.identity, f.blocks, f.times)

    def _pick(self, f: File, ask: Wanted, numbers: Sequence[int]) -> Picked | None:
        """The blocks to read now; None where there is nothing to divide."""
        source, sums, _ = ask
        grid, f.identity = grid_of(sums, source.size), _identity(source)
        if (grid.starts, grid.lengths) != (f.blocks.starts, f.blocks.lengths):
            based = self.s.indexes.based(f.request.path)
            question = None if based is None else self.reader.question(f.request.expect, based)
            f.blocks, f.times, f.done = grid, self.times.of(f.request.path, f.identity, grid, question), set()
        if not grid:
            return None
        share = self.asked.share
        mine = (
            [k for k in range(len(grid)) if share.has(f.home, k)]
            if self.at_once and share is not None
            else (k for k in numbers if k < len(grid))
        )
        f.picked = Picked(grid, mine)
        return f.picked

    def _took(self, f: File, seen: Seen) -> None:
        """What came of a look."""
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
        whole = len(f.done) == len(f.blocks) and seen.report.level >= Level.CONTENT
        f.seen = joined(
            before,
            seen._replace(report=replace(seen.report, level=seen.report.level if whole else Level.STRUCTURE)),
        )
        if picked.numbers:
            if f.seen.report.verdict in (Verdict.BROKEN, Verdict.UNKNOWN):
                self.times.forget(f.request.path)  # what an earlier run said of the whole
            if seen.identity is not None:
                self.times.put(f.request.path, seen.identity, f.blocks, f.times)

    def _note(self, f: File, picked: Picked) -> None:
        new = picked.done - f.done
        self.asked.blocks_read += len(new)
        self.asked.bytes_read += sum(f.blocks.lengths[k] for k in new)
        f.done |= new
        for k in picked.done | picked.damaged:
            f.times[k] = DAMAGED if k in picked.damaged else self.times.now_ns

    def _told(self, f: File, level: Level) -> None:
        asked = self.asked
        if f.seen is not None:
            self.reader.prefetched[f.request.path] = level, f.seen
        if f.blocks:
            asked.files, asked.blocks, asked.bytes = (
                asked.files + 1,
                asked.blocks + len(f.blocks),
                asked.bytes + sum(f.blocks.lengths),
            )
            asked.never += sum(t <= 0 for t in f.times)
            asked.oldest = min((t for t in (asked.oldest, *f.times) if t is not None and t > 0), default=None)
            if len(f.done) == len(f.blocks):
                asked.files_read += 1
            else:
                self.reader.partial.add(f.request.path)

    # ---- which

    def _todo(self, files: Sequence[File]) -> Todo:
        asked, share = self.asked, self.asked.share
        rows = in_turn(files, share, self.times.now_ns)
        limit = asked.left
        if share is not None and share.fraction is not None:
            limit = ceil(share.fraction * sum(f.size(numbers) for f, numbers in rows))
        todo = first(rows, limit)
        size = sum(f.size(numbers) for f, numbers in todo)
        asked.left = None if asked.left is None else max(0, asked.left - size)
        self.s.bytes_total = self.s.bytes_done + size
        return todo if asked.max_duration is not None else by_file(todo)

    def _tried(self, todo: Todo) -> None:
        """A block that takes more time than there is must not be the first one for ever."""
        f, numbers = todo[0] if todo else (None, ())
        if f is None or self.asked.blocks_read or not f.looks or f.seen is None or f.seen.identity is None:
            return
        f.times[numbers[0]] = -self.times.now_ns
        self.times.put(f.request.path, f.seen.identity, f.blocks, f.times)


def _identity(source: OpenFile) -> Identity | None:
    """What is read, so far; None where nobody can tell, which is said in the end."""
    try:
        return source.identity()
    except OSError:
        return None


def _seen(report: Report, anatomy: Anatomy, opened_ns: int) -> Seen:
    identity = anatomy.identity
    return Seen(
        report, anatomy.places, identity if identity is not None and identity.settled(opened_ns) else None
    )
