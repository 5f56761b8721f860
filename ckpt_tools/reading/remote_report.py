"""What a worker on another machine saw of a file, as it is to be told here: it may have other file systems
mounted.
"""

from __future__ import annotations

import errno
import os

from ckpt_tools.findings import finding
from ckpt_tools.model.finding import Finding, Verdict
from ckpt_tools.model.frozen import replace
from ckpt_tools.model.report import Level, Report
from ckpt_tools.reading.request import Request
from ckpt_tools.storage import Identity, OpenFile, opened
from ckpt_tools.storage.retry import status

_SYSTEM = frozenset(map(os.strerror, errno.errorcode.keys() - {errno.EINVAL}))
"""What the system says when it cannot read: that may be so on the worker's machine alone. A format uses words
of its own, and a wrong offset (EINVAL) is wrong everywhere.
"""


def seen_from_here(
    request: Request, host: str, report: Report, identity: tuple[int, ...] | None
) -> tuple[Report, tuple[int, ...] | None] | None:
    """A worker's report, and what identifies the file there; None when it is better read here."""
    blind = [f for f in report.findings if f.code == "unreadable" and f.message in _SYSTEM]
    differs = (
        identity is not None
        and request.mtime_ns > 0
        and (report.size, report.mtime_ns) != (request.size, request.mtime_ns)
    )
    if not (blind or differs):
        return report, identity
    try:
        with opened(request.path) as source:
            now = source.size, source.stat.st_mtime_ns
    except OSError:
        return None  # nobody can: it is said as it is seen from here
    if blind:
        return _said_on(host, request, report, blind[0]), identity
    if now == (request.size, request.mtime_ns):
        return unknown(request, other(host)), None
    return report, identity


def _said_on(host: str, request: Request, report: Report, blind: Finding) -> Report:
    """The report of a worker that could not read, with the name of its host."""
    said = unseen(blind.message, host) if report.size < 0 else f"{blind.message} (on {host})"
    findings = tuple(replace(f, message=said) if f is blind else f for f in report.findings)
    return replace(report, size=request.size, findings=findings)


def unknown(request: Request, why: str) -> Report:
    return Report(
        request.path,
        None,
        request.size,
        Verdict.UNKNOWN,
        Level.PRESENCE,
        findings=(finding("unreadable", why),),
        mtime_ns=request.mtime_ns,
    )


def unseen(why: str, host: str) -> str:
    return f"{why} on {host}, while this machine can open it: mount its file system there at the same place"


def other(host: str) -> str:
    return f"on {host} there is another file of this name: mount the same file system there"


def replaced(source: OpenFile) -> bool:
    """Whether the name stands for another file by now."""
    try:
        now = status(source.path)
    except OSError:
        return True
    return (now.st_size, now.st_mtime_ns) != (source.stat.st_size, source.stat.st_mtime_ns)


def ours(path: str, theirs: tuple[int, ...] | None, begun_ns: int) -> Identity | None:
    """What a worker read, as this machine names it: device and inode may be others there."""
    try:
        ours = Identity.of(status(path)) if theirs else None
    except OSError:
        return None
    return ours if ours is not None and ours[:3] == theirs[:3] and ours.settled(begun_ns) else None  # type: ignore[index]
