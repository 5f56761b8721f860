"""``choice/tracker-stale``."""

from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="choice/tracker-stale",
    code="stale-tracker",
    more=("dangling-tracker", "bad-tracker", "missing-tracker"),
    effect=Effect.WARN,
    answer="start with the arguments of the plan, or ckpt repair ROOT --tracker --apply",
    why="""\
The framework's tracker is missing, garbage, or names another save than the choice. A framework that
follows it alone starts older or from nothing.
For: Megatron's latest_checkpointed_iteration.txt, DeepSpeed's latest,
huggingface/transformers#48315 (best_model_checkpoint).
""",
)
