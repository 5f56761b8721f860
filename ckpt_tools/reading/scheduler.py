"""Reads many files before their reports are asked for, by an engine here or elsewhere: each by a worker,
small ones together in one call.

Reports are those that the session would have made itself. A file for which a worker has no answer, or the
answer about another file (it may have other mounts), is read here when it is asked for.
"""

from __future__ import annotations

import pickle
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from ckpt_tools.cache import Seen, pack, unpack
from ckpt_tools.errors import CannotLook
from ckpt_tools.formats import Claim
from ckpt_tools.inspection.check import inspect
from ckpt_tools.layouts import Changes
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Level, Report
from ckpt_tools.reading import engines
from ckpt_tools.reading.engines import Engine
from ckpt_tools.reading.session import Session, formats_allowed, with_findings
from ckpt_tools.settings.plugins import tool_version
from ckpt_tools.storage import Identity, Stopped, count, count_read, stalls
from ckpt_tools.storage.retry import status
from ckpt_tools.storage.stalls import default_jobs
from ckpt_tools.storage.urls import is_url

if TYPE_CHECKING:
    from ckpt_tools.reading.reader import Reader

AHEAD = 3
"""Batches handed out per call that runs at once: a worker that is done finds its next batch waiting."""
BATCH = 256 * 1024 * 1024
"""Bytes of a batch: reading takes a tenth of a second on a fast node, handing out takes milliseconds here."""
FILES, EACH = 256, 32
"""Files in a batch at most, and batches of each worker at least, so that all end at about the same time."""
_HEADER = 64 * 1024
"""Bytes that the structure of a file counts for."""
_BEAT = 0.1
"""Seconds between two looks at whether somebody wants to stop."""


def work(version: str, files: tuple[bytes, ...]) -> tuple[str, str, str, tuple[tuple[Any, ...], ...]]:
    """Return the worker's version, its host's name, its own failure or "", and for each file (its result;
    bytes read).

    A result is the report as the cache keeps it and the file's ``Identity``; or (), if there is none, or it
    cannot be sent. Never raises: an exception that cannot be sent back would be waited for in vain.
    """
    ours, host, answers = tool_version(), socket.gethostname(), list[tuple[Any, ...]]()
    try:
        for sent in files if version == ours else ():
            result: tuple[Any, ...] = ()
            path, how = pickle.loads(sent)  # noqa: S301 - by the process that gave us the work
            began_ns = time.time_ns()
            with count_read() as read, suppress(OSError):
                report, anatomy = inspect(path, **how, jobs=1)  # many files are read at once
                identity = anatomy.identity  # if not settled, it may have changed unseen since it was read
                settled = tuple(identity) if identity and identity.settled(began_ns) else None
                if (packed := pack(report, anatomy.places)) is not None:
                    result = packed, settled
            answers.append((result, read.bytes))
    except Exception as e:
        return ours, host, f"{type(e).__name__}: {e}", ()
    return ours, host, "", tuple(answers)


class Request(NamedTuple):
    """A file to read to ``level``; ``size`` is that in its directory's listing."""

    path: str
    size: int
    level: Level
    expect: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()


