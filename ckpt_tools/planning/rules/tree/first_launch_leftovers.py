"""``tree/first-launch-leftovers``."""

from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="tree/first-launch-leftovers",
    code="unrecognised-file",
    effect=Effect.ASK,
    answer="move away or finish what is named, or --allow-fresh to start from nothing beside it",
    why="""\
There is no checkpoint, but something that a training run leaves: unfinished saves, a tracker, large
files of no known kind. It is no first launch where something was trained before.
For: Megatron-LM checkpointing.py load_checkpoint(), which starts at random where it finds no
tracker.
""",
)
