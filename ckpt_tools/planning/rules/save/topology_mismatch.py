"""``save/topology-mismatch``."""

from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="save/topology-mismatch",
    code="topology-mismatch",
    effect=Effect.ASK,
    answer="start the job with the saved world size, or convert the checkpoint",
    why="""\
The save was written by another number of ranks than the job has, and its layout cannot be loaded by
another number. Loading part of it trains on part of the state.
For: Megatron's torch format, DeepSpeed's zero_pp_rank files: shards of a fixed grid.
""",
)
