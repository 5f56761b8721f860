"""``tree/nothing-there``."""

from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="tree/nothing-there",
    code="not-inspected",
    effect=Effect.STOP,
    answer="--allow-none for a first launch; else correct the path",
    why="""\
Nothing below the path is a checkpoint, or a file that may be one. A first launch looks like this,
and so does a wrong path: only the caller can tell which it is.
For: a typing error in the path, which would start a job from nothing (exit 3).
""",
)
