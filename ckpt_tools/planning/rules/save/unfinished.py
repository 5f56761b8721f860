"""``save/unfinished``."""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_tools.discovery.completeness import Expected, label, marks_of, where, why_unfinished
from ckpt_tools.layouts import Layout
from ckpt_tools.layouts.common.under_way import AGAIN, DOWNLOADS
from ckpt_tools.model import ranges
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.ranges import Ranges
from ckpt_tools.planning.facts import SavesFacts
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, finding_of
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


def describe_begun(c: Checkpoint, layout: Layout, hint: str) -> Finding:
    """Return what shows that a save never finished."""
    return finding_of(RULE, Hit(c.parts[0].home or c.path, f"this save {why_unfinished(c, layout)}", hint))


def describe_written(path: str, text: str, hint: str, of: Ranges = ()) -> Finding:
    """Return what a save lacks that may still be written."""
    return finding_of(RULE, Hit(path, text, hint, ranks=of))


def describe_temporary(path: str) -> Finding:
    """Return that a file is called as one that was never finished."""
    if path.endswith(DOWNLOADS):
        return finding_of(RULE, Hit(path, "a download that never finished", AGAIN))
    return finding_of(RULE, Hit(path, "a temporary file of a save that never finished"))


def describe_mode(path: str, mode: int, final: int) -> Finding:
    """Return that a file lacks the mode that its framework gives a finished one: it was copied, or cut."""
    text = f"its mode is {mode:04o}, that of the run's other files {final:04o}"
    return finding_of(RULE, Hit(path, text, code="mode-not-final", of_file=True))


def describe_none_whole(count: int, root: str, hint: str) -> Finding:
    """Return that none of the saves below ROOT is whole."""
    text = f"none of the saves here ({count:,}) is whole: no job could load anything"
    return finding_of(RULE, Hit(root, text, hint, Severity.ERROR))


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
