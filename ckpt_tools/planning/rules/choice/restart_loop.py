"""``choice/restart-loop``."""

from collections.abc import Iterator

from ckpt_tools.planning.rules.rule import Effect, Hit, Rule

LOOP = 3
"""Starts in a row from one checkpoint that are worth a warning: one job was restarted 44 times."""


def check(facts: tuple[int, str]) -> Iterator[Hit]:
    """Yield a hit if the last starts all resumed from one save; ``facts``: how many, and its path."""
    repeats, path = facts
    if repeats >= LOOP - 1:
        yield Hit(path, f"{repeats} starts in a row have resumed from it, and none has saved anything later")


RULE = Rule(
    id="choice/restart-loop",
    codes=("restart-loop",),
    effect=Effect.WARN,
    answer="look at how those jobs ended: ckpt plan ROOT --history",
    why="""\
Several starts in a row resumed from the same save, and none has saved a later one. Another start
costs as much and will most likely end the same way.
For: jobs that a scheduler requeues for ever.
""",
    check=check,
)
