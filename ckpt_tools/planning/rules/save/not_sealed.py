"""``save/not-sealed``."""

from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="save/not-sealed",
    code="not-sealed",
    effect=Effect.REJECT,
    answer="ckpt seal CHECKPOINT, or leave --require-seal out",
    why="""\
--require-seal asks for a seal, and none covers the file. What is not sealed cannot be told from
what was changed.
For: shared storage on which others can write.
""",
)
