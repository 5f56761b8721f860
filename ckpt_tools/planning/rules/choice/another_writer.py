"""``choice/another-writer``."""

from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="choice/another-writer",
    code="another-writer",
    effect=Effect.WARN,
    answer="end the other process before this job starts",
    why="""\
Something wrote in the run while it was looked at. If it is a second job, the saves of both mix.
For: processes that a killed launcher leaves behind.
""",
)
