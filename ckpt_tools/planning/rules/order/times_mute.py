"""Modification times cannot be those of training."""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_tools.discovery.completeness import name_kind
from ckpt_tools.planning.order import SKEW_NS, UNKNOWN, OrderFacts
from ckpt_tools.planning.rules.rule import DOUBT, Effect, Hit, Rule, name_below

_WHY = {
    None: "the latter was written no earlier",
    "equal": "all modification times are the same",
    "lost": "modification times lie before 1980",
    "future": "modification times lie in the future",
    "copied": "all were written as fast as a copy writes",
}
_MEANT = "if both are of one save, bring back the file that says so; else name the one that is meant as ROOT"
_UPLOADED = "a store has the times of the uploads; add --order step if the highest step is meant"


def check(f: OrderFacts) -> Iterator[Hit]:
    """Yield hits if times cannot be those of training, and on saves dated in the future."""
    why, base = f.why_mute, f.by_time.parts[0].base if f.by_time.parts else f.root
    if why and (why in ("equal", "lost") or f.differ) and not f.tracker:
        hint = _UPLOADED if "://" in base else ""
        yield Hit(base, f"{_WHY[why]}: the step decides which is the newest", hint, effect=Effect.WARN)
    for other in f.others:
        newest = f.newest
        one, two = name_below(newest.path, f.root), name_below(other.path, f.root)
        both = f"{one} ({newest.label}) or {two} ({other.label})"
        text = f"{DOUBT}{both}: {_WHY[why]}, and no steps compare them"
        by_step = f"--order step to resume from {newest.label}"
        if not f.step_flag or f.get_position(newest) == UNKNOWN:
            by_step = f.exclude(newest, other)
        answers = ", or ".join(filter(None, (by_step, f.exclude(other, newest))))
        yield Hit(other.path, text, f"add {answers}" if answers else _MEANT)
    if ahead := [c for c in f.saves if c.mtime_ns > f.now_ns + SKEW_NS]:
        last = max(ahead, key=lambda c: c.mtime_ns)
        more = f", and so were {len(ahead) - 1} more" if len(ahead) > 1 else ""
        text = f"{name_kind(last)} was modified after now{more}"
        yield Hit(last.path, text, effect=Effect.WARN, code="mtime-in-future")


RULE = Rule(
    id="order/times-mute",
    codes=("mtime-not-kept", "mtime-in-future"),
    effect=Effect.ASK,
    answer="--order step; copy with times: cp -a, rsync -t",
    why="""\
The times cannot be those of training: all equal, before 1980, later than now, or as close together as a
copy or an upload makes them. Steps decide then, and saves without comparable steps are a question,
such as those of which some count steps and others epochs; so is a later model beside models alone.
For: nodes without NTP; cp -r, git clone, downloads from a hub; object stores, which have the upload's time.
""",
    check=check,
)
