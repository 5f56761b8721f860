"""``tree/filters-hide-all``."""

from __future__ import annotations

from ckpt_tools.errors import CkptError, NoneUsable
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, error_of


def stop(count: str, plan: LoadPlan) -> CkptError:
    """Return that the filters leave none of the saves (exit 4)."""
    text = f"{count}, but --kind or --max-step hides them all"
    return error_of(RULE, Hit("", text, "relax the filters"), NoneUsable, plan)


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
