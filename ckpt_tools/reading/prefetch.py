"""Reads many files before their reports are asked for, by an engine here or elsewhere.

The reports are those that the session would have made itself. A file that is left out is read when it is
asked for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from ckpt_tools.cache import turn
from ckpt_tools.layouts import Changes
from ckpt_tools.model.finding import cut_short
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Level
from ckpt_tools.reading import engines
from ckpt_tools.reading.engines import Engine
from ckpt_tools.reading.reader import WAIT
from ckpt_tools.reading.scheduler import Request, Scheduler
from ckpt_tools.reading.session import Session, formats_allowed
from ckpt_tools.storage import Stopped
from ckpt_tools.storage.threads import default_jobs
from ckpt_tools.storage.urls import is_url

LEAST = 64
"""The least number of files for which starting worker processes pays."""
LARGE = 32 << 20
"""Bytes of a file from which on threads read its content: the memory bus is the limit, and they share it."""
FILES_OF_STORE = 16
"""Files of a store that are read at a time, unless --jobs says otherwise."""
_SAMPLE = 16
"""How many files are looked up to estimate whether an earlier run knew most of them."""
_PAUSE = 0.02
"""Seconds between two looks at whether another process has read the tree."""


def prefetch(
    s: Session, parts: Sequence[Part], level: Level, *, bare: bool = False, engine: Engine | None = None
) -> None:
    """Have reports on ``parts``, and on the ``bare`` files, ready for when they are asked for. Raise
    CannotLook if the engine is gone.

    An engine elsewhere reads every file that has to be opened. Here files of a store are read many at a time,
    files of a disk by copies of this process if they are many and small.
    """
    if engine is not None:
        if level > Level.PRESENCE:
            _read(s, engine, unknown_requests(s, parts, level, bare=bare), level)
    elif not is_url(s.root):
        _read_disk(s, parts, level, bare)
    elif _may_be_shared(s, level):
        wanted = [r for r in unknown_requests(s, parts, level, bare=bare) if _is_small(r)]
        if len(wanted) > 1:
            with suppress(Stopped), engines.threads_here(s.options.jobs or FILES_OF_STORE) as here:
                _read(s, here, wanted, level, parts)


def _may_be_shared(s: Session, level: Level) -> bool:
    """Return True if other processes of this host may read files at this level in place of this one."""
    return s.reader.rate is None and not s.options.explain and level in (Level.STRUCTURE, Level.CONTENT)


def _read_disk(s: Session, parts: Sequence[Part], level: Level, bare: bool) -> None:
    """Have small files of a disk read by copies of this process, if they are many and mostly unknown."""
    jobs, count = s.options.jobs or default_jobs(), len(parts) + bare * len(s.found.bare)
    if count < LEAST or jobs < 2 or not _may_be_shared(s, level):
        return
    wanted = [r for r in _find_requests(s, parts, level, bare=bare) if _is_small(r) and not _is_ready(s, r)]
    sample = wanted[:: -(-len(wanted) // _SAMPLE)] if wanted else []
    # If only some are known, another process is reading them. (The lookup also makes the directory of the
    # cache, where processes take turns.)
    if all(_knows(s, r) for r in sample):
        return
    with _await_turn(s, deep=level > Level.STRUCTURE):
        known = sum(_knows(s, r) for r in sample)
        if len(wanted) >= LEAST and 2 * known <= len(sample):
            with suppress(Stopped), engines.copies_here(jobs) as here:
                _read(s, here, wanted, level, parts)


@contextmanager
def _await_turn(s: Session, deep: bool) -> Iterator[None]:
    """Let the first of many processes of this host that ask about one tree read it, while the others wait."""
    cache = s.reader.cache
    with turn(cache.locks if cache and cache.max_age > 0 else None, s.root, deep, "tree-") as is_ours:
        until = time.monotonic() + WAIT
        while not is_ours() and time.monotonic() < until and not (deep and s.reader.spent):
            time.sleep(_PAUSE)
        yield


def unknown_requests(s: Session, parts: Sequence[Part], level: Level, *, bare: bool) -> list[Request]:
    """Return the files to open for reports at ``level`` that no earlier run has made; bare ones are last."""
    found = _find_requests(s, parts, level, bare=bare)
    return [r for r in found if not _is_ready(s, r) and not _knows(s, r)]


def _find_requests(s: Session, parts: Sequence[Part], level: Level, *, bare: bool) -> list[Request]:
    """Return the files to open for reports at ``level``: parts, then bare files."""
    out = dict[str, Request]()
    for p in parts:
        piece, have = s.layouts.piece_of(p), s.reports.get(p.path)
        if have is not None and (
            have.level >= level or have.format is None or cut_short(have.findings, have.size)
        ):
            continue  # the file cannot be read more deeply
        is_mark = p.size == 0 and piece.changes is Changes.MARK
        if not is_mark and s.shown(p.path, level, p.findings) is None:
            expect, claims = tuple(formats_allowed(p, piece)), s.indexes.claims(p.path)
            out[p.path] = Request(p.path, p.size, p.mtime_ns, level, expect, claims)
    for path, size, mtime_ns, findings in s.found.bare if bare else ():
        told = s.evidence is not None and path in s.reports
        if path not in out and not told and s.shown(path, level, findings) is None:
            out[path] = Request(path, size, mtime_ns, level, (), s.indexes.claims(path))
    return list(out.values())


def _is_ready(s: Session, request: Request) -> bool:
    return s.is_ready(request.path, request.level, request.expect, request.claims)


def _knows(s: Session, request: Request) -> bool:
    """Return True if an earlier run's report answers the same question."""
    return s.reader.knows(request.path, request.level, request.expect, s.indexes.sources_digest(request.path))


def _is_small(request: Request) -> bool:
    """Return True for a file that one worker reads whole, and that no check adds up with other files."""
    small = request.level is Level.STRUCTURE or request.size < LARGE
    return request.size > 0 and small and not any(c.joint for c in request.claims)


def _read(s: Session, engine: Engine, wanted: list[Request], level: Level, here: Sequence[Part] = ()) -> None:
    """Have the files read. Reports on the parts ``here`` are kept at once, as other processes may wait."""

    def is_over() -> bool:
        return engine.here and level > Level.STRUCTURE and s.reader.spent  # the budget is for contents

    parts = {p.path: p for p in here}
    for request, seen in Scheduler(engine, s.reader, over=is_over).read(wanted):
        s.reader.prefetched[request.path] = level, seen
        if (part := parts.pop(request.path, None)) is not None:
            s.report(part, level)
