"""``save/parallel-sizes``."""

from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="save/parallel-sizes",
    code="parallel-sizes",
    more=("world-size-inferred", "lone-number"),
    effect=Effect.WARN,
    answer="--world-size N, --tp N, --pp N",
    why="""\
How many ranks there are is not told, or told in two ways. A lost highest rank cannot be seen where
only the highest name on disk tells the number.
For: Megatron's args (tp, pp, cp) after a conversion; directories thinned out by hand.
""",
)
