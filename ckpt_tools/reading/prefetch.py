"""Many files read before anybody asks for their reports: by an engine's workers, or by worker processes of
this host.

The answers are those that the session would have found itself. Whatever is left out is read when it is asked
for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ckpt_tools.cache.codec import Seen, unpack
from ckpt_tools.cache.locks import turn
from ckpt_tools.model.finding import cut_short
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Level
from ckpt_tools.reading.reader import WAIT
from ckpt_tools.reading.session import Session, formats_allowed
from ckpt_tools.storage import Identity, Stopped, count
from ckpt_tools.storage.cpus import default_jobs
from ckpt_tools.storage.urls import is_url

if TYPE_CHECKING:
    from ckpt_tools.reading.engines import Engine
    from ckpt_tools.reading.request import Answer, Request

Run = Callable[[int, int, Callable[[int], bytes], Callable[[], object]], Iterator[tuple[int, bytes]]]
"""(count, jobs, work, beat) -> the numbers below count and what was made of each, in any order."""

LEAST = 64
"""Files for which worker processes pay for their start."""
LARGE = 32 << 20
"""Bytes of a file from which its content is read by threads instead: then the memory bus is the limit, and
threads share one file.
"""
_SAMPLE = 16
"""Files of which an earlier run's verdicts tell whether it knew most of them."""
_PAUSE = 0.02
"""Seconds between two checks of whether another process has read the tree."""


def prefetch(
    s: Session, parts: Sequence[Part], level: Level, *, bare: bool = False, engine: Engine | None = None
) -> None:
    """Have reports on ``parts``, and on the bare files, ready for when they are asked for. Raises CannotLook
    when the engine is gone.

    An engine reads every file that has to be opened; worker processes only where the files are many and
    small, and that saves time.
    """
    # What this host reads is kept at once: other processes of it may wait for it.
    by_path = {p.path: p for p in parts} if engine is None else {}
    # Not by a name of its own: the processes end as soon as nobody asks any further, also after Ctrl-C.
    for request, seen in (
        _by_engine(s, engine, parts, level, bare) if engine else _by_processes(s, parts, level, bare)
    ):
        s.reader.prefetched[request.path] = level, seen
        if (part := by_path.pop(request.path, None)) is not None:
            s.report(part, level)


def requests(s: Session, parts: Sequence[Part], level: Level, *, bare: bool) -> list[Request]:
    """The files that must be opened for reports at ``level``: those of the parts and, after them, the bare
    ones.
    """
    from ckpt_tools.reading.request import Request  # where files are few, nobody asks

    of_parts = (_request(s, p, level) for p in parts if _goes_deeper(s, p, level))
    out = {r.path: r for r in of_parts}
    for path, size, mtime_ns, findings in s.found.bare if bare else ():
        if (
            path not in out
            and (s.evidence is None or path not in s.reports)
            and s.shown(path, level, findings) is None
        ):
            out[path] = Request(path, size, mtime_ns, level, (), s.indexes.claims(path))
    return list(out.values())


def _request(s: Session, p: Part, level: Level) -> Request:
    from ckpt_tools.reading.request import Request

    return Request(
        p.path,
        p.size,
        p.mtime_ns,
        level,
        tuple(formats_allowed(p, s.layouts.piece_of(p))),
        s.indexes.claims(p.path),
    )


def _goes_deeper(s: Session, p: Part, level: Level) -> bool:
    """Whether a part has to be opened, and nobody has read it so deeply yet."""
    have = s.reports.get(p.path)
    if have is not None and (
        have.level >= level or have.format is None or cut_short(have.findings, have.size)
    ):
        return False
    if p.size == 0 and s.layouts.piece_of(p).mark:
        return False
    return s.shown(p.path, level, p.findings) is None


def _knows(s: Session, request: Request) -> bool:
    """Whether an earlier run's verdict answers the same."""
    return s.reader.knows(request.path, request.level, request.expect, s.indexes.based(request.path))


# ---- by an engine


def unknown_requests(s: Session, parts: Sequence[Part], level: Level, *, bare: bool) -> list[Request]:
    """Those of the requests that no earlier run answers."""
    return [r for r in requests(s, parts, level, bare=bare) if not _knows(s, r)]


