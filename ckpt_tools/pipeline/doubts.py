"""What makes a choice doubtful although no file of it is damaged: clocks, orders that disagree, newer saves that never finished."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpt_tools import completeness
from ckpt_tools.choose import rank
from ckpt_tools.codes import finding
from ckpt_tools.errors import UsageError
from ckpt_tools.layouts import BY_NAME
from ckpt_tools.model import Checkpoint, Finding, Kind
from ckpt_tools.pipeline.session import Session

_SKEW_NS = 5_000_000_000
_CLOCKS = 3
_SAVES = 5
"""Unfinished saves that are named, the newest ones; a job that dies in every save leaves hundreds."""


def orders(session: Session, candidates: Sequence[Checkpoint], run: completeness.Expected, *, witness: bool = False) -> Iterator[Finding]:
    """Where mtime and step name different winners among complete checkpoints, and where a clock is wrong.

    The tracker is the witness: asked for one, raises UsageError where it sides with step.
    """
    by_mtime, by_step = (_first(candidates, order, run) for order in ("mtime", "step"))
    if by_mtime.order != by_step.order:
        said = session.tracker(by_step.layout, by_step.parts[0].base)
        testimony = "" if said is None or isinstance(said[1], Finding) else f"; the tracker says {said[1]}"
        text = f"newest by time is {completeness.label(by_mtime)}, by step {completeness.label(by_step)}{testimony}"
        if witness and said is not None and said[1] is not None and BY_NAME[by_step.layout].tracked(by_step) == said[1]:
            raise UsageError(f"{text}: which one the job shall resume from is yours to say", "say --order step or --order mtime")
        yield finding("mtime-disagrees-with-step", text, path=by_mtime.path)
    ahead = [c for c in candidates if c.mtime_ns > session.now_ns + _SKEW_NS]
    yield from (finding("mtime-in-future", f"{completeness.label(c)} was modified after now", path=c.path) for c in ahead[:_CLOCKS])


def _first(candidates: Sequence[Checkpoint], order: str, run: completeness.Expected) -> Checkpoint:
    """The best of the complete ones; where none is, of all."""
    if any(c.kind is not Kind.PERIODIC for c in candidates):  # those at the same step change the order, so incomplete ones must go first
        return rank([c for c in candidates if not completeness.missing(c, run)] or candidates, order)[0]
    ranked = rank(candidates, order)
    return next((c for c in ranked if not completeness.missing(c, run)), ranked[0])


def unfinished(saves: Sequence[Checkpoint], chosen: Checkpoint | None, order: str, root: str) -> Iterator[Finding]:
    """Saves that would go before the chosen checkpoint had they been finished, or are of a later step; all where none is chosen. ``order`` is "mtime" or "step"."""

    def newer(c: Checkpoint) -> bool:
        return chosen is None or rank([chosen, c], order)[0] is c or (c.layout == chosen.layout and c.order > chosen.order)

    left = [c for c in rank(saves, order) if newer(c)]
    than = "" if chosen is None else " is newer than the choice, but"
    for c in left[:_SAVES]:
        yield finding("unfinished-save", f"{completeness.label(c)}{than} {completeness.why_unfinished(c)}", path=c.parts[0].home or c.path)
    if len(left) > _SAVES:
        yield finding("unfinished-save", f"{len(left) - _SAVES} more saves like these never finished", path=root)
