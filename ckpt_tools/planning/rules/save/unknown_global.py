"""``save/unknown-global``."""

from ckpt_tools.model.report import Level
from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="save/unknown-global",
    code="unknown-global",
    more=("unsafe-pickle", "suspect-call", "unread-pickle", "needs-trust"),
    effect=Effect.REJECT,
    needs=Level.STRUCTURE,
    answer="--trust-global 'mycompany.*' for code of your own; else do not load the file",
    why="""\
The pickle in the file names code that no checkpoint needs, or that nobody knows. Whoever loads it
runs that code.
For: pickle's REDUCE and BUILD opcodes; torch.load before weights_only=True.
""",
)
