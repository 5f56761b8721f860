"""``save/signature-invalid``."""

from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="save/signature-invalid",
    code="signature-invalid",
    effect=Effect.REJECT,
    answer="the right --verify-key; else do not load the file",
    why="""\
--verify-key asks for a signature, and none that fits the key covers the file. Somebody else wrote
it, or it was changed after it was signed.
For: model-signing (OpenSSF), which signs manifests.
""",
)
