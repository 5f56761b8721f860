"""``save/step-mismatch``."""

from ckpt_tools.model.report import Level
from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="save/step-mismatch",
    code="step-mismatch",
    more=("epoch-mismatch",),
    effect=Effect.REJECT,
    needs=Level.STRUCTURE,
    answer="restore the file of the right step",
    why="""\
Name, directory and content of a file disagree on its step or epoch. It belongs to another save, and
loading it would mix two states.
For: files that were copied by hand between saves; MindIO TTP's batch_num check of directory and
step_num.
""",
)
