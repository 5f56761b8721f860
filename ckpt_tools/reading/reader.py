"""Reads the files of one request, from the cache or from disk once; and seals in directories of their own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from ckpt_tools.cache import Cache, Entry, Places, Seen, pack, take_turn, unpack
from ckpt_tools.discovery.found import BareFile, Discovery, split_seals, stat_of
from ckpt_tools.discovery.seals import find_seals
from ckpt_tools.errors import CannotLook
from ckpt_tools.findings import finding
from ckpt_tools.formats import Anatomy, Claim
from ckpt_tools.formats.seals.document import find_base
from ckpt_tools.inspection.check import inspect, unreadable
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.report import Level, Report
from ckpt_tools.model.selection import ReadOptions
from ckpt_tools.settings.plugins import tool_version
from ckpt_tools.storage import Identity, Stopped
from ckpt_tools.storage.listing import walk
from ckpt_tools.storage.retry import ABSENT, exists, status
from ckpt_tools.storage.stalls import Rate, Stalled, run_aside
from ckpt_tools.storage.urls import mirror_path, normalize, to_absolute

T = TypeVar("T")
_GONE = "it was listed and is not there any more: its checkpoint was removed while it was read"
Fresh = tuple[T, bytes | None, Identity | None, bool]
"""An answer just made: its value, bytes to cache (None: nothing), the file's identity, and if it is bad."""
Known = tuple[Report, Places]


class Reader:
    """Reads files."""

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
        self.unread: dict[str, int] = {}  # files that the budget did not suffice for -> their bytes
        self.prefetched: dict[str, tuple[Level, Seen]] = {}  # made before anybody asked, with their level
        self.partial = set[str]()  # files of which a part of the contents was asked for
        self._cost: dict[str, int] = {}  # bytes verified for each report when it was made, now or earlier
        self.stopped = False  # whether the budget ended the last read

    def opened(self, path: str) -> None:
        if self._hear is not None:
            self._hear(path, self.files_total)

    @property
    def bytes_verified(self) -> int:
        return sum(self._cost.values())

    @property
    def spent(self) -> bool:
        """True if the budget has come to its end."""
        return self.ends is not None and time.monotonic() >= self.ends

    def advance(self, n: int) -> None:
        """Count bytes of contents that any thread has read. Raise Stopped when the budget is spent."""
        self.progress(n)
        if self.rate is not None and n:
            self.rate.took(n)
        if self.spent:
            self.stopped = True
            raise Stopped

    def read(
        self, path: str, level: Level, expect: Sequence[str], claims: Sequence[Claim]
    ) -> tuple[Report, Anatomy]:
        """Return a report on the file as it is now, at most at ``level``, as far as the budget suffices."""
        self.stopped = False
        self.opened(path)
        o = self.options
        how: dict[str, Any] = {"expect": expect, "claims": claims, "progress": self.advance, "key": self.key}
        how |= {"jobs": o.jobs, "require": o.require, "explain": o.explain, "io": o.io}
        try:
            report, anatomy = run_aside(inspect, path, level, **how)
        except Stalled as e:
            return unreadable(path, e), Anatomy()
        if self.stopped and report.verdict is not Verdict.BROKEN:
            self.unread[path] = report.size
        self._cost[path] = report.bytes_read
        return report, anatomy

    def report(
        self, path: str, level: Level, expect: Sequence[str], claims: Sequence[Claim], based: str | None
    ) -> Known | None:
        """Return a report, maybe from the cache unless ``based`` is None; None if the budget is spent."""
        fresh = partial(self._fresh, path, level, expect, claims)
        # A framework's loader is asked anew each time: its answer depends on the packages installed.
        if self.cache is not None and based is not None and level < Level.LOAD:
            found = self._cached(path, self.question(expect, based), level, partial(unpack, path), fresh)
        else:
            found = fresh()[0]
        if found is None:
            return None
        report, places = found
        self._cost[path] = report.bytes_read
        if report.size < 0 and any(f.code == "unreadable" for f in report.findings):
            # Whoever prunes checkpoints does not wait for those who read them.
            with suppress(OSError):
                if not exists(path):
                    report = replace(report, findings=(finding("in-use", _GONE, hint="run it again"),))
        return report, places

    def _fresh(
        self, path: str, level: Level, expect: Sequence[str], claims: Sequence[Claim]
    ) -> Fresh[Known | None]:
        """Return a report made now, or prefetched; the value is None if the budget is spent."""
        prefetched = self.prefetched.pop(path, None)
        if prefetched is not None and prefetched[0] is level:
            self.stopped = False  # another file was stopped
            seen = prefetched[1]
        elif level > Level.STRUCTURE and self.spent:
            self.unread[path] = 0
            with suppress(OSError):
                self.unread[path] = status(path).st_size
            return None, None, None, False
        else:
            report, anatomy = self.read(path, level, expect, claims)
            seen = Seen(report, anatomy.places, anatomy.identity)
        value = seen.report, seen.places
        if path in self.partial:  # the sampling caches it itself
            return value, None, None, False
        unknown = seen.report.verdict is Verdict.UNKNOWN
        # An optional package that is missing today may be there tomorrow; a file that could not be read is
        # read again.
        passing = unknown or any(f.code == "needs-extra" for f in seen.report.findings)
        keep = not (self.stopped or passing or self.cache is None)
        bad = unknown or seen.report.verdict is Verdict.BROKEN
        return value, pack(*value) if keep else None, seen.identity, bad

    def knows(self, path: str, level: Level, expect: Sequence[str], based: str | None) -> bool:
        """Return True if an earlier run's report answers the same question."""
        if self.cache is None or based is None or level >= Level.LOAD or self.cache.max_age <= 0:
            return False
        return recall(self.cache, path, self.question(expect, based), level) is not None

    def sealed(self, path: str, expect: Sequence[str], before: str | None, based: str | None) -> None:
        """Keep the cached report on a file under the seal that was made of the same bytes since, so that
        nobody reads the file again to compare. ``before`` and ``based`` are digests of the seals and indexes
        behind it, then and now. Only for a file that was read to its end, has not changed since, and has no
        finding but that its format has no checksum.
        """
        if self.cache is None or None in (before, based) or before == based:
            return
        entry = recall(self.cache, path, self.question(expect, before), Level.CONTENT, ever=True)
        known = None if entry is None else unpack(path, entry[0].data)
        if entry is None or known is None:
            return
        report, places = known
        read = report.verdict is Verdict.OK and report.level >= Level.CONTENT
        sound = read and {f.code for f in report.findings} <= {"not-checksummed"}  # a seal makes up for it
        if sound and (data := pack(replace(report, coverage=1.0, findings=()), places)):
            self.cache.put(path, self.question(expect, based), entry[1], entry[0]._replace(data=data))

    def question(self, expect: Sequence[str], based: str | None) -> bytes:
        """Return the key under which the cache keeps a report."""
        return repr((tool_version(), tuple(expect), self.options.require, based)).encode()

    def keep(self, path: str, question: str, read: Callable[[], tuple[bytes, Identity | None]]) -> bytes:
        """Return what ``read`` makes of a file, or the cache's answer to ``question``. Raise as it does."""

        def fresh() -> Fresh[bytes]:
            data, identity = read()
            return data, data, identity, False

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
        """Return an answer from the cache, else from ``fresh``, by one process of this host at a time."""
        cache = self.cache
        if cache is None or not cache.usable:
            return fresh()[0]

        def known() -> T | None:
            entry = recall(cache, path, question, level)
            return decode(entry[0].data) if entry else None

        def read() -> T:
            opened, (value, data, identity, bad) = time.time_ns(), fresh()
            if data is None and bad:
                cache.forget(path)
            elif data is not None and identity is not None and identity.settled(opened):
                cache.put(path, question, identity, Entry(data, int(level), opened, bad))
            return value

        if cache.max_age <= 0:
            return read()
        if (found := known()) is None:
            with self.turn(path, level):
                found = known()
                return read() if found is None else found
        return found

    def turn(self, path: str, level: Level, kind: str = "") -> AbstractContextManager[None]:
        """Return a context in which no other process of this host reads the same; see ``take_turn``."""
        cache, deep = self.cache, level > Level.STRUCTURE
        home = cache.locks if cache is not None and cache.max_age > 0 else None
        return take_turn(home, path, deep, kind, give_up=lambda: deep and self.spent)


