"""``choice/restart-loop``."""

from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="choice/restart-loop",
    code="restart-loop",
    effect=Effect.WARN,
    answer="look at how those jobs ended: ckpt plan ROOT --history",
    why="""\
Several starts in a row resumed from the same save, and none has saved a later one. Another start
costs as much and will most likely end the same way.
For: jobs that a scheduler requeues for ever.
""",
)
