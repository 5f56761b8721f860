"""``tree/earlier-start-had-one``."""

from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="tree/earlier-start-had-one",
    code="",
    effect=Effect.STOP,
    answer="bring the saves back, or --allow-fresh",
    why="""\
An earlier start of this job resumed from a checkpoint here, and now there is none. Saves do not go
away by themselves: the place is not mounted, or somebody moved them.
For: a mount that was lost between two starts of a requeued job (exit 4).
""",
)
