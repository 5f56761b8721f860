"""``tree/filters-hide-all``."""

from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="tree/filters-hide-all",
    code="",
    effect=Effect.STOP,
    answer="loosen the option that is named: --kind, --layout, --max-step, --exclude",
    why="""\
Checkpoints exist, and the options leave none of them. That is no reason to start from nothing.
For: --kind dying-gasp in a run that has periodic saves only (exit 4).
""",
)
