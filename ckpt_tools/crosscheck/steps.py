"""The global step of a checkpoint whose name does not tell it: what most of its files say."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.part import Kind
from ckpt_tools.model.report import Level
from ckpt_tools.reading.session import Session

_READ = 8
"""Files, and siblings, that are asked at most."""


def step_in_contents(
    session: Session, c: Checkpoint, checkpoints: Sequence[Checkpoint], level: Level = Level.STRUCTURE
) -> int | None:
    """What most of a checkpoint's files say, since one may hold another save.

    A breakpoint file counts inside the epoch, which its periodic siblings place.
    """
    layout = session.layouts.of(c)
    read = [(p, session.report(p, level).metadata) for p in c.parts[:_READ]]
    steps = [step for p, m in read if (step := layout.steps(p, m)[0]) is not None]
    if steps or c.kind is not Kind.DYING_GASP:
        return max(steps, key=steps.count, default=None)
    same = (o for o in checkpoints if o.run == c.run and o.kind is Kind.PERIODIC)
    near = sorted(same, key=lambda o: abs(o.mtime_ns - c.mtime_ns))[:_READ]
    siblings = [(o.parts[0], session.report(o.parts[0], level).metadata) for o in near]
    return next((step for p, _ in read if (step := layout.place(p, siblings)) is not None), None)


def epoch_in_contents(session: Session, c: Checkpoint, level: Level = Level.STRUCTURE) -> int | None:
    """The epoch that the first of its files tells that tells one."""
    layout = session.layouts.of(c)
    told = (layout.steps(p, session.report(p, level).metadata)[1] for p in c.parts[:_READ])
    return next((epoch for epoch in told if epoch is not None), None)