def recall(
    cache: Cache | None, path: str, question: bytes, level: Level, *, ever: bool = False
) -> tuple[Entry, Identity] | None:
    """Return the cache's entry for a file as it is now (with ``ever`` of any age), and its identity."""
    if cache is None:
        return None
    try:
        identity = Identity.of(status(path))
    except OSError:
        return None
    entry = cache.get(path, question, int(level), identity, ever=ever)
    return None if entry is None else (entry, identity)


def place(seal_dir: str, path: str) -> str:
    """Return where in ``seal_dir`` the seal lies that would otherwise lie at ``path``."""
    return f"{to_absolute(seal_dir)}{mirror_path(os.path.dirname(path))}/{os.path.basename(path)}"


def find_mirrored(seal_dir: str, root: str, found: Discovery) -> dict[BareFile, str]:
    """Return seal -> the directory that it describes, for all at and below ``root``. Raise CannotLook."""
    away, real = to_absolute(seal_dir), mirror_path(root)
    seals = [] if found.tree else list(find_seals(away + real))
    for path, below in walk(away + real) if found.tree else ():
        if isinstance(below, ABSENT) and path == away + real:
            continue  # nothing below the root is sealed there
        if isinstance(below, OSError):
            raise CannotLook(f"cannot list {path}: {below.strerror}", "check that CKPT_SEAL_DIR can be read")
        seals += map(stat_of, split_seals(path, below)[0])
    # what they describe lies below the root, or the root in it
    ways = {seal: os.path.relpath(find_base(seal.path), away + real) for seal in seals}
    return {seal: normalize(os.path.join(root, way)) for seal, way in ways.items()}
