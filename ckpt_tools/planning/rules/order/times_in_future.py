"""Saves of a time that has not come yet."""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_tools.discovery.completeness import label
from ckpt_tools.planning.order import SKEW_NS, OrderFacts
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule


def _check(f: OrderFacts) -> Iterator[Hit]:
    ahead = [c for c in f.saves if c.mtime_ns > f.now_ns + SKEW_NS]
    if ahead:
        last = max(ahead, key=lambda c: c.mtime_ns)
        more = f", and so were {len(ahead) - 1} more" if len(ahead) > 1 else ""
        yield Hit(last.path, f"{label(last)} was modified after now{more}")


RULE = Rule(
    id="order/times-in-future",
    code="mtime-in-future",
    effect=Effect.WARN,
    answer="--order step",
    why="""\
A save was written later than now. Its clock, or this one, is wrong, so its time tells nothing.
For: nodes without NTP, whose saves hide all later ones.
""",
    check=_check,
)
