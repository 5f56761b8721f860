"""Files below ROOT that could not be looked at: they never count as absent. Whether to answer anyway."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from ckpt_tools.discovery.seals import find_unread
from ckpt_tools.findings import NOT_SEEN, finding
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.part import Part, Unseen
from ckpt_tools.model.report import Report
from ckpt_tools.reading.session import Session

_SYSTEM = re.compile(r"lost\+found|\.snapshot|\.nfs.*")
"""Names of directories and files that belong to file systems: no framework saves there."""
_NUMBER = re.compile(r"[0-9]+")
HINT = "make it readable, then run this again; --allow unreadable skips it, maybe for an older checkpoint"


class Answer(NamedTuple):
    """The answer so far. ``skip``: unreadable files are allowed; ``run_named``: the user named the run."""

    chosen: Checkpoint | None = None
    rejected: Collection[Checkpoint] = ()
    candidates: Sequence[Checkpoint] | None = None
    skip: bool = False
    run_named: bool = False


def list_unlisted(s: Session) -> list[Finding]:
    """Return findings on directories that could not be listed, and on entries of unknown type."""
    return [make_finding(row, s.root) for row in s.found.unseen]


def make_finding(row: Unseen, root: str) -> Finding:
    """Return a finding on what was not seen: an ``unreadable``, a note if it belongs to a file system."""
    severity = Severity.NOTE if _is_of_system(row.path, root) else None
    return finding("unreadable", row.why, path=row.path, severity=severity)


def unread_files(s: Session) -> Iterator[Finding]:
    """Yield findings on parts that could not be read as deeply as their names need."""
    yield from (finding("unreadable", f.message, path=p.path) for p, f in _list_unread_parts(s))


def list_unread(s: Session, told: Collection[str]) -> Iterator[Finding]:
    """Yield indexes, seals and files to compare with that could not be read, but no path in ``told``."""
    unknown = _map_unknown(s)
    for path, why in {**s.indexes.unseen, **s.unread}.items():
        if path not in unknown and path not in told:
            yield finding("unreadable", why, path=path)


def _map_unknown(s: Session) -> dict[str, Report]:
    return {path: report for path, report in s.reports.items() if report.verdict is Verdict.UNKNOWN}


def _list_unread_parts(s: Session) -> Iterator[tuple[Part, Finding]]:
    """Yield the parts that could not be read, each with the finding that says why."""
    unknown = _map_unknown(s)
    for p in s.parts:  # there may be a million, most of which were not read
        if (p.findings or (unknown and p.path in unknown)) and (f := find_reason(p, s)) is not None:
            yield p, f


def find_reason(p: Part, s: Session) -> Finding | None:
    """Return why a part could not be looked at, by its report or its listing; None if neither says so."""
    report = s.reports.get(p.path)
    findings = report.findings if report is not None and report.verdict is Verdict.UNKNOWN else p.findings
    return next((f for f in findings if f.code in NOT_SEEN), None)


def weigh(s: Session, answer: Answer) -> tuple[list[Unseen], list[Finding]]:
    """Return (files without which no answer can be given, files that are worth a warning beside it)."""
    chosen = {p.path for p in answer.chosen.parts} if answer.chosen is not None else set[str]()
    # unread parts of the choice have another file in their place (``last.ckpt``)
    blocking, warnings = list[Unseen](), [f for f in unread_files(s) if f.path in chosen] if chosen else []
    parts = answer.chosen.parts if answer.chosen is not None else ()
    pieces = ((p.home, s.layouts.piece_of(p)) for p in parts)
    homes = {home for home, piece in pieces if piece.home and not piece.content.step}  # named by their steps
    for row in _list_unseen(s, answer, chosen):
        if _is_of_system(row.path, s.root) or _may_ignore(row, answer, homes, s.root):
            warnings.append(make_finding(row, s.root))
        else:
            blocking.append(row)
    return blocking, warnings


def _list_unseen(s: Session, answer: Answer, chosen: Collection[str]) -> Iterator[Unseen]:
    """Yield whatever was not seen: directories, indexes, trackers, and parts but those of the choice."""
    yield from s.found.unseen
    yield from s.unplaced
    # also indexes of rejected checkpoints, which may be rejected for lack of the files in them
    yield from (Unseen(path, why) for path, why in s.indexes.unseen.items())
    reasons = s.unread if answer.chosen else {**s.unread, **find_unread(s.found.trackers.values())}
    parts = {p.path: p for p in s.parts if p.path in reasons} if reasons else {}
    for path, why in reasons.items():  # trackers, and files that others were to be compared with
        p = parts.get(path)
        if p is None:
            yield Unseen(path, why)
        elif find_reason(p, s) is None:  # else it is among the parts below
            yield Unseen(path, why, p.step, p.mtime_ns)
    yield from _list_parts(s, answer, chosen)
    if answer.chosen is None:
        yield from _list_others(s)


def _list_others(s: Session) -> Iterator[Unseen]:
    """Yield files without the name of a checkpoint's: something is there, and an index may lead to it."""
    for bare in s.found.bare:
        yield from (Unseen(bare.path, f.message) for f in bare.findings if f.code == "unreadable")
    parts = {p.path for p in s.parts}
    for path, report in _map_unknown(s).items():
        if path not in parts:
            yield from (Unseen(path, f.message) for f in report.findings if f.code in NOT_SEEN)


