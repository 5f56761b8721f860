"""``save/rank-mismatch``."""

from ckpt_tools.model.report import Level
from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="save/rank-mismatch",
    code="rank-mismatch",
    more=("extra-file",),
    effect=Effect.REJECT,
    needs=Level.STRUCTURE,
    answer="put the files of the two ranks back in their places",
    why="""\
A file says that another rank wrote it than its name says. The two ranks would train on each other's
shard, which no loader notices where shapes are equal.
For: Megatron's args.rank and cur_rank; hand-made copies of mp_rank_XX.
""",
)
