"""Modification times cannot be those of training."""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_tools.planning.order import OrderFacts
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule

_WHY = {
    None: "they were written at the same time",
    "equal": "all modification times are the same",
    "lost": "modification times lie before 1980",
    "future": "modification times lie in the future",
    "copied": "all were written as quickly as a copy or an upload writes them",
}
_UPLOADED = "a store has the times of the uploads; say --order step if the highest step is meant"


def _check(f: OrderFacts) -> Iterator[Hit]:
    why, base = f.why_mute, f.by_time.parts[0].base if f.by_time.parts else f.root
    if why and (why in ("equal", "lost") or f.differ) and not f.named:
        hint = _UPLOADED if "://" in base else ""
        yield Hit(base, f"{_WHY[why]}: the step decides which is the newest", hint, effect=Effect.WARN)
    for other in f.others:
        newest = f.newest
        text = (
            f"which checkpoint is the newest is in doubt: {newest.path} ({newest.label}) and {other.path}"
            f" ({other.label}): {_WHY[why]}, and no steps compare them"
        )
        by_step = f"--order step to resume from {newest.label}" if f.step_flag else f.exclude(newest, other)
        answers = ", or ".join(filter(None, (by_step, f.exclude(other, newest))))
        yield Hit(other.path, text, f"say {answers}" if answers else "name the one that is meant as ROOT")
        return


RULE = Rule(
    id="order/times-mute",
    code="mtime-not-kept",
    effect=Effect.ASK,
    answer="--order step; copy with times: cp -a, rsync -t",
    why="""\
The times cannot be those of training: all equal, before 1980, or as close together as a copy or an
upload makes them. Steps decide then, and saves without comparable steps are a question,
such as those of which some count steps and others epochs.
For: cp -r, git clone, downloads from a hub, object stores that keep the time of the upload.
""",
    check=_check,
)
