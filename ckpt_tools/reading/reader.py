"""The files of one question, read: from the cache where it knows them, by one process at a time where not, and no deeper than the budget allows."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from ckpt_tools import __version__
from ckpt_tools.cache.codec import Places, Seen, pack, unpack
from ckpt_tools.cache.locks import turn
from ckpt_tools.cache.verdicts import Cache, Entry
from ckpt_tools.formats import Anatomy, Claim
from ckpt_tools.inspection.check import look, unreadable
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.report import Level, Report
from ckpt_tools.storage import Identity, Stopped
from ckpt_tools.storage.rate import Rate
from ckpt_tools.storage.retry import patiently
from ckpt_tools.storage.stalls import Stalled, away

T = TypeVar("T")
WAIT = 600.0
"""Seconds to wait for another process that reads the same file; then it is read without waiting."""
_PAUSE, _PAUSES = 0.002, 0.1
"""Seconds between two looks at whether another process is done: at first, and at most."""


class Reader:
    """``unread`` maps the files that the budget did not suffice for to their bytes, ``partial`` has those of which a part of the contents was asked for. ``bytes_verified`` counts what the reports cost when they were made, now or earlier."""

    def __init__(
        self,
        *,
        jobs: int,
        require: tuple[str, ...],
        key: bytes | None,
        explain: bool,
        progress: Callable[[int], None],
        cache: Cache | None,
        budget: float | None,
        io: str = "auto",
        limit_rate: float | None = None,
    ) -> None:
        self.jobs, self.require, self.key, self.explain, self.progress = jobs, require, key, explain, progress
        self.cache = (
            None if key is not None or explain else cache
        )  # what a key opened is not for a file that others may read
        self.ends = None if budget is None else time.monotonic() + budget
        self.rate = Rate(limit_rate) if limit_rate else None
        # Helpers that map a file take it in big pieces, which no rate holds back.
        self.io = "pread" if limit_rate and io in ("auto", "mmap") else io
        self.unread: dict[str, int] = {}
        self.ahead: dict[
            str, tuple[Level, Seen]
        ] = {}  # what was read before anybody asked: by an engine, or as a sample
        self.partial = set[str]()
        self._cost: dict[str, int] = {}
        self.stopped = False  # whether the budget ended the last read

    @property
    def bytes_verified(self) -> int:
        return sum(self._cost.values())

    @property
    def spent(self) -> bool:
        """Whether the budget has come to its end."""
        return self.ends is not None and time.monotonic() >= self.ends

    def read(
        self, path: str, level: Level, expect: Sequence[str], claims: Sequence[Claim]
    ) -> tuple[Report, Anatomy]:
        """A report on the file as it is now. When the budget ends meanwhile, it has the level reached until then."""
        self.stopped = False
        try:
            report, anatomy = away(
                look,
                path,
                level,
                expect=expect,
                claims=claims,
                jobs=self.jobs,
                progress=self.advance,
                require=self.require,
                key=self.key,
                explain=self.explain,
                io=self.io,
            )
        except Stalled as e:
            return unreadable(path, e), Anatomy()
        if self.stopped and report.verdict is not Verdict.BROKEN:
            self.unread[path] = report.size
        self._cost[path] = max(self._cost.get(path, 0), report.bytes_read)
        return report, anatomy

    def report(
        self, path: str, level: Level, expect: Sequence[str], claims: Sequence[Claim], based: str | None
    ) -> tuple[Report, Places] | None:
        """The same without what is in the file, and not always from the file. ``based`` stands for the indexes behind the claims; None keeps nothing.

        None when the budget was spent before anybody had read it so deeply.
        """

        def fresh() -> tuple[tuple[Report, Places] | None, bytes | None, Identity | None, bool]:
            level_, seen = self.ahead.pop(path, (None, None))
            if seen is None or level_ is not level:
                if level > Level.STRUCTURE and self.spent:
                    self.unread[path] = _size(path)
                    return None, None, None, False
                report, anatomy = self.read(path, level, expect, claims)
                seen = Seen(report, anatomy.places, anatomy.identity)
            else:
                self.stopped = False  # that was another file
            report, places, identity = seen
            if path in self.partial:  # what is kept of it is kept already
                return (report, places), None, None, False
            # An optional package that is missing today may be there tomorrow; what nobody could look at is looked at again.
            kept = (
                not self.stopped
                and report.verdict is not Verdict.UNKNOWN
                and not any(f.code == "needs-extra" for f in report.findings)
            )
            bad = report.verdict in (Verdict.BROKEN, Verdict.UNKNOWN)
            return (
                (report, places),
                pack(report, places) if kept and self.cache is not None else None,
                identity,
                bad,
            )

        # What a framework's loader says is asked anew each time: it depends on what is installed.
        shared = based is not None and level < Level.LOAD
        question = self.question(expect, based)
        found = (
            self._ask(path, question, level, lambda data: unpack(path, data), fresh) if shared else fresh()[0]
        )
        if found is not None:
            self._cost[path] = max(self._cost.get(path, 0), found[0].bytes_read)
        return found

    def knows(self, path: str, level: Level, expect: Sequence[str], based: str | None) -> bool:
        """Whether an earlier run's verdict answers the same."""
        if self.cache is None or based is None or level >= Level.LOAD or self.cache.max_age <= 0:
            return False
        try:
            identity = Identity.of(patiently(os.stat, path))
        except OSError:
            return False
        return self.cache.get(path, self.question(expect, based), int(level), identity) is not None

    def question(self, expect: Sequence[str], based: str | None) -> bytes:
        """The name under which the cache keeps a report."""
        return repr((__version__, tuple(expect), self.require, based)).encode()

    def keep(self, path: str, question: str, read: Callable[[], tuple[bytes, Identity | None]]) -> bytes:
        """What ``read`` makes of a file, kept under the name of the ``question``; raises what ``read`` raises."""

        def fresh() -> tuple[bytes, bytes, Identity | None, bool]:
            data, identity = read()
            return data, data, identity, False

        return self._ask(
            path, f"{__version__} {question}".encode(), Level.STRUCTURE, lambda data: data, fresh
        )

    def _ask(
        self,
        path: str,
        question: bytes,
        level: Level,
        decode: Callable[[bytes], T | None],
        fresh: Callable[[], tuple[T, bytes | None, Identity | None, bool]],
    ) -> T:
        """From the cache, else by ``fresh``, which says what it found, the bytes to keep, of which file, and whether that is bad."""
        cache = self.cache
        if cache is None or not cache.usable:
            return fresh()[0]

        def known() -> T | None:
            try:
                identity = Identity.of(patiently(os.stat, path))
            except OSError:
                return None
            entry = cache.get(path, question, level, identity)
            return decode(entry.data) if entry else None

        def read() -> T:
            opened = time.time_ns()
            found, data, identity, bad = fresh()
            if data is None and bad:
                cache.forget(path)
            elif data is not None and identity is not None and identity.settled(opened):
                cache.put(path, question, identity, Entry(data, int(level), opened, bad))
            return found

        if cache.max_age <= 0:
            return read()
        if (found := known()) is not None:
            return found
        with turn(cache.locks, path, level > Level.STRUCTURE) as ours:
            until, pause = time.monotonic() + WAIT, _PAUSE
            while not ours() and time.monotonic() < until and not (level > Level.STRUCTURE and self.spent):
                time.sleep(pause)
                pause = min(1.5 * pause, _PAUSES)
                if (found := known()) is not None:
                    return found
            found = known()
            return read() if found is None else found

    def advance(self, n: int) -> None:
        """So many bytes of contents were read, by any thread. Raises Stopped when the budget has come to its end."""
        self.progress(n)
        if self.rate is not None and n:
            self.rate.took(n)
        if self.spent:
            self.stopped = True
            raise Stopped


def _size(path: str) -> int:
    try:
        return patiently(os.stat, path).st_size
    except OSError:
        return 0
