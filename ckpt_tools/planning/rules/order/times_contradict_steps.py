"""``order/times-contradict-steps``."""

from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="order/times-contradict-steps",
    code="mtime-disagrees-with-step",
    effect=Effect.ASK,
    answer="--order mtime or --order step",
    why="""\
The newest usable save by time is not the one with the highest step. The one by time is taken where
an earlier save has a lower step, from which it can have gone on (a rollback); without such a save,
or against a tracker, it is a question.
For: rollbacks after a spike of the loss, and directories that were restored from a backup
(docs/decisions/0003).
""",
)
