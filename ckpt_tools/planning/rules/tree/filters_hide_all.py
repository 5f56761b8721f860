"""``tree/filters-hide-all``."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ckpt_tools.discovery.completeness import list_runs
from ckpt_tools.errors import CkptError, NoneUsable
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning.choose import belongs
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, error_of


def ask_for_layout(
    root: str, asked: Selection, saves: Sequence[Checkpoint], spelling: str | None
) -> CkptError | None:
    """Return the error that ROOT has saves, none of --layout; ``spelling`` is a similar name, if any."""
    finished = [c for c in saves if not c.unfinished]
    if not any(belongs(c, replace(asked, layout=None)) for c in finished):
        return None
    runs = list_runs(dict.fromkeys((c.layout, c.run) for c in finished))
    misspelt = spelling not in (None, asked.layout)
    hint = f"did you mean {spelling!r}?" if misspelt else "correct --layout, or leave it out"
    return error_of(RULE, Hit(root, f"{root} holds {runs}, none of layout {asked.layout}", hint), NoneUsable)


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
