"""``pair/same-content``."""

from ckpt_tools.model.report import Level
from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="pair/same-content",
    code="same-content",
    effect=Effect.ASK,
    needs=Level.CONTENT,
    answer="--max-step N for the older save, --exclude for the one that is not trusted",
    why="""\
A model's or an optimizer's file is byte for byte that of another step or rank, although training
moved on between them. One was copied over the other; where nothing tells which, it is a question.
For: hand-made repairs that copy a shard of another save; writers that save the same buffer twice.
""",
)
