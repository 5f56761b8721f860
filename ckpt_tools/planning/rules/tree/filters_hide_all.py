"""``tree/filters-hide-all``."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ckpt_tools.discovery.completeness import listed
from ckpt_tools.errors import CkptError, NoneUsable
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.planning.facts import LaunchFacts
from ckpt_tools.planning.filters import belongs
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, error_of


def check(facts: LaunchFacts) -> Iterator[Hit]:
    """Yield that there are saves of other layouts than the one that was asked for."""
    finished = [c for c in facts.saves if not c.unfinished]
    if any(belongs(c, replace(facts.asked, layout=None)) for c in finished):
        runs = listed(dict.fromkeys((c.layout, c.run) for c in finished))
        text = f"{facts.root} holds {runs}, none of layout {facts.asked.layout}"
        hint = f"did you mean {facts.meant!r}?" if facts.meant else "correct --layout, or leave it out"
        yield Hit(facts.root, text, hint, error=NoneUsable)


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
    check=check,
)
