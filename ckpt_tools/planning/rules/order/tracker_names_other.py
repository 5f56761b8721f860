"""A tracker that was written after the newest save names another one."""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_tools.planning.order import OrderFacts
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule


def _check(f: OrderFacts) -> Iterator[Hit]:
    if f.tracked is None or f.differ:
        return
    newest, other = f.newest, f.tracked
    text = (
        f"which checkpoint is the newest is in doubt: {f.named} was written after {newest.path}"
        f" ({newest.label}), and names {other.path} ({other.label})"
    )
    hint = f"say --resume-from tracker to resume from {other.label}, or --order mtime to resume from"
    yield Hit(newest.path, text, f"{hint} {newest.label}")


RULE = Rule(
    id="order/tracker-names-other",
    code="",
    effect=Effect.ASK,
    answer="--resume-from tracker, or --order mtime",
    why="""\
A tracker was written after the newest save was, and names another save that can be used. Its framework
would go on from that one: somebody may have gone back by hand.
For: latest_checkpointed_iteration.txt of Megatron-LM and latest of DeepSpeed, which people edit to go
back before a spike of the loss.
""",
    check=_check,
)
