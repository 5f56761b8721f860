"""``choice/unfinished-newer``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from ckpt_tools.discovery.completeness import label, why_unfinished
from ckpt_tools.findings import WAIT
from ckpt_tools.layouts import Layouts
from ckpt_tools.model import ranges
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, finding_of
from ckpt_tools.planning.rules.save import unfinished as save_unfinished

_SAVES = 5
"""Unfinished saves that have a line of their own, the newest ones; a job that dies in every save leaves
hundreds.
"""
_LOST = "bring back what was removed; if nothing was saved there, move the directory away"


class Begun(Struct, frozen=True):
    """A save that never finished, and how far it is if it may still be written; ``doubtful``: nothing tells
    whether it is newer than the choice.
    """

    save: Checkpoint
    progress: str
    doubtful: bool


class BegunFacts(Struct, frozen=True):
    """The unfinished saves that may go before the ``chosen`` one, the newest first; all if none is."""

    root: str
    layouts: Layouts
    chosen: Checkpoint | None
    saves: Sequence[Begun]


def check(facts: BegunFacts) -> Iterator[Hit]:
    """Yield saves that would go before the choice had they been finished."""
    for begun in facts.saves[:_SAVES]:
        c = begun.save
        newer = "may be" if begun.doubtful else "is"
        than = f" {newer} newer than the choice, but" if facts.chosen else ""
        text = f"{label(c)}{than} {why_unfinished(c, facts.layouts.of(c))}"
        text += f": {begun.progress}" if begun.progress else ""
        yield Hit(c.parts[0].home or c.path, text, WAIT if begun.progress else "")
    if more := facts.saves[_SAVES:]:
        names = ranges.names(begun.save.label for begun in more)
        yield Hit(facts.root, f"{len(more):,} more saves like these never finished: {names}")


def describe_empty(path: str, last: str) -> Finding:
    """Return that a directory is called as a later save than the ``last``, with nothing of one in it."""
    return finding_of(RULE, Hit(path, f"it is called as a later save than {last} is, and holds none", _LOST))


def describe_marked(path: str, c: Checkpoint) -> Finding:
    """Return that something was written since into what is called as a save that is not done."""
    text = f"it is called as a save that is not done, and was written no earlier than {c.label}"
    return finding_of(RULE, Hit(path, text))


def describe_torn(c: Checkpoint, told: str) -> Finding:
    """Return that a save lacks files, or the ends of some, and was written to seconds ago."""
    return finding_of(save_unfinished.RULE, Hit(c.path, f"{label(c)} looks unfinished: {told}", WAIT))


def describe_headless(home: str, c: Checkpoint) -> Finding:
    """Return that a directory holds data files as those of a save, and nothing that describes them."""
    name = c.path.rpartition("/")[2]
    text = f"it holds such files as {name} does, and nothing that describes them"
    return finding_of(save_unfinished.RULE, Hit(home, text))


RULE = Rule(
    id="choice/unfinished-newer",
    code="unfinished-save",
    effect=Effect.WARN,
    check=check,
    answer="nothing, if the job was killed while it saved",
    why="""\
A newer directory is called like a save of this run and is empty, or holds pieces only. That save
never finished, and its steps are trained again.
For: jobs that are killed while they save, the commonest case of all.
""",
)
