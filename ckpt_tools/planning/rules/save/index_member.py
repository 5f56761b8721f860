"""``save/index-member``."""

from ckpt_tools.model.report import Level
from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="save/index-member",
    code="missing-tensor",
    more=("extra-tensor", "newer-index"),
    effect=Effect.REJECT,
    needs=Level.STRUCTURE,
    answer="restore index and shards of one save",
    why="""\
An index and the files that it describes do not agree: a tensor that should be in a file is not in
it, or the index is of another save. Loaders leave such weights as they were initialised.
For: huggingface/transformers#26729: a stale index beside whole weights; tloen/alpaca-lora#293: an
adapter without tensors.
""",
)
