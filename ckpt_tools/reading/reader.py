"""Reads the files of one request: from the cache if it has their verdicts, otherwise by one process at a
time, and no deeper than the budget allows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from ckpt_tools.cache.codec import Places, Seen, pack, unpack
from ckpt_tools.cache.locks import turn
from ckpt_tools.cache.verdicts import Cache, Entry
from ckpt_tools.findings import finding
from ckpt_tools.formats import Anatomy, Claim
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.frozen import frozen, replace
from ckpt_tools.model.report import Level, Report
from ckpt_tools.model.selection import ReadOptions
from ckpt_tools.settings.plugins import tool_version
from ckpt_tools.storage import Identity, Stopped
from ckpt_tools.storage.rate import Rate
from ckpt_tools.storage.retry import status, there
from ckpt_tools.storage.stalls import Stalled, away

T = TypeVar("T")
WAIT = 600.0
"""Seconds to wait for another process that reads the same file; then it is read without waiting."""
_PAUSE, _PAUSES = 0.002, 0.1
"""Seconds between two checks of whether another process is done: at first, and at most."""


@frozen
class Fresh(Generic[T]):
    """What was just read: ``value`` for who asked, ``data`` to keep of the file that ``identity`` tells
    (None: keep nothing), and whether that is ``bad``.
    """

    value: T
    data: bytes | None = None
    identity: Identity | None = None
    bad: bool = False


class Reader:
    """``unread`` maps the files that the budget did not suffice for to their bytes, ``partial`` has those of
    which a part of the contents was asked for, ``prefetched`` what was read before anybody asked, to which
    level. ``bytes_verified`` counts what the reports cost when they were made, now or earlier.
    """

    def __init__(
        self, options: ReadOptions, key: bytes | None, cache: Cache | None, progress: Callable[[int], None]
    ) -> None:
        self.options, self.key, self.progress = options, key, progress
        self.files_total: int | None = None
        self._hear = getattr(options.progress, "file", None)
        # What a key opened is not for a file that others may read.
        self.cache = None if key is not None or options.explain else cache
        self.ends = None if options.budget is None else time.monotonic() + options.budget
        self.rate = Rate(options.limit_rate) if options.limit_rate else None
        # Worker processes that map a file take it in big pieces, which no rate holds back.
        self.io = "pread" if self.rate and options.io in ("auto", "mmap") else options.io
        self.unread: dict[str, int] = {}
        self.prefetched: dict[str, tuple[Level, Seen]] = {}
        self.partial = set[str]()
        self._cost: dict[str, int] = {}
        self.stopped = False  # whether the budget ended the last read

    def opened(self, path: str) -> None:
        """Tell whoever watches which file is being read."""
        if self._hear is not None:
            self._hear(path, self.files_total)

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
        """A report on the file as it is now. When the budget ends meanwhile, it has the level reached until
        then.
        """
        from ckpt_tools.inspection.check import (  # not where all is known from an earlier run
            inspect,
            unreadable,
        )

        self.stopped = False
        self.opened(path)
        try:
            report, anatomy = away(
                inspect,
                path,
                level,
                expect=expect,
                claims=claims,
                jobs=self.options.jobs,
                progress=self.advance,
                require=self.options.require,
                key=self.key,
                explain=self.options.explain,
                io=self.io,
            )
        except Stalled as e:
            return unreadable(path, e), Anatomy()
        if self.stopped and report.verdict is not Verdict.BROKEN:
            self.unread[path] = report.size
        self._count(report)
        return report, anatomy

    def _count(self, report: Report) -> None:
        self._cost[report.path] = max(self._cost.get(report.path, 0), report.bytes_read)

    def report(
        self, path: str, level: Level, expect: Sequence[str], claims: Sequence[Claim], based: str | None
    ) -> tuple[Report, Places] | None:
        """The same without what is in the file, and not always from the file. ``based`` stands for the
        indexes behind the claims; None keeps nothing.

        None when the budget was spent before anybody had read it so deeply.
        """

        def fresh() -> Fresh[tuple[Report, Places] | None]:
            return self._fresh(path, level, expect, claims)

        # What a framework's loader says is asked anew each time: it depends on what is installed.
        if based is not None and level < Level.LOAD:
            question = self.question(expect, based)
            found = self._cached(path, question, level, lambda data: unpack(path, data), fresh)
        else:
            found = fresh().value
        if found is None:
            return None
        self._count(found[0])
        return (_gone(found[0]), found[1]) if found[0].size < 0 else found

    def _fresh(
        self, path: str, level: Level, expect: Sequence[str], claims: Sequence[Claim]
    ) -> Fresh[tuple[Report, Places] | None]:
        """A report that no earlier run made; None when the budget is spent."""
        prefetched = self.prefetched.pop(path, None)
        if prefetched is not None and prefetched[0] is level:
            self.stopped = False  # that was another file
            seen = prefetched[1]
        elif level > Level.STRUCTURE and self.spent:
            self.unread[path] = _size(path)
            return Fresh(None)
        else:
            report, anatomy = self.read(path, level, expect, claims)
            seen = Seen(report, anatomy.places, anatomy.identity)
        value = seen.report, seen.places
        if path in self.partial:  # what is kept of it is kept already
            return Fresh(value)
        verdict = seen.report.verdict
        bad = verdict in (Verdict.BROKEN, Verdict.UNKNOWN)
        # An optional package that is missing today may be there tomorrow; what nobody could read is read
        # again.
        lasting = verdict is not Verdict.UNKNOWN and all(
            f.code != "needs-extra" for f in seen.report.findings
        )
        if self.stopped or not lasting or self.cache is None:
            return Fresh(value, None, seen.identity, bad)
        return Fresh(value, pack(*value), seen.identity, bad)

    def knows(self, path: str, level: Level, expect: Sequence[str], based: str | None) -> bool:
        """Whether an earlier run's verdict answers the same."""
        if self.cache is None or based is None or level >= Level.LOAD or self.cache.max_age <= 0:
            return False
        return self._entry(path, self.question(expect, based), level) is not None

    def sealed(self, path: str, expect: Sequence[str], before: str | None, based: str | None) -> None:
        """Keep what was seen of a file under the seal that was made of the same bytes since: to compare it
        with that would be to read it once more. ``before`` stands for what was behind it until then, as
        ``based`` does now.

        Only what needs no word more: a file that was read to its end and not changed since, of which nothing
        is said but that its format has no checksum, which a seal makes up for.
        """
        if self.cache is None or None in (before, based) or before == based:
            return
        try:
            identity = Identity.of(status(path))
        except OSError:
            return
        question, depth = self.question(expect, before), int(Level.CONTENT)
        entry = self.cache.get(path, question, depth, identity, ever=True)  # it stays as old as it is
        known = None if entry is None else unpack(path, entry.data)
        if entry is None or known is None:
            return
        report, places = known
        sound = report.verdict is Verdict.OK and report.level >= Level.CONTENT
        if sound and {f.code for f in report.findings} <= {"not-checksummed"}:
            data = pack(replace(report, coverage=1.0, findings=()), places)
            if data is not None:
                self.cache.put(path, self.question(expect, based), identity, entry._replace(data=data))

    def question(self, expect: Sequence[str], based: str | None) -> bytes:
        """The name under which the cache keeps a report."""
        return repr((tool_version(), tuple(expect), self.options.require, based)).encode()

    def keep(self, path: str, question: str, read: Callable[[], tuple[bytes, Identity | None]]) -> bytes:
        """What ``read`` makes of a file, kept under the name of the ``question``; raises what ``read``
        raises.
        """

        def fresh() -> Fresh[bytes]:
            data, identity = read()
            return Fresh(data, data, identity)

        name = f"{tool_version()} {question}".encode()
        return self._cached(path, name, Level.STRUCTURE, lambda data: data, fresh)

    def _cached(
        self,
        path: str,
        question: bytes,
        level: Level,
        decode: Callable[[bytes], T | None],
        fresh: Callable[[], Fresh[T]],
    ) -> T:
        """From the cache, else from ``fresh``, by one process of this host at a time."""
        cache = self.cache
        if cache is None or not cache.usable:
            return fresh().value

        def known() -> T | None:
            entry = self._entry(path, question, level)
            return decode(entry.data) if entry else None

        def read() -> T:
            opened = time.time_ns()
            new = fresh()
            if new.data is None and new.bad:
                cache.forget(path)
            elif new.data is not None and new.identity is not None and new.identity.settled(opened):
                cache.put(path, question, new.identity, Entry(new.data, int(level), opened, new.bad))
            return new.value

        if cache.max_age <= 0:
            return read()
        if (found := known()) is not None:
            return found
        with turn(cache.locks, path, level > Level.STRUCTURE) as ours:
            for _ in self._waiting(ours, level):
                if (found := known()) is not None:
                    return found
            found = known()
            return read() if found is None else found

    def _waiting(self, ours: Callable[[], bool], level: Level) -> Iterator[None]:
        """A pause for each time that it is not our turn,
        until it is or nothing is to be waited for any more.
        """
        until, pause = time.monotonic() + WAIT, _PAUSE
        while not ours() and time.monotonic() < until and not (level > Level.STRUCTURE and self.spent):
            time.sleep(pause)
            pause = min(1.5 * pause, _PAUSES)
            yield

    def _entry(self, path: str, question: bytes, level: Level) -> Entry | None:
        """What the cache has of the file as it is now."""
        try:
            identity = Identity.of(status(path))
        except OSError:
            return None
        return None if self.cache is None else self.cache.get(path, question, int(level), identity)

    def advance(self, n: int) -> None:
        """So many bytes of contents were read, by any thread. Raises Stopped when the budget has come to its
        end.
        """
        self.progress(n)
        if self.rate is not None and n:
            self.rate.took(n)
        if self.spent:
            self.stopped = True
            raise Stopped


def _size(path: str) -> int:
    try:
        return status(path).st_size
    except OSError:
        return 0


def _gone(report: Report) -> Report:
    """The report on a file that nobody could open: that it was removed since it was listed, where it was.
    Whoever prunes checkpoints does not wait for those who read them.
    """
    try:
        if there(report.path) or all(f.code != "unreadable" for f in report.findings):
            return report
    except OSError:
        return report
    why = "it was listed and is not there any more: its checkpoint was removed while it was read"
    return replace(report, findings=(finding("in-use", why, hint="run it again"),))