def _list_parts(s: Session, answer: Answer, chosen: Collection[str]) -> Iterator[Unseen]:
    """Yield parts of checkpoints that could have been chosen, but not of the choice or of certain losers."""
    if not (unread_parts := list(_list_unread_parts(s))):
        return
    finished = {p.path for c in answer.candidates or () if not c.unfinished for p in c.parts}
    decided = {*chosen, *_find_decided(s, answer)}
    for p, f in unread_parts:
        if p.path not in decided and (answer.candidates is None or p.path in finished):
            yield Unseen(p.path, f.message, p.step, p.mtime_ns or None)


def _find_decided(s: Session, answer: Answer) -> Iterator[str]:
    """Return the paths of rejected checkpoints' parts, unless only content tells their step, or ``skip``."""
    lost = () if answer.skip and answer.chosen is None else answer.rejected
    return (p.path for c in lost for p in c.parts if not s.layouts.piece_of(p).content.step)


def _is_of_system(path: str, root: str) -> bool:
    return any(_SYSTEM.fullmatch(name) for name in path[len(root) :].split("/"))


def _may_ignore(row: Unseen, answer: Answer, homes: Collection[str], root: str) -> bool:
    """Return True if the choice stands without a file that was not seen: its step and its time are older."""
    chosen = answer.chosen
    if chosen is None:
        return False
    step, is_alike = (row.step, False) if row.step is not None else _find_step(row.path, chosen, homes, root)
    if answer.skip:
        return step is not None or not is_alike
    if chosen.step is None or step is None or row.mtime_ns is None:
        return False
    if step >= chosen.step or row.mtime_ns >= chosen.mtime_ns:
        return False
    is_in_run = any(row.path.startswith(f"{p.base.rstrip('/')}/") for p in chosen.parts)
    return answer.run_named or row.step is not None or is_in_run


def _find_step(path: str, chosen: Checkpoint, homes: Collection[str], root: str) -> tuple[int | None, bool]:
    """Return (step, True if the path itself is like one of the choice's directories). Directories are alike
    if their names differ in numbers alone, as ``ckpt_0`` and ``ckpt_1``. The step is the number in the place
    of the choice's step, None if no such directory is among ``homes``.
    """
    whole = path
    while len(path) > len(root):
        above, name = os.path.split(path)
        below = (p.path.removeprefix(f"{above}/") for p in chosen.parts if p.path.startswith(f"{above}/"))
        directories = {inner.partition("/")[0] for inner in below if "/" in inner}
        alike = [other for other in directories if _NUMBER.sub("#", other) == _NUMBER.sub("#", name)]
        if len(alike) == 1 and f"{above}/{alike[0]}" in homes:
            numbers = zip(_NUMBER.findall(alike[0]), _NUMBER.findall(name), strict=True)
            steps = [int(own) for chosen_number, own in numbers if int(chosen_number) == chosen.step]
            return steps[0] if len(steps) == 1 else None, path == whole
        if alike:
            return None, path == whole
        path = above
    return None, False
