"""``save/seal-mismatch``."""

from ckpt_tools.model.report import Level
from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="save/seal-mismatch",
    code="seal-mismatch",
    effect=Effect.REJECT,
    needs=Level.CONTENT,
    answer="restore the file; ckpt seal --again CHECKPOINT if it was rewritten on purpose",
    why="""\
The file is not the one that was sealed. Its structure may be perfect: only the seal shows that
weights were changed.
For: flipped bits in tensors, which neither zip nor safetensors protects (pytorch/pytorch#126952).
""",
)
