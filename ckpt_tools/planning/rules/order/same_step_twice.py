"""``order/same-step-twice``."""

from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="order/same-step-twice",
    code="",
    more=("passed-over",),
    effect=Effect.ASK,
    answer="--exclude the one that is not meant, or --order mtime",
    why="""\
Two places hold another state of the same step. One of them is of another attempt, and which is
right is not written anywhere.
For: a run that was rolled back and saved the step again elsewhere; two dying gasps of one step.
""",
)
