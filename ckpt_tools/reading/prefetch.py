"""Many files read before anybody asks for their reports, by an engine here or elsewhere.

The answers are those that the session would have found itself. Whatever is left out is read when it is asked
for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from ckpt_tools.cache.locks import turn
from ckpt_tools.layouts import Changes
from ckpt_tools.model.finding import cut_short
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Level
from ckpt_tools.reading.reader import WAIT
from ckpt_tools.reading.scheduler import Request
from ckpt_tools.reading.session import Session, formats_allowed
from ckpt_tools.storage import Stopped
from ckpt_tools.storage.cpus import default_jobs
from ckpt_tools.storage.urls import is_url

if TYPE_CHECKING:
    from ckpt_tools.reading.engines import Engine

LEAST = 64
"""Files for which worker processes pay for their start."""
LARGE = 32 << 20
"""Bytes of a file from which its content is read by threads instead: then the memory bus is the limit, and
threads share one file.
"""
FILES_OF_STORE = 16
"""Files of a store under way at a time, unless --jobs says otherwise."""
_SAMPLE = 16
"""Files of which an earlier run's verdicts tell whether it knew most of them."""
_PAUSE = 0.02
"""Seconds between two checks of whether another process has read the tree."""


def prefetch(
    s: Session, parts: Sequence[Part], level: Level, *, bare: bool = False, engine: Engine | None = None
) -> None:
    """Have reports on ``parts``, and on the bare files, ready for when they are asked for. Raises CannotLook
    when the engine is gone.

    An engine elsewhere reads every file that has to be opened. Here files of a store are read many at a time,
    those of a disk by worker processes where they are many and small.
    """
    if engine is not None:
        wanted = unknown_requests(s, parts, level, bare=bare) if level > Level.PRESENCE else []
        _read(s, engine, wanted, level)
    elif not is_url(s.root):
        _read_disk(s, parts, level, bare)
    elif _is_shared(s, level):
        wanted = [r for r in unknown_requests(s, parts, level, bare=bare) if _is_small(r)]
        if len(wanted) > 1:
            _read_here(s, wanted, parts, level, s.options.jobs or FILES_OF_STORE)


def _is_shared(s: Session, level: Level) -> bool:
    """Return True if others on this host may read at this level what was asked."""
    return s.reader.rate is None and not s.options.explain and level in (Level.STRUCTURE, Level.CONTENT)


def _read_disk(s: Session, parts: Sequence[Part], level: Level, bare: bool) -> None:
    jobs, count = s.options.jobs or default_jobs(), len(parts) + bare * len(s.found.bare)
    if count < LEAST or jobs < 2 or not _is_shared(s, level):
        return
    wanted = [r for r in requests(s, parts, level, bare=bare) if _is_small(r)]
    sample = wanted[:: -(-len(wanted) // _SAMPLE)] if wanted else []
    # Where only some are known, another process is at it. (Asking also makes the directory of the cache,
    # where turns are taken.)
    if all(_knows(s, r) for r in sample):
        return
    with _one_process_at_a_time(s, level):
        known = sum(_knows(s, r) for r in sample)
        if len(wanted) >= LEAST and 2 * known <= len(sample):
            _read_here(s, wanted, parts, level, jobs)


def requests(s: Session, parts: Sequence[Part], level: Level, *, bare: bool) -> list[Request]:
    """Return the files that must be opened for reports at ``level``: those of the parts and, after them, the
    bare ones.
    """
    out = {
        p.path: Request(
            p.path,
            p.size,
            p.mtime_ns,
            level,
            tuple(formats_allowed(p, s.layouts.piece_of(p))),
            s.indexes.claims(p.path),
        )
        for p in parts
        if _goes_deeper(s, p, level)
    }
    for path, size, mtime_ns, findings in s.found.bare if bare else ():
        told = s.evidence is not None and path in s.reports
        if path not in out and not told and s.shown(path, level, findings) is None:
            out[path] = Request(path, size, mtime_ns, level, (), s.indexes.claims(path))
    return list(out.values())


def unknown_requests(s: Session, parts: Sequence[Part], level: Level, *, bare: bool) -> list[Request]:
    """Return those of the requests that no earlier run answers."""
    return [r for r in requests(s, parts, level, bare=bare) if not _knows(s, r)]


def _goes_deeper(s: Session, p: Part, level: Level) -> bool:
    """Return True if a part has to be opened, and nobody has read it so deeply yet."""
    have = s.reports.get(p.path)
    if have is not None and (
        have.level >= level or have.format is None or cut_short(have.findings, have.size)
    ):
        return False
    if p.size == 0 and s.layouts.piece_of(p).changes is Changes.MARK:
        return False
    return s.shown(p.path, level, p.findings) is None


def _knows(s: Session, request: Request) -> bool:
    """Return True if an earlier run's verdict answers the same."""
    return s.reader.knows(request.path, request.level, request.expect, s.indexes.based(request.path))


def _is_small(request: Request) -> bool:
    """Return True for a file that one worker reads whole: what a check adds up over several files must not be
    torn apart, and the content of a large one is read by many threads or in many requests anyway.
    """
    small = request.level is Level.STRUCTURE or request.size < LARGE
    return request.size > 0 and small and not any(c.joint for c in request.claims)


def _read_here(s: Session, wanted: list[Request], parts: Sequence[Part], level: Level, jobs: int) -> None:
    """Read by workers of this host. What they find is kept at once: other processes may wait for it."""
    import json  # noqa: F401 - before copies of this process are made, which all need these two

    from ckpt_tools.reading import inspecting  # noqa: F401
    from ckpt_tools.reading.engines import engine_here

    with suppress(Stopped), engine_here(jobs, of_store=is_url(s.root)) as engine:
        _read(s, engine, wanted, level, {p.path: p for p in parts})


def _read(
    s: Session, engine: Engine, wanted: list[Request], level: Level, parts: dict[str, Part] | None = None
) -> None:
    from ckpt_tools.reading.inspecting import Inspecting  # where files are few, nobody asks

    def over() -> bool:
        return engine.here and level > Level.STRUCTURE and s.reader.spent  # the budget is for contents

    parts = parts or {}
    for request, seen in Inspecting(engine, s.reader, over=over).read(wanted):
        s.reader.prefetched[request.path] = level, seen
        if (part := parts.pop(request.path, None)) is not None:
            s.report(part, level)


@contextmanager
def _one_process_at_a_time(s: Session, level: Level) -> Iterator[None]:
    """When many processes of this host ask about one tree, the first has it read and the others wait for its
    verdicts.
    """
    cache = s.reader.cache
    if cache is None or not cache.usable or cache.max_age <= 0:
        yield
        return
    deep = level > Level.STRUCTURE
    with turn(cache.locks, s.root, deep, "tree-") as ours:
        until = time.monotonic() + WAIT
        while not ours() and time.monotonic() < until and not (deep and s.reader.spent):
            time.sleep(_PAUSE)
        yield
