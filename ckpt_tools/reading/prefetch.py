"""Many files looked at before anybody asks for their reports: by an engine's workers, or by copies of this process. The answers are those that the session would have found itself."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from ckpt_tools.cache.codec import Seen, pack, unpack
from ckpt_tools.cache.locks import turn
from ckpt_tools.checksum import default_jobs
from ckpt_tools.inspection.check import cut_short, look
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Level
from ckpt_tools.reading import processes
from ckpt_tools.reading.reader import WAIT
from ckpt_tools.reading.session import Session, formats_allowed
from ckpt_tools.storage import Identity, Stopped, count, counted

if TYPE_CHECKING:
    from ckpt_tools.reading.engines import Engine
    from ckpt_tools.reading.work_units import Want

_SAMPLE = 16
"""Files of which an earlier run's verdicts tell whether it knew most of them."""


class _File(NamedTuple):
    path: str
    size: int
    mtime_ns: int
    findings: Sequence[Finding]
    expect: Sequence[str]
    part: Part | None


def _files(s: Session, parts: Sequence[Part], level: Level) -> Iterator[_File]:
    """Those of the parts and, after them, of the bare files that nobody has looked at so deeply yet."""
    for p in parts:
        piece, have = s.layouts.piece_of(p), s.reports.get(p.path)
        deeper = have is None or (
            have.level < level and have.format is not None and not cut_short(have.findings, have.size)
        )
        if deeper and not (p.size == 0 and piece.mark):
            yield _File(
                p.path,
                p.size,
                p.mtime_ns,
                p.findings,
                formats_allowed(p, piece),
                p,
            )


def _bare(s: Session) -> Iterator[_File]:
    yield from (_File(path, size, mtime_ns, seen, (), None) for path, size, mtime_ns, seen in s.found.bare)


def wanted(s: Session, level: Level) -> list[Want]:
    """The files that must be opened for reports at ``level``."""
    from ckpt_tools.reading.work_units import Want

    out: dict[str, Want] = {}
    for f in (*_files(s, s.parts, level), *_bare(s)):
        if s.shown(f.path, level, f.findings) is None and not s.reader.knows(
            f.path, level, f.expect, s.indexes.based(f.path)
        ):
            out.setdefault(
                f.path, Want(f.path, f.size, f.mtime_ns, level, tuple(f.expect), s.indexes.claims(f.path))
            )
    return list(out.values())


def by_engine(s: Session, engine: Engine, level: Level) -> None:
    """Every file of the session, by an engine. Raises CannotLook when it is gone."""
    from ckpt_tools.reading.scheduler import Spread

    if level is Level.PRESENCE:
        return
    spread = Spread(
        engine,
        require=s.options.require,
        key=s.reader.key,
        explain=s.options.explain,
        progress=s.reader.progress,
    )
    for want, seen in spread.read(wanted(s, level)):
        s.reader.prefetched[want.path] = level, seen


def by_crowd(s: Session, parts: Sequence[Part], level: Level, *, bare: bool = False) -> None:
    """The files of ``parts``, and the bare ones, by copies of this process, where they are many and small and that saves time."""
    if not Level.STRUCTURE <= level <= Level.CONTENT or (len(parts) < processes.LEAST and not bare):
        return
    jobs, reader = s.options.jobs or default_jobs(), s.reader
    if jobs < 2 or reader.rate is not None or s.options.explain:
        return
    todo = [
        f
        for f in (*_files(s, parts, level), *(_bare(s) if bare else ()))
        if f.size > 0 and (level is Level.STRUCTURE or f.size < processes.LARGE)
    ]
    todo = [
        f
        for f in todo
        if s.shown(f.path, level, f.findings) is None and not any(c.joint for c in s.indexes.claims(f.path))
    ]
    if not todo or len(parts) + bare * len(s.found.bare) < processes.LEAST:
        return

    def known() -> list[bool]:
        sample = todo[:: -(-len(todo) // _SAMPLE)]
        return [reader.knows(f.path, level, f.expect, s.indexes.based(f.path)) for f in sample]

    # Where only some are known, another process is at it. (Asking also makes the directory of the cache, where turns are taken.)
    if all(known()):
        return
    with _one_of_many(s, level):
        if len(todo) < processes.LEAST or 2 * sum(said := known()) > len(said):
            return
        import json  # here, because it costs start-up time

        def answer(i: int) -> bytes:
            f, opened = todo[i], time.time_ns()
            with counted() as read:
                report, anatomy = look(
                    f.path,
                    level,
                    expect=f.expect,
                    claims=s.indexes.claims(f.path),
                    jobs=1,
                    require=s.options.require,
                    key=reader.key,
                    io=reader.io,
                )
            identity = anatomy.identity if anatomy.identity and anatomy.identity.settled(opened) else None
            return json.dumps((read.bytes, identity)).encode() + b"\n" + (pack(report, anatomy.places) or b"")

        def beat() -> None:
            reader.progress(0)
            if level > Level.STRUCTURE and reader.spent:  # the budget is for contents
                raise Stopped

        try:
            for i, data in processes.crowd(len(todo), jobs, answer, beat):
                head, _, packed = data.partition(b"\n")
                (n, identity), made = json.loads(head), unpack(todo[i].path, packed)
                count(n)
                reader.progress(n)
                if made is not None:
                    reader.prefetched[todo[i].path] = (
                        level,
                        Seen(*made, Identity(*identity) if identity else None),
                    )
                    if (part := todo[i].part) is not None:
                        s.report(part, level)
        except Stopped:  # the budget is spent: what nobody has read is told as such
            return


@contextmanager
def _one_of_many(s: Session, level: Level) -> Iterator[None]:
    """When many processes of this host ask about one tree, the first has it read and the others wait for its verdicts."""
    cache = s.reader.cache
    if cache is None or not cache.usable or cache.max_age <= 0:
        yield
        return
    with turn(cache.locks, s.root, level > Level.STRUCTURE, "crowd-") as ours:
        until = time.monotonic() + WAIT
        while not ours() and time.monotonic() < until and not (level > Level.STRUCTURE and s.reader.spent):
            time.sleep(0.02)
        yield
