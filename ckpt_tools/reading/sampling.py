"""A part of the contents, read: which files, in what order, and what that says about the others."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from math import ceil

import xxhash
from msgspec import Struct

from ckpt_tools.cache import Cache, Entry, Seen
from ckpt_tools.errors import UsageError
from ckpt_tools.model import answers
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.report import Level
from ckpt_tools.reading.reader import recall
from ckpt_tools.reading.scheduler import Request, unknown_requests
from ckpt_tools.reading.session import Session
from ckpt_tools.settings.parsers import Share
from ckpt_tools.storage import Identity
from ckpt_tools.storage.retry import status

_QUESTION = b"when its contents were last checked"


class File(Struct):
    """A file to sample, which has bytes. Times are in ns since 1970, 0 for never."""

    request: Request
    home: int  # a number made of its path
    checked: int = 0  # when its contents were last read to their end
    tried: int = 0  # the same, also when the time did not suffice
    damaged: bool = False
    done: bool = False


class Asked:
    """How much to read, over all roots of one question, and how much of it was read."""

    def __init__(self, share: Share | None, max_duration: float | None, level: Level) -> None:
        if level is not Level.CONTENT:
            what = "--budget" if share is None else f"--sample {share.text}"
            need = "reads none" if level < Level.CONTENT else "needs all of them"
            why = f"{what} is about reading contents, and level {level} {need}"
            raise UsageError(why, "add --level content, or leave it out")
        self.share, self.max_duration, self.stopped = share, max_duration, False
        self._ends = None if max_duration is None else time.monotonic() + max_duration
        self._left = share.size if share else None
        self.files: list[File] = []

    @property
    def seconds(self) -> float | None:
        """The seconds that are left; None without a limit."""
        return None if self._ends is None else max(0.0, self._ends - time.monotonic())

    def pick(self, files: Sequence[File], seed: int) -> list[File]:
        """Return the files to read: damaged ones first, then those not tried for longest, then at random."""
        share = self.share
        mine = [f for f in files if share is None or share.has(f.home)]
        chance = {f.home: xxhash.xxh3_64_intdigest(f.home.to_bytes(8, "big"), seed) for f in mine}
        mine.sort(key=lambda f: (not f.damaged, f.tried, chance[f.home]))
        limit = self._left
        if share is not None and share.fraction is not None:
            limit = ceil(share.fraction * sum(f.request.size for f in mine))
        if limit is None:
            return mine
        picked = list[File]()
        for f in mine:
            if limit > 0:
                picked.append(f)
                limit -= f.request.size
        self._left = None if self._left is None else max(0, limit)
        return picked

    def told(self) -> answers.Sample:
        """Return the part of the answer that is about the sample."""
        files = self.files
        never = sum(not f.checked for f in files)
        read = [f for f in files if f.done]
        return answers.Sample(
            asked=self.share.text if self.share else None,
            max_duration=self.max_duration,
            stopped=self.stopped,
            bytes=sum(f.request.size for f in files),
            bytes_read=sum(f.request.size for f in read),
            blocks=len(files),
            blocks_read=len(read),
            files=len(files),
            files_read=len(read),
            never=never,
            oldest_ns=None if never else min((f.checked for f in files), default=None),
        )

    def why_nothing(self) -> str:
        """Return a text for the user if the time did not suffice for any file; else ""."""
        if not self.stopped or any(f.done for f in self.files):
            return ""
        return "--budget ran out before any file had been read to its end: give more time"

    def read(self, s: Session, cache: Cache | None) -> None:
        """Have a report ready on every file below a root; on files not picked, or without time left, one on
        structure. ``cache`` remembers when files were read.
        """
        reader, files, now_ns = s.reader, _find_files(s, cache), time.time_ns()
        self.files += files
        picked = self.pick(files, now_ns)
        s.bytes_total = s.bytes_done + sum(f.request.size for f in picked)
        wanted = {f.home for f in picked}
        if self.max_duration is not None:  # else in their order: an index may add up over several
            files = [*picked, *(f for f in files if f.home not in wanted)]
        if picked and not reader.spent:  # a file that takes all the time there is counts as tried
            picked[0].tried = now_ns
            with suppress(OSError):  # what is wrong with it is said when it is read
                _store(cache, picked[0], Identity.of(status(picked[0].request.path)), now_ns)
        for f in files:
            if f.home in wanted and not reader.spent:
                _check(s, cache, f, now_ns)
            else:
                _read_file(s, f, Level.STRUCTURE)
            if not f.done:
                reader.partial.add(f.request.path)
        self.stopped = self.stopped or not all(f.done for f in picked)


def _find_files(s: Session, cache: Cache | None) -> list[File]:
    """Return the files that have contents, with the times of earlier runs."""
    base = s.root if s.found.tree else os.path.dirname(s.root)
    files = list[File]()
    for r in unknown_requests(s, s.parts, Level.CONTENT, bare=True):
        if r.size <= 0:
            continue
        f = File(r, xxhash.xxh3_64_intdigest(os.fsencode(os.path.relpath(r.path, base))))
        files.append(f)
        for question in (_QUESTION, s.reader.question(r.expect, s.indexes.sources_digest(r.path))):
            if recalled := recall(cache, r.path, question, Level.CONTENT, ever=True):
                entry = recalled[0]
                checked = int(entry.data or 0) if question is _QUESTION else entry.seen_ns
                f.checked, f.tried = max(f.checked, checked), max(f.tried, entry.seen_ns)
                f.damaged = f.damaged or entry.bad
    return files


def _read_file(s: Session, f: File, level: Level) -> Seen:
    """Read a file, and prefetch the result as the report on its contents, whatever its level."""
    began, path = time.time_ns(), f.request.path
    report, anatomy = s.reader.read(path, level, f.request.expect, f.request.claims)
    identity = anatomy.identity if anatomy.identity and anatomy.identity.settled(began) else None
    seen = Seen(report, anatomy.places, identity)
    s.reader.prefetched[path] = Level.CONTENT, seen
    return seen


def _check(s: Session, cache: Cache | None, f: File, now_ns: int) -> None:
    """Read a file's contents, and store when."""
    began = time.time_ns()
    seen = _read_file(s, f, Level.CONTENT)
    f.done, f.damaged = not s.reader.stopped, seen.report.verdict is Verdict.BROKEN
    if f.done:
        f.checked = f.tried = now_ns
    if f.done or f.damaged:
        _store(cache, f, seen.identity, began)


def _store(cache: Cache | None, f: File, identity: Identity | None, began: int) -> None:
    """Put a file's times into the cache, if nobody has written to it since ``began`` (ns)."""
    if cache is not None and identity is not None and identity.settled(began):
        data = b"" if f.damaged else str(f.checked).encode()
        # if it is damaged, this replaces what an earlier run said of it
        cache.put(f.request.path, _QUESTION, identity, Entry(data, int(Level.CONTENT), f.tried, f.damaged))
