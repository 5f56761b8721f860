"""``save/replica-mismatch``."""

from ckpt_tools.model.report import Level
from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="save/replica-mismatch",
    code="replica-mismatch",
    more=("replica-unproven", "size-outlier"),
    effect=Effect.REJECT,
    needs=Level.STRUCTURE,
    answer="correct --replica-groups; --strict refuses what is not proven",
    why="""\
A file that should stand in for another's holds different tensors, or nothing proves that it holds
the same. A wrong substitute is worse than an older step.
For: the mission of this tool: replicas of MindSpore, MindIO TTP and pure data parallel jobs.
""",
)
