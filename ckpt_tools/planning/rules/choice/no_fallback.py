"""``choice/no-fallback``."""

from ckpt_tools.model.report import Level
from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="choice/no-fallback",
    code="",
    effect=Effect.STOP,
    needs=Level.CONTENT,
    answer="drop --no-fallback to accept the older save",
    why="""\
The newest save is not usable, and --no-fallback forbids an older one. The rejected one is named
with its reasons.
For: jobs in which steps that are lost must be somebody's decision (exit 6).
""",
)
