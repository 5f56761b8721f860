"""Reports on many files, made by the workers of an engine. One on another machine may have other file systems
mounted.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from ckpt_tools.cache.codec import Seen, unpack
from ckpt_tools.findings import finding
from ckpt_tools.inspection.check import inspect
from ckpt_tools.model.finding import Verdict, worst
from ckpt_tools.model.report import Level, Report
from ckpt_tools.reading.engines import Engine
from ckpt_tools.reading.reader import Reader
from ckpt_tools.reading.scheduler import Request, Scheduler, other, unseen
from ckpt_tools.storage import Identity, count, opened
from ckpt_tools.storage.retry import status

_SYSTEM = frozenset(map(os.strerror, errno.errorcode.keys() - {errno.EINVAL}))
"""What the system says when it cannot read: that may be so on the worker's machine alone. A format uses words
of its own, and a wrong offset (EINVAL) is wrong everywhere.
"""


class Inspecting(Scheduler[Seen]):
    """Has files inspected: their reports come back. What claims add up over several files is looked at here,
    in their order, before a file goes out (``_joint``).
    """

    def __init__(self, engine: Engine, reader: Reader, over: Callable[[], bool] = lambda: False) -> None:
        super().__init__(engine, reader, over)
        self._joint: dict[str, Report] = {}

    def sent(self, request: Request) -> tuple[Any, ...] | None:
        if any(c.joint for c in request.claims) and not self._is_joined(request):
            return None
        how = {
            "level": request.level,
            "expect": request.expect,
            "claims": tuple(c for c in request.claims if not c.joint),
            "require": self.reader.options.require,
        }
        if self.engine.here:
            how |= {"io": self.reader.io, "key": self.reader.key}
        return "whole", request.path, how

    def _is_joined(self, request: Request) -> bool:
        """Look at the structure of a file with all claims; return False if it is better read here."""
        report, _ = inspect(
            request.path,
            Level.STRUCTURE,
            expect=request.expect,
            claims=request.claims,
            jobs=1,
            require=self.reader.options.require,
        )
        count(-report.bytes_read)  # its worker reads the same
        self._joint[request.path] = report
        return report.verdict in (Verdict.OK, Verdict.SUSPECT)

    def answered(self, request: Request, begun_ns: int, host: str, answer: Sequence[Any]) -> Seen | None:
        _, came, bytes_read = answer
        packed, identity = came or (None, None)
        made = unpack(request.path, packed) if packed is not None else None
        if made is None:
            return None
        report, places = made
        if (own := self._joint.pop(request.path, None)) is not None:
            said_last = "not-checksummed"  # which is for those to say who read all
            more = (f for f in own.findings if f.code != said_last or f in report.findings)
            findings = tuple(dict.fromkeys((*more, *report.findings)))
            unknown = report.verdict is Verdict.UNKNOWN
            verdict = Verdict.UNKNOWN if unknown else worst(findings)
            report = replace(report, findings=findings, verdict=verdict)
        if self.engine.here:
            mine = settled(Identity(*identity) if identity else None, begun_ns)
        elif here := seen_from_here(request, host, report, identity):
            report, mine = here[0], identity_here(request.path, here[1], begun_ns)
        else:
            return None
        self.count(request, bytes_read)
        return Seen(report, places, mine)

    def unknown(self, request: Request, why: str) -> Seen:
        return Seen(unknown(request, why), {}, None)


def settled(identity: Identity | None, opened_ns: int) -> Identity | None:
    """Return what a report may be kept under; None where the file may have changed unseen since then."""
    return identity if identity is not None and identity.settled(opened_ns) else None


def seen_from_here(
    request: Request, host: str, report: Report, identity: tuple[int, ...] | None
) -> tuple[Report, tuple[int, ...] | None] | None:
    """Return a worker's report, and what identifies the file there; None when it is better read here."""
    blind = next((f for f in report.findings if f.code == "unreadable" and f.message in _SYSTEM), None)
    wanted = request.size, request.mtime_ns
    differs = identity is not None and request.mtime_ns > 0 and (report.size, report.mtime_ns) != wanted
    if blind is None and not differs:
        return report, identity
    try:
        with opened(request.path) as source:
            now = source.size, source.stat.st_mtime_ns
    except OSError:
        return None  # nobody can: it is said as it is seen from here
    if blind is not None:
        why = unseen(blind.message, host) if report.size < 0 else f"{blind.message} (on {host})"
        findings = tuple(replace(f, message=why) if f is blind else f for f in report.findings)
        return replace(report, size=request.size, findings=findings), identity
    return (unknown(request, other(host)), None) if now == wanted else (report, identity)


def unknown(request: Request, why: str) -> Report:
    """Return the report on a file that nobody could look at."""
    return Report(
        request.path,
        None,
        request.size,
        Verdict.UNKNOWN,
        Level.PRESENCE,
        findings=(finding("unreadable", why),),
        mtime_ns=request.mtime_ns,
    )


def identity_here(path: str, theirs: tuple[int, ...] | None, begun_ns: int) -> Identity | None:
    """Return what a worker read as this machine names it: device and inode may be others there."""
    try:
        ours = Identity.of(status(path)) if theirs else None
    except OSError:
        return None
    return ours if ours is not None and ours[:3] == theirs[:3] and ours.settled(begun_ns) else None  # type: ignore[index]
