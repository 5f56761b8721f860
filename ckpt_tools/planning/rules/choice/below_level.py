"""``choice/below-level``."""

from __future__ import annotations

from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Level
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, finding_of


def describe_shallow(count: int, level: Level, root: str) -> Finding:
    return finding_of(RULE, Hit(root, f"{count} files were looked at less deeply than --level {level}"))


def describe_budget(files: str, level: Level, root: str, budget: float | None) -> Finding:
    text = f"the budget of {budget:g} s ran out before {files} were read as deeply as --level {level} asks"
    return finding_of(RULE, Hit(root, text, code="budget-spent"))


RULE = Rule(
    id="choice/below-level",
    codes=("below-level", "budget-spent"),
    effect=Effect.WARN,
    answer="run it without the limit, or a lower --level",
    why="""\
Files of the choice were not read as deeply as --level asks, because their format cannot be, or
--budget was over. What was not read may be damaged.
For: time limits of a job's start-up on thousands of ranks.
""",
)
