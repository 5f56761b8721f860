"""``tree/nothing-there``."""

from __future__ import annotations

from ckpt_tools.model.finding import Finding
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, finding_of


def describe_nothing(root: str, *, packed: bool) -> Finding:
    """Return that nothing was inspected, and whether a packed file is why."""
    text = "no checkpoint file that ckpt knows is there: nothing was inspected"
    if packed:
        text = "a packed or encrypted file, which ckpt does not look into: nothing was inspected"
    return finding_of(RULE, Hit(root, text))


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
