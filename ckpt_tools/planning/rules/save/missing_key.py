"""``save/missing-key``."""

from ckpt_tools.model.report import Level
from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="save/missing-key",
    code="missing-key",
    effect=Effect.REJECT,
    needs=Level.STRUCTURE,
    answer="leave --require out, or resume from a save that has the entry",
    why="""\
--require names an entry that the checkpoint must hold, and the file has none. Without it the script
would fail after the job has begun, or go on with a default.
For: training scripts that read checkpoint['epoch_num'] (Ascend's samples of MindIO).
""",
)
