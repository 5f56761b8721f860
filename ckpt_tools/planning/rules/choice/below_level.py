"""``choice/below-level``."""

from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="choice/below-level",
    code="below-level",
    more=("budget-spent",),
    effect=Effect.WARN,
    answer="run it without the limit, or a lower --level",
    why="""\
Files of the choice were not read as deeply as --level asks, because their format cannot be, or
--budget was over. What was not read may be damaged.
For: time limits of a job's start-up on thousands of ranks.
""",
)
