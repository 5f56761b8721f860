"""``save/unfinished``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpt_tools.discovery.completeness import list_marks, name_kind, name_place, say_unfinished
from ckpt_tools.findings import WAIT
from ckpt_tools.layouts import Layout, Layouts
from ckpt_tools.layouts.common.templates import AGAIN, DOWNLOADS
from ckpt_tools.model import ranges
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.planning.facts import SavesFacts
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, finding_of
from ckpt_tools.planning.rules.save.missing_rank import find_first_ranks

_SAVES = 5
"""How many unfinished saves are named, the newest ones: a job that dies in every save leaves hundreds."""
_LOST = "bring back what was removed; if nothing was saved there, move the directory away"


def check(facts: SavesFacts) -> Iterator[Hit]:
    """Yield finished saves without a marker file that each other save of their run has."""
    for c in facts.saves:
        layout, run = facts.layouts.of(c), facts.expected
        if c.unfinished or find_first_ranks(c, layout):
            continue
        own, others = list_marks(c, layout), run.count[c.kind] - 1
        absent = [m for m, n in run.marks[c.kind, layout.name].items() if n >= others > 0 and m not in own]
        if absent:
            text = (
                f"{name_kind(c)} has no {ranges.names(sorted(absent))}, which each other save of the run has"
            )
            hint = "see in the log of the job that saved it whether this save ended"
            yield Hit(name_place(c), f"{text}: it may not have ended", hint, effect=Effect.WARN)


def describe_newer(
    saves: Sequence[tuple[Checkpoint, str, bool]], chosen: Checkpoint | None, layouts: Layouts, root: str
) -> Iterator[Finding]:
    """Yield findings on unfinished saves that would go before the ``chosen`` one, the newest first."""
    for c, progress, doubtful in saves[:_SAVES]:
        than = f" {'may be' if doubtful else 'is'} newer than the choice, but" if chosen else ""
        text = f"{name_kind(c)}{than} {say_unfinished(c, layouts.of(c))}"
        text += f": {progress}" if progress else ""
        yield finding_of(RULE, Hit(c.parts[0].home or c.path, text, WAIT if progress else ""))
    if more := saves[_SAVES:]:
        names = ranges.names(c.label for c, *_ in more)
        text = f"{len(more):,} more saves like these never finished: {names}"
        yield finding_of(RULE, Hit(root, text))


def describe_begun(c: Checkpoint, layout: Layout, hint: str) -> Finding:
    text = f"{name_kind(c)} {say_unfinished(c, layout)}"  # its path may be that of other saves too
    return finding_of(RULE, Hit(c.parts[0].home or c.path, text, hint))


def describe_temporary(path: str) -> Finding:
    if path.endswith(DOWNLOADS):
        return finding_of(RULE, Hit(path, "a download that never finished", AGAIN))
    return finding_of(RULE, Hit(path, "a temporary file of a save that never finished"))


def describe_mode(path: str, mode: int, final: int) -> Finding:
    """Return the finding that a file lacks the mode of a finished one: it was copied, or cut off."""
    text = f"its mode is {mode:04o}, that of the run's other files {final:04o}"
    return finding_of(RULE, Hit(path, text, code="mode-not-final", of_file=True))


def describe_none_whole(count: int, root: str, hint: str) -> Finding:
    text = f"none of the saves here ({count:,}) is whole: no job could load anything"
    return finding_of(RULE, Hit(root, text, hint, Severity.ERROR))


def describe_empty(path: str, last: str) -> Finding:
    return finding_of(RULE, Hit(path, f"it is named like a later save than {last}, and holds none", _LOST))


def describe_empty_directory(path: str) -> Finding:
    return finding_of(RULE, Hit(path, "an empty directory, named like the file of a save", _LOST))


def describe_marked(path: str, c: Checkpoint) -> Finding:
    text = f"its name is that of an unfinished save, and it was written no earlier than {c.label}"
    return finding_of(RULE, Hit(path, text))


def describe_torn(c: Checkpoint, progress: str) -> Finding:
    return finding_of(RULE, Hit(c.path, f"{name_kind(c)} looks unfinished: {progress}", WAIT))


def describe_headless(home: str, c: Checkpoint) -> Finding:
    name = c.path.rpartition("/")[2]
    text = f"it holds such files as {name} does, and nothing that describes them"
    return finding_of(RULE, Hit(home, text))


RULE = Rule(
    id="save/unfinished",
    codes=("unfinished-save", "mode-not-final"),
    effect=Effect.REJECT,
    answer="wait if its job still writes it (--settle); else a copy of the same save, if that is whole",
    check=check,
    why="""\
The save bears the mark of one that was not committed, or lacks what is written last, or is empty. A
reader that takes it loads half a state. Beside a choice that is older it is a warning: that save never
finished, and its steps are trained again.
For: huggingface/transformers#27925 (tmp-checkpoint-N), Orbax's .orbax-checkpoint-tmp, MindIO's
_tmp, Nerogar/OneTrainer#498; jobs that are killed while they save, the commonest case of all.
""",
)
