"""``save/mixed-counters``."""

from ckpt_tools.model.report import Level
from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="save/mixed-counters",
    code="generation-mismatch",
    more=("mixed-attempts",),
    effect=Effect.REJECT,
    needs=Level.STRUCTURE,
    answer="restore the files of one attempt; --same-save PATH if they are one",
    why="""\
Files of one save disagree on counters that all of them share, or on how often the job was
restarted. Two attempts to save the same step were mixed.
For: deepspeedai/DeepSpeed#1793: a directory that a job of one rank saved over.
""",
)
