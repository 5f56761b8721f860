"""``order/same-step-twice``."""

from __future__ import annotations

from ckpt_tools.discovery.completeness import label
from ckpt_tools.errors import CkptError
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, error_of


def ask(c: Checkpoint, path: str, other: str, hint: str) -> CkptError:
    """Return the question which of two models of one save is meant."""
    text = f"{path} and {other} are of {label(c)}, and hold other weights than each other"
    return error_of(RULE, Hit(path, f"{text}: nothing tells which is meant", hint))


RULE = Rule(
    id="order/same-step-twice",
    code="",
    more=("passed-over",),
    effect=Effect.ASK,
    answer="--exclude the one that is not meant, or --order mtime",
    why="""\
Two places hold another state of the same step. One of them is of another attempt, and which is
right is not written anywhere.
For: a run that was rolled back and saved the step again elsewhere; two dying gasps of one step.
""",
)
