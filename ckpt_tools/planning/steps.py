"""The global step of a checkpoint whose name does not tell it: what most of its files say."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt_tools.layouts.common.layout import whole
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.part import Kind
from ckpt_tools.model.report import Level
from ckpt_tools.reading.session import Session

_READ = 8
"""Files, and siblings, that are asked at most."""
_COUNTERS = {"optimizer": "optimizer_step", "scheduler": "last_epoch"}
"""By the role of a file: what in it every step of training counts on, in one unit over all of a run."""


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


def count_in_contents(
    session: Session, c: Checkpoint, checkpoints: Sequence[Checkpoint], level: Level
) -> int | None:
    """What the files of a checkpoint count on over all of its run, whatever its name counts: the entry that
    the layout names, else the steps of the optimizer, or of the schedule.
    """
    if c.kind is Kind.DYING_GASP:
        return step_in_contents(session, c, checkpoints, level)
    if key := session.layouts.of(c).counts_restarts:
        told = (whole(session.report(p, level).metadata.get(key)) for p in c.parts[:_READ])
        steps = [step for step in told if step is not None]
        return max(steps, key=steps.count, default=None)
    for role, counter in _COUNTERS.items():
        part = next((p for p in c.parts if p.role == role), c.parts[0] if len(c.parts) == 1 else None)
        if part and (count := whole(session.report(part, level).metadata.get(counter))) is not None:
            return count
    return None
