"""Saves of the step of the choice in another place: copies of it, or those of another attempt."""

from __future__ import annotations

from ckpt_tools.crosscheck.pages import of_other_models, prints
from ckpt_tools.crosscheck.trackers import declared
from ckpt_tools.discovery.exclude import either
from ckpt_tools.errors import UsageError
from ckpt_tools.findings import finding
from ckpt_tools.model.checkpoint import Checkpoint, apart
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.frozen import replace
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import Assignment, Choice
from ckpt_tools.model.report import Level
from ckpt_tools.planning.candidates import Candidates
from ckpt_tools.reading.session import Session

_PAUSE_NS = 10_000_000_000
"""What a copy may pause between two files; each takes the time that 10 MB/s need, too."""


def which(choice: Choice, c: Checkpoint, run: Candidates) -> tuple[Choice, list[Finding]]:
    """The choice, or the save that its framework's tracker names in its place, and warnings about those that
    were written long before it.

    Raises UsageError where nothing tells which is meant.
    """
    warnings = list[Finding]()
    selection, session = run.selection, run.session
    by_time = "mtime" in (selection.order, selection.resume_from)
    tracked = declared(session, c)
    for o in run.ranked if selection.level > Level.PRESENCE else ():
        if not _of_its_step(o, c, run) or _are_copies(c, o, session):
            continue
        named = None if tracked else declared(session, o)
        loaded = _loaded(o, run)
        if loaded is None or (tracked and not declared(session, o)):
            continue
        last = c.mtime_ns > o.mtime_ns if by_time else _was_written_last(c, o)
        if named and not last:
            return replace(choice, checkpoint=o, assignment=loaded), warnings
        if not last or (named and not by_time):
            raise _which_is_meant(c, o, named, run.root)
        text = f"it is of {c.label} as the choice is, holds other weights, and was written earlier"
        warnings.append(
            finding("passed-over", text, path=o.path, severity=Severity.WARNING, rule="order/same-step-twice")
        )
    return choice, warnings


def _of_its_step(o: Checkpoint, c: Checkpoint, run: Candidates) -> bool:
    """Whether it is another save of the step. What counts saves, restarts or dates tells them apart; one that
    lies in the other is its framework's own copy, of which other findings tell.
    """
    if o.key == c.key or max(c.order[:2]) < 0 or run.layouts.of(c).dated is not None:
        return False
    if f"{o.path}/".startswith(f"{c.path}/") or c.path.startswith(f"{o.path}/"):
        return False
    alike = (o.kind, o.layout, o.generation) == (c.kind, c.layout, c.generation)
    return alike and not apart(o.order, c.order)


def _loaded(o: Checkpoint, run: Candidates) -> Assignment | None:
    """What would be loaded of it; None where it cannot be used, or is in doubt by itself as the choice is
    not.
    """
    try:
        return run.judge.judge(o).assignment
    except UsageError:
        return None


def _are_copies(c: Checkpoint, o: Checkpoint, s: Session) -> bool:
    """Whether files of both in one place hold the same bytes, or at least no other weights; where some are of
    a model, these.
    """
    places = {_place(p): p for p in o.parts}
    pairs = [(p, places[_place(p)]) for p in c.parts if _place(p) in places]
    pairs = [pair for pair in pairs if pair[0].role == "model"] or pairs
    pages = prints([p for pair in pairs for p in pair], (), s)
    unlike = [(p, q) for p, q in pairs if pages.get(p.path) != pages.get(q.path)]
    return bool(pairs) and all(_have_tensors(p, q, s) and not of_other_models(p, q, s) for p, q in unlike)


def _place(p: Part) -> tuple[object, ...]:
    return p.role, p.rank, p.coords, p.path.removeprefix(f"{p.home}/") if p.home else ""


def _have_tensors(p: Part, q: Part, s: Session) -> bool:
    return all(s.inspect(x.path, Level.STRUCTURE)[1].tensors for x in (p, q))


def _was_written_last(c: Checkpoint, o: Checkpoint) -> bool:
    """Whether the choice was begun so long after the other that a copy of both leaves no such times."""
    begun, ended = min(p.mtime_ns for p in c.parts), max(p.mtime_ns for p in o.parts)
    return begun - ended > _PAUSE_NS + 100 * sum(max(p.size, 0) for p in c.parts)


def _which_is_meant(c: Checkpoint, o: Checkpoint, named: str | None, root: str) -> UsageError:
    text = f"{c.path} and {o.path} are both of {c.label}, and hold other weights than each other"
    why = "nothing tells which is meant"
    if named:
        why = f"{c.path} was written last, but {named} names the other"
    return UsageError(f"{text}: {why}", either(root, c, o), rule="order/same-step-twice")
