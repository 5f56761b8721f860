"""``save/signature-changed``."""

from ckpt_tools.model.report import Level
from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="save/signature-changed",
    code="signature-changed",
    effect=Effect.WARN,
    needs=Level.STRUCTURE,
    answer="ckpt diff A B shows what changed",
    why="""\
A file's tensors have other names, shapes or types than those of the same file in other saves.
Either the model was changed on purpose, or the file belongs to another run.
For: huggingface/transformers#20082, OpenRLHF/OpenRLHF#839: weights of shape [0] after ZeRO-3.
""",
)
