"""``save/encrypted``."""

from ckpt_tools.model.report import Level
from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="save/encrypted",
    code="needs-key",
    more=("wrong-key",),
    effect=Effect.WARN,
    needs=Level.CONTENT,
    answer="--key-file FILE, with the key that it was saved with",
    why="""\
The file is encrypted, and no key or another key was given. Only its framing could be checked.
For: MindSpore save_checkpoint(enc_key=…).
""",
)
