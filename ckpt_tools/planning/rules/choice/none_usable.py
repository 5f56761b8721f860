"""``choice/none-usable``."""

from ckpt_tools.model.report import Level
from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="choice/none-usable",
    code="attempts-exhausted",
    effect=Effect.STOP,
    needs=Level.CONTENT,
    answer="ckpt verify ROOT shows the damage; --max-attempts to look further; --allow-fresh to begin anew",
    why="""\
Saves exist, and none that was tried is whole. Beginning anew would throw training away, so it takes
a word of its own.
For: a full disk, on which every later save is cut short (exit 4).
""",
)
