"""``save/seal-unusable``."""

from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="save/seal-unusable",
    code="seal-broken",
    more=("seal-incomplete", "seal-extra", "seal-stale"),
    effect=Effect.WARN,
    answer="ckpt seal --again CHECKPOINT after looking at it",
    why="""\
A seal cannot be read, is of another save, misses ranks, or does not name a file beside it. It
proves nothing about what it does not cover, and nothing against it.
For: a job that died between the last shard and its seal.
""",
)
