"""``tree/several-runs``."""

from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="tree/several-runs",
    code="missing-run",
    effect=Effect.ASK,
    answer="--run NAME",
    why="""\
More than one run below ROOT has saves to resume from, or the run that was named is not there. Which
one continues is known to its owner only.
For: sweeps and repeated experiments that save below one directory.
""",
)
