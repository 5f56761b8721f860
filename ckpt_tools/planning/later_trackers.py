"""Whether a tracker that was written after the choice names another save."""

from __future__ import annotations

from ckpt_tools.crosscheck.trackers import declared, written_ns
from ckpt_tools.errors import UsageError
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.plan import Choice
from ckpt_tools.planning.candidates import Candidates


def require_tracked(run: Candidates, choice: Choice, c: Checkpoint) -> None:
    """Raises UsageError where a tracker that was written after the choice names another usable save."""
    selection, session = run.selection, run.session
    if (selection.resume_from or selection.order or selection.prefer) is not None:
        return
    told = (path for path, _ in session.trackers(c.layout, c.parts[0].base))
    late = {path for path in told if written_ns(path) > c.mtime_ns}
    if not late or declared(session, c):
        return
    lost = {c.key, *(r.checkpoint.key for r in choice.rejected)}
    for o in run.ranked:
        if o.key not in lost and (path := declared(session, o)) in late and _is_usable(run, o):
            raise UsageError(
                f"which checkpoint is the newest is in doubt: {path} was written after {c.path} ({c.label}), "
                f"and names {o.path} ({o.label})",
                f"say --resume-from tracker to resume from {o.label}, "
                f"or --order {run.order} to resume from {c.label}",
                rule="choice/tracker-stale",
            )


def _is_usable(run: Candidates, c: Checkpoint) -> bool:
    """Whether a checkpoint can be used, as far as nobody must say more about it."""
    try:
        return run.judge.judge(c).usable
    except UsageError:
        return True
