"""``save/unknown-global``."""

from __future__ import annotations

from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="save/unknown-global",
    codes=("unknown-global", "unsafe-pickle", "suspect-call", "unread-pickle", "needs-trust"),
    effect=Effect.REJECT,
    answer="--trust global='mycompany.*' for code of your own; else do not load the file",
    why="""\
The pickle in the file names code that no checkpoint needs, or that nobody knows. Whoever loads it
runs that code.
For: pickle's REDUCE and BUILD opcodes; torch.load before weights_only=True.
""",
)
