"""``tree/root-missing``."""

from ckpt_tools.planning.rules.rule import Effect, Rule

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
