"""``choice/export-newer``."""

from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="choice/export-newer",
    code="passed-over",
    effect=Effect.NOTE,
    answer="nothing, unless training went on from it: --kind, --prefer",
    why="""\
A release, an export or the best so far is no older than the choice, and is passed over. It holds no
later training state, so resuming from it would lose the optimizer.
For: huggingface/transformers trainer.py save_model(), Keras ModelCheckpoint(save_best_only=True).
""",
)
