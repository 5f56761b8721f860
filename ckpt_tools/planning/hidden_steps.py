"""What --max-step leaves out although it may be asked for: checkpoints that tell no step, and those of
which only the contents tell one, where a damaged byte can make a later step of an earlier one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ckpt_tools.findings import finding
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.part import Kind
from ckpt_tools.model.report import Level
from ckpt_tools.reading.session import Session

_EACH = 3
"""Checkpoints whose step is contradicted that have a line of their own."""
_ASIDE = (Kind.BEST, Kind.RELEASE)


def of_no_step(hidden: Sequence[Checkpoint], left: Sequence[Checkpoint]) -> Iterator[Finding]:
    """Those that --max-step leaves out because nothing tells their step, written no earlier than all that it
    leaves.
    """
    newest = max(left, key=lambda c: c.mtime_ns)
    for c in hidden:
        if c.mtime_ns >= newest.mtime_ns and c.kind not in _ASIDE:
            text = f"--max-step leaves it out, as nothing tells its step: it may be later than {newest.label}"
            yield finding("passed-over", text, path=c.path, severity=Severity.WARNING)


def told_inside(
    s: Session, hidden: Sequence[Checkpoint], left: Sequence[Checkpoint], level: Level
) -> Iterator[Finding]:
    """Those of a step above --max-step that no name tells: warnings about what contradicts it, which are the
    times of other saves, and damage of the one that was saved first; else one note.
    """
    inside = [c for c in hidden if c.kind not in _ASIDE and not _named(c)]
    if not inside:
        return
    newest = max(left, key=lambda c: c.mtime_ns)
    unlikely = [c for c in inside if _out_of_order(c, hidden, newest)]
    for c in unlikely[:_EACH]:
        text = (
            f"--max-step leaves it out, as it tells step {c.step}; it was saved before what tells a lower one"
        )
        yield finding("passed-over", text, path=c.path, severity=Severity.WARNING)
    first = min(inside, key=lambda c: (c.mtime_ns, c.step or 0))
    if first not in unlikely and _damaged(s, first, level):
        text = f"--max-step leaves it out, as it tells step {first.step}: damaged, it may be of a lower one"
        yield finding("step-mismatch", text, path=first.path, severity=Severity.WARNING)
    elif not unlikely:
        more = f", and so are {len(inside) - 1} more" if len(inside) > 1 else ""
        text = f"--max-step leaves it out: it is of step {first.step} by its contents alone{more}"
        yield finding("passed-over", text, path=first.path)


def _named(c: Checkpoint) -> bool:
    """Whether the step is a number in the names of the checkpoint's files."""
    names = (p.path.removeprefix(f"{p.base}/") for p in c.parts)
    return any(int(digits) == c.step for name in names for digits in re.findall(r"\d{1,18}", name))


def _out_of_order(c: Checkpoint, hidden: Sequence[Checkpoint], newest: Checkpoint) -> bool:
    """Whether a checkpoint of a lower step was saved later than it."""
    later = [o for o in (*hidden, newest) if o.mtime_ns > c.mtime_ns and o.kind not in _ASIDE]
    return any(o.step is not None and c.step is not None and o.step < c.step for o in later)


def _damaged(s: Session, c: Checkpoint, level: Level) -> bool:
    """Whether a look at its files shows damage."""
    return any(s.report(p, level).verdict is Verdict.BROKEN for p in c.parts)
