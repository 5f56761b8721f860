"""``tree/filters-hide-all``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ckpt_tools.discovery.completeness import listed
from ckpt_tools.errors import CkptError, NoneUsable
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning.choose import belongs
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, error_of


def find_others(root: str, asked: Selection, saves: Sequence[Checkpoint], meant: str | None) -> Iterator[Hit]:
    """Yield that ROOT has saves of other layouts than --layout; ``meant`` is the likely spelling of it."""
    finished = [c for c in saves if not c.unfinished]
    if any(belongs(c, replace(asked, layout=None)) for c in finished):
        runs = listed(dict.fromkeys((c.layout, c.run) for c in finished))
        hint = f"did you mean {meant!r}?" if meant else "correct --layout, or leave it out"
        yield Hit(root, f"{root} holds {runs}, none of layout {asked.layout}", hint, error=NoneUsable)


def stop(count: str, plan: LoadPlan) -> CkptError:
    text = f"{count}, but --kind or --max-step hides them all"
    return error_of(RULE, Hit("", text, "relax the filters"), NoneUsable, plan)


RULE = Rule(
    id="tree/filters-hide-all",
    effect=Effect.STOP,
    answer="loosen the option that is named: --kind, --layout, --max-step, --exclude",
    why="""\
Checkpoints exist, and the options leave none of them. That is no reason to start from nothing.
For: --kind dying-gasp in a run that has periodic saves only (exit 4).
""",
)
