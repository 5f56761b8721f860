"""``save/values``."""

from ckpt_tools.model.report import Level
from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="save/values",
    code="zero-filled",
    more=("zero-tail", "zero-pages", "skeleton", "nan-values", "inf-values", "absurd-values"),
    effect=Effect.REJECT,
    needs=Level.CONTENT,
    answer="restore the file; look at the loss before the save if they are NaN",
    why="""\
Weights are zeros that were never written, or NaN, infinite or absurdly large. The file is well
formed and the model in it is dead.
For: bghira/SimpleTuner#2714; sparse files after a crash of the file system.
""",
)
