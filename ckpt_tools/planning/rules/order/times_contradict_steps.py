"""The newest save by modification time is not the one of the highest step, or that of a tracker."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone

from ckpt_tools.discovery.completeness import name_kind
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.planning.order import OrderFacts
from ckpt_tools.planning.rules.rule import DOUBT, Effect, Hit, Rule, name_below


def check(f: OrderFacts) -> Iterator[Hit]:
    """Yield hits if time, step or a tracker that was written later name different saves as the newest."""
    if not f.differ and f.tracked is not None:
        newest, other = f.newest, f.tracked
        tracker, one, two = (name_below(path, f.root) for path in (f.tracker, newest.path, other.path))
        text = f"{DOUBT}{tracker} was written after {one} ({newest.label}), and names {two} ({other.label})"
        to_other = f"--order tracker to resume from {other.label}"
        if f.tracker_is_link:  # which no layout reads
            to_other = f.exclude(other, newest)
        answers = filter(None, (to_other, f"--order mtime to resume from {newest.label}"))
        yield Hit(newest.path, text, f"add {', or '.join(answers)}")
    if not f.differ:
        return
    if not f.tracker and f.why_mute:
        return  # a hit of times-mute
    if not f.tracker and f.goes_back:
        text = f"newest by time is {name_kind(f.by_time)}, by step {name_kind(f.by_step)}"
        yield Hit(f.by_time.path, text, effect=Effect.WARN)
        return
    other = f.by_time if f.newest is f.by_step else f.by_step
    why = "no lower step was saved before it"
    if f.tracker:
        why = f"{name_below(f.tracker, f.root)} names {other.label}"
    both = f"{_describe(f.by_time, f.root)} by time (UTC), {_describe(f.by_step, f.root)} by step"
    text = f"{DOUBT}{both}; {why}"
    by_step = f.exclude(f.by_step, f.by_time)
    if f.step_flag:
        by_step = f"--order step to resume from {f.by_step.label}"
    answers = filter(None, (f"--order mtime to resume from {f.by_time.label}", by_step))
    yield Hit(f.by_time.path, text, f"add {', or '.join(answers)}")


def _describe(c: Checkpoint, root: str) -> str:
    """Return which save it is and when it was written: ``step 20 (iter_20, 2026-01-31 12:00:00)``."""
    name = "" if c.path == root else f"{name_below(c.path, root)}, "
    moment = datetime.fromtimestamp(c.mtime_ns // 1_000_000_000, timezone.utc)
    return f"{c.label} ({name}{moment:%Y-%m-%d %H:%M:%S})"


RULE = Rule(
    id="order/times-contradict-steps",
    codes=("mtime-disagrees-with-step",),
    effect=Effect.ASK,
    answer="--order mtime, --order step or --order tracker",
    why="""\
The newest usable save by time is not the one with the highest step. The one by time is taken where
an earlier save has a lower step, from which it can have gone on (a rollback); without such a save,
or against a tracker, it is a question. So is a tracker that was written after the newest save, and names
another one that can be used: somebody may have gone back by hand.
For: rollbacks after a spike of the loss, and directories that were restored from a backup
(docs/decisions/0003); latest of DeepSpeed and latest_checkpointed_iteration.txt, which people edit.
""",
    check=check,
)
