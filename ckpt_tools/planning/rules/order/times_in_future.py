"""``order/times-in-future``."""

from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="order/times-in-future",
    code="mtime-in-future",
    effect=Effect.WARN,
    answer="--order step",
    why="""\
A save was written later than now. Its clock, or this one, is wrong, so its time tells nothing.
For: nodes without NTP, whose saves hide all later ones.
""",
)
