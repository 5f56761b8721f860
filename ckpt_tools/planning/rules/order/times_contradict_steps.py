"""The newest save by modification time is not the one of the highest step."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone

from ckpt_tools.discovery.completeness import label
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.planning.order import OrderFacts
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule


def _check(f: OrderFacts) -> Iterator[Hit]:
    if not f.differ:
        return
    if not f.named and f.why_mute:
        return  # times-mute tells of it
    if not f.named and f.goes_back:
        text = f"newest by time is {label(f.by_time)}, by step {label(f.by_step)}"
        yield Hit(f.by_time.path, text, effect=Effect.WARN)
        return
    why = f"{f.named} names the other" if f.named else "no save of a lower step was written before it"
    text = (
        f"which checkpoint is the newest is in doubt: {f.by_time.path} by modification time"
        f" ({_when(f.by_time)}), {f.by_step.path} by step ({_when(f.by_step)}); {why}"
    )
    yield Hit(f.by_time.path, text, _answers(f))


def _answers(f: OrderFacts) -> str:
    by_step = f.exclude(f.by_step, f.by_time)
    if f.step_flag:
        by_step = f"--order step to resume from {f.by_step.label}"
    return "say " + ", or ".join(filter(None, (f"--order mtime to resume from {f.by_time.label}", by_step)))


def _when(c: Checkpoint) -> str:
    moment = datetime.fromtimestamp(c.mtime_ns // 1_000_000_000, timezone.utc)
    return f"{c.label}, {moment:%Y-%m-%d %H:%M:%S} UTC"


RULE = Rule(
    id="order/times-contradict-steps",
    code="mtime-disagrees-with-step",
    effect=Effect.ASK,
    answer="--order mtime or --order step",
    why="""\
The newest usable save by time is not the one with the highest step. The one by time is taken where
an earlier save has a lower step, from which it can have gone on (a rollback); without such a save,
or against a tracker, it is a question.
For: rollbacks after a spike of the loss, and directories that were restored from a backup
(docs/decisions/0003).
""",
    check=_check,
)
