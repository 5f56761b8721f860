"""``tree/root-missing``."""

from __future__ import annotations

from ckpt_tools.model.finding import Finding
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, finding_of


def describe_first_launch(root: str) -> Finding:
    """Return that ROOT does not exist, which the caller takes for a first launch."""
    text = "it does not exist: this is taken for a first launch (--allow-missing)"
    return finding_of(RULE, Hit(root, text))


RULE = Rule(
    id="tree/root-missing",
    code="missing-root",
    effect=Effect.STOP,
    answer="mount the file system, or correct ROOT; --allow-missing for a first launch",
    why="""\
ROOT does not exist. A file system that is not mounted looks the same as a run that never began, so
nothing is said to be a first launch unless --allow-missing says so.
For: jobs that began again from nothing because a mount came later than the job.
""",
)
