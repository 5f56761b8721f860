"""``choice/none-usable``."""

from __future__ import annotations

from ckpt_tools.errors import CkptError, NoneUsable
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.report import Level
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, error_of


def stop_without_state(root: str, runs: str, plan: LoadPlan) -> CkptError:
    """Return that only what replicas keep for themselves is left of the runs below ROOT (exit 4)."""
    text = f"{root} holds {runs}: only what replicas keep for themselves"
    hint = "bring back the saves of all of them, which lay beside it"
    return error_of(RULE, Hit(root, text, hint), NoneUsable, plan)


RULE = Rule(
    id="choice/none-usable",
    code="attempts-exhausted",
    effect=Effect.STOP,
    needs=Level.CONTENT,
    answer="ckpt verify ROOT shows the damage; --max-attempts to look further; --allow-fresh to begin anew",
    why="""\
Saves exist, and none that was tried is whole. Beginning anew would throw training away, so it takes
a word of its own.
For: a full disk, on which every later save is cut short (exit 4).
""",
)
