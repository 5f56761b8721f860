"""``save/unfinished``."""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_tools.discovery.completeness import Expected, label, marks_of, where
from ckpt_tools.model import ranges
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.planning.facts import SavesFacts
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule
from ckpt_tools.planning.rules.save.missing_rank import find_first_ranks


def check(facts: SavesFacts) -> Iterator[Hit]:
    """Yield finished saves without a mark that each other one of their run has."""
    for c in facts.saves:
        if not c.unfinished and not find_first_ranks(c, facts.layouts.of(c)):
            yield from _find_marks(c, facts.expected)


def _find_marks(checkpoint: Checkpoint, run: Expected) -> Iterator[Hit]:
    """Marks of a finished save that each other one of its run has."""
    layout, kind = run.layouts.of(checkpoint), checkpoint.kind
    mine, others = marks_of(checkpoint, layout), run.count[kind] - 1
    gone = [m for m, n in run.marks[kind, layout.name].items() if n >= others > 0 and m not in mine]
    if gone:
        text = (
            f"{label(checkpoint)} has no {ranges.names(sorted(gone))}, which each other save of the run has"
        )
        text += ": it may not have ended"
        hint = "see in the log of the job that saved it whether this save ended"
        yield Hit(where(checkpoint), text, hint, effect=Effect.WARN)


RULE = Rule(
    id="save/unfinished",
    code="unfinished-save",
    more=("mode-not-final",),
    effect=Effect.REJECT,
    answer="wait if its job still writes it (--settle); else nothing can resume from it",
    check=check,
    why="""\
The save bears the mark of one that was not committed, or lacks what is written last, or is empty. A
reader that takes it loads half a state.
For: huggingface/transformers#27925 (tmp-checkpoint-N), Orbax's .orbax-checkpoint-tmp, MindIO's
_tmp, Nerogar/OneTrainer#498.
""",
)