class Scheduler:
    """Has files inspected by an engine, until it is ``over``. Claims that add up over several files
    (``joint``) are checked here, before a file goes out.
    """

    def __init__(self, engine: Engine, reader: Reader, over: Callable[[], bool] = lambda: False) -> None:
        self.engine, self.reader, self.over = engine, reader, over
        self._out: dict[Future[Any], list[Request]] = {}
        self._heard = time.monotonic()
        self._joint: dict[str, Report] = {}
        self._note = reader.options.note

    def read(self, requests: list[Request]) -> Iterator[tuple[Request, Seen]]:
        """Yield each request that a worker could read, with its result. Raise CannotLook and Stopped."""
        if self.reader.options.explain or (self.reader.key is not None and not self.engine.here):
            return  # no other process may see the key, or explain its work
        self._heard = time.monotonic()
        try:
            for batch in self._batches(requests):
                if self.over():
                    break
                try:
                    future = self.engine.executor.submit(work, tool_version(), tuple(batch))
                except Exception as e:
                    raise Stopped if self.engine.here else self.engine.failed(e) from e
                self._out[future] = list(batch.values())
                while len(self._out) >= AHEAD * max(2, self.engine.width()):
                    yield from self._collect()
            while self._out:
                yield from self._collect()
        finally:
            for future in self._out:
                future.cancel()
            self._out.clear()

    def _batches(self, requests: list[Request]) -> Iterator[dict[bytes, Request]]:
        """Yield batches by their pickled tasks; some requests are better read here."""
        files = max(1, min(FILES, len(requests) // (EACH * max(2, self.engine.width()))))
        batch, size = dict[bytes, Request](), 0
        for request in requests:
            if (how := self._make_arguments(request)) is None:
                continue
            with suppress(pickle.PicklingError, AttributeError, TypeError):  # it cannot be sent
                batch[pickle.dumps((request.path, how))] = request
                size += _HEADER if request.level is Level.STRUCTURE else max(request.size, 0)
            if size >= BATCH or len(batch) >= files:
                yield batch
                batch, size = {}, 0
        if batch:
            yield batch

    def _collect(self) -> Iterator[tuple[Request, Seen]]:
        """Wait for some batch and yield its results. Raise Stopped or CannotLook if no worker answers."""
        done, _ = wait(self._out, timeout=_BEAT, return_when=FIRST_COMPLETED)
        for future in done:
            yield from self._take(self._out.pop(future), future)
        self.reader.progress(0)
        here, now = self.engine.here, time.monotonic()
        if done or (not here and self.engine.width()):
            self._heard = now
        if here and (self.over() or stalls.is_overdue(self._heard)):
            raise Stopped
        if not here and now - self._heard > engines.GRACE:
            text = f"{self.engine.name} has had no worker for {engines.GRACE:.0f} s"
            raise CannotLook(text, "start workers, and look into their logs for why they end")

    def _take(self, batch: list[Request], future: Future[Any]) -> Iterator[tuple[Request, Seen]]:
        """Yield a finished batch's results; what it lacks is read here. Raise CannotLook if it failed."""
        try:
            version, host, defect, answers = future.result()
        except (Exception, CancelledError) as e:
            if self.engine.here or type(e).__name__ == "KilledWorker":  # it died of a file
                return
            raise self.engine.failed(e) from e
        if version != tool_version():
            text = f"the worker on {host} has ckpt-tools {version}, this is {tool_version()}"
            raise CannotLook(text, "install the same version, and the same plug-ins, on all machines")
        if defect and not self.engine.here:
            hint = "if it has enough memory, this is a bug in ckpt: please report it"
            raise CannotLook(f"the worker on {host} failed: {defect}", hint) from None
        for request, (result, bytes_read) in zip(batch, answers, strict=not defect):
            if (came := self._read_answer(request, host, result)) is not None:
                count(bytes_read)
                self.reader.opened(request.path)
                self.reader.progress(bytes_read)
                yield request, came

    def _make_arguments(self, request: Request) -> dict[str, Any] | None:
        """Return the arguments by which a worker inspects a file; None if the file is better read here."""
        require = self.reader.options.require
        if any(c.joint for c in request.claims):
            path, expect, claims = request.path, request.expect, request.claims
            report, _ = inspect(path, Level.STRUCTURE, expect=expect, claims=claims, jobs=1, require=require)
            count(-report.bytes_read)  # its worker reads the same
            self._joint[request.path] = report
            if report.verdict not in (Verdict.OK, Verdict.SUSPECT):
                return None
        claims = tuple(c for c in request.claims if not c.joint)
        how = {"level": request.level, "expect": request.expect, "claims": claims, "require": require}
        here = {"io": self.reader.options.io, "key": self.reader.key} if self.engine.here else {}
        return how | here

    def _read_answer(self, request: Request, host: str, result: Sequence[Any]) -> Seen | None:
        """Return a worker's result, with findings of this machine; None if the file is better read here."""
        unpacked = unpack(request.path, result[0]) if result else None
        if unpacked is None:
            return None
        (report, places), identity = unpacked, result[1] and Identity(*result[1])
        if (own := self._joint.pop(request.path, None)) is not None:
            at_end = "not-checksummed"  # only the worker, which reads the whole file, can say this
            more = (f for f in own.findings if f.code != at_end or f in report.findings)
            both = tuple(dict.fromkeys((*more, *report.findings)))
            report = with_findings(replace(report, findings=()), both)
        if not self.engine.here:
            try:
                ours = Identity.of(status(request.path))
            except OSError:
                return None
            if report.verdict is Verdict.UNKNOWN or (report.size, report.mtime_ns) != ours[:2]:
                self._say_differs(host, request.path)
                return None
            identity = ours if identity and identity[:3] == ours[:3] else None
        return Seen(report, places, identity)

    def _say_differs(self, host: str, path: str) -> None:
        """Tell the user once that a worker could not read a file as it lies here."""
        note, self._note = self._note, None
        if note is not None:
            other = f"the worker on {host} could not read {path}, or has another file there: it is read here"
            note(f"{other}, as are others like it; mount the same file system there, at the same place")


LEAST = 64
"""The least number of files for which starting worker processes pays."""
LARGE = 32 << 20
"""Bytes of a file from which on threads read its content: the memory bus is the limit, and they share it."""
FILES_OF_STORE = 16
"""Files of a store that are read at a time, unless --jobs says otherwise."""
_SAMPLE = 16
"""How many files are looked up to estimate whether an earlier run knew most of them."""


def prefetch(
    s: Session, parts: Sequence[Part], level: Level, *, bare: bool = False, engine: Engine | None = None
) -> None:
    """Read files before their reports are asked for: ``parts``, and if ``bare`` those that no layout has.
    Raise CannotLook if the engine is gone.

    An ``engine`` (workers elsewhere) reads every file that has to be opened. Without one, files of a store
    are read many at a time, files of a disk by copies of this process if they are many and small.
    """
    if engine is not None:
        if level > Level.PRESENCE:
            _read(s, engine, unknown_requests(s, parts, level, bare=bare), level)
    elif s.reader.rate is not None or s.options.explain or level not in (Level.STRUCTURE, Level.CONTENT):
        return
    elif not is_url(s.root):
        _read_disk(s, parts, level, bare)
    elif len(wanted := list(filter(_is_small, unknown_requests(s, parts, level, bare=bare)))) > 1:
        with suppress(Stopped), engines.threads_here(s.options.jobs or FILES_OF_STORE) as here:
            _read(s, here, wanted, level, parts)


def _read_disk(s: Session, parts: Sequence[Part], level: Level, bare: bool) -> None:
    """Have small files of a disk read by copies of this process, if they are many and mostly unknown."""
    jobs = s.options.jobs or default_jobs()
    if jobs < 2 or len(parts) + bare * len(s.found.bare) < LEAST:
        return
    wanted = [r for r in _find_requests(s, parts, level, bare=bare) if _is_small(r) and not _is_ready(s, r)]
    # a few tell if an earlier run knew them; this also makes the directory where processes take turns
    if all(_knows(s, r) for r in wanted[:: max(1, len(wanted) // _SAMPLE)]):
        return
    # The first of many processes of this host that ask about one tree reads it, while the others wait.
    with s.reader.turn(s.root, level, "tree-"):
        wanted = [r for r in wanted if not _knows(s, r)]
        if len(wanted) >= LEAST:
            with suppress(Stopped), engines.copies_here(jobs) as here:
                _read(s, here, wanted, level, parts)


def unknown_requests(s: Session, parts: Sequence[Part], level: Level, *, bare: bool) -> list[Request]:
    """Return the files to open for reports at ``level`` that no earlier run has made; bare ones are last."""
    found = _find_requests(s, parts, level, bare=bare)
    return [r for r in found if not _is_ready(s, r) and not _knows(s, r)]


def _find_requests(s: Session, parts: Sequence[Part], level: Level, *, bare: bool) -> list[Request]:
    """Return the files to open for reports at ``level``: parts, then bare files."""
    out = dict[str, Request]()
    for p in parts:
        piece, have = s.layouts.piece_of(p), s.reports.get(p.path)
        if have and not s.goes_deeper(have, level):
            continue
        is_mark = p.size == 0 and piece.changes is Changes.MARK
        if not is_mark and s.shown(p.path, level, p.findings) is None:
            expect, claims = tuple(formats_allowed(p, piece)), s.indexes.claims(p.path)
            out[p.path] = Request(p.path, p.size, level, expect, claims)
    for path, size, _, findings in s.found.bare if bare else ():
        told = s.evidence is not None and path in s.reports
        if path not in out and not told and s.shown(path, level, findings) is None:
            out[path] = Request(path, size, level, (), s.indexes.claims(path))
    return list(out.values())


def _is_ready(s: Session, request: Request) -> bool:
    return s.is_ready(request.path, request.level, request.expect, request.claims)


def _knows(s: Session, request: Request) -> bool:
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