def _by_engine(
    s: Session, engine: Engine, parts: Sequence[Part], level: Level, bare: bool
) -> Iterator[tuple[Request, Seen]]:
    from ckpt_tools.reading.inspecting import Inspecting

    if level > Level.PRESENCE:
        yield from Inspecting(engine, s.reader).read(unknown_requests(s, parts, level, bare=bare))


# ---- by processes of this host


def _is_shared(s: Session, level: Level) -> bool:
    """Whether processes of this host may read at this level what was asked."""
    return s.reader.rate is None and not s.options.explain and level in (Level.STRUCTURE, Level.CONTENT)


def _by_processes(
    s: Session, parts: Sequence[Part], level: Level, bare: bool
) -> Iterator[tuple[Request, Seen]]:
    if is_url(s.root):
        yield from _by_requests(s, parts, level, bare)
        return
    jobs, count = s.options.jobs or default_jobs(), len(parts) + bare * len(s.found.bare)
    if count < LEAST or jobs < 2 or not _is_shared(s, level):
        return
    small = [r for r in requests(s, parts, level, bare=bare) if _is_for_processes(r)]
    sample = small[:: -(-len(small) // _SAMPLE)] if small else []
    # Where only some are known, another process is at it. (Asking also makes the directory of the cache,
    # where turns are taken.)
    if all(_knows(s, r) for r in sample):
        return
    with _one_process_at_a_time(s, level):
        known = sum(_knows(s, r) for r in sample)
        if len(small) >= LEAST and 2 * known <= len(sample):
            yield from _read_by_processes(s, small, level, jobs)


def _by_requests(
    s: Session, parts: Sequence[Part], level: Level, bare: bool
) -> Iterator[tuple[Request, Seen]]:
    """Of a store many at a time, large files alone but for their structure: their content is read in many
    requests anyway.
    """
    from ckpt_tools.reading import concurrent_requests

    if s.reader.rate is not None or s.options.explain or level not in (Level.STRUCTURE, Level.CONTENT):
        return
    wanted = [r for r in requests(s, parts, level, bare=bare) if _is_for_processes(r) and not _knows(s, r)]
    if len(wanted) > 1:
        jobs = s.options.jobs or concurrent_requests.FILES
        yield from _read_by(concurrent_requests.run, s, wanted, level, jobs)


def _is_for_processes(request: Request) -> bool:
    """Small enough, and to be judged by itself: what a check adds up over several files must not be torn
    apart.
    """
    small = request.level is Level.STRUCTURE or request.size < LARGE
    return request.size > 0 and small and not any(c.joint for c in request.claims)


def _read_by_processes(
    s: Session, small: list[Request], level: Level, jobs: int
) -> Iterator[tuple[Request, Seen]]:
    import json  # noqa: F401 - before the processes are made, which all need it

    from ckpt_tools.reading import processes  # only for many files

    return _read_by(processes.run, s, small, level, jobs)


def _read_by(
    run: Run, s: Session, small: list[Request], level: Level, jobs: int
) -> Iterator[tuple[Request, Seen]]:
    from ckpt_tools.reading.request import Answer, Request, inspect_file

    reader, deep, done = s.reader, level > Level.STRUCTURE, Request("", 0, 0, level)

    def answer(i: int) -> bytes:
        return inspect_file(small[i], s.options.require, key=reader.key, io=reader.io).encode()

    def beat() -> None:
        reader.progress(0)
        if deep and reader.spent:  # the budget is for contents
            raise Stopped

    try:
        for i, data in run(len(small), jobs, answer, beat):
            made = Answer.decode(data)
            count(made.bytes_read)
            request, small[i] = small[i], done  # 100,000 take as much memory as their reports
            reader.opened(request.path)
            reader.progress(made.bytes_read)
            if (seen := _seen(request.path, made)) is not None:
                yield request, seen
    except Stopped:  # what nobody has read is told as such
        return


def _seen(path: str, answer: Answer) -> Seen | None:
    """What a process of this host found; None where it could not send its report."""
    made = unpack(path, answer.packed) if answer.packed else None
    if made is None:
        return None
    identity = Identity(*answer.identity) if answer.identity else None
    if identity is not None and not identity.settled(answer.opened_ns):
        identity = None
    return Seen(*made, identity)


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
