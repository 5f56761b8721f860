"""What the saves of a run lack, where no save has a file for every rank."""

from __future__ import annotations

from ckpt_tools.model import ranges
from ckpt_tools.model.finding import Severity
from ckpt_tools.model.plan import Choice

_NAMED = 4
"""Saves of which it is said what they lack."""


def hint(choice: Choice) -> str:
    """Where each save lacks ranks, and nothing else is wrong: which, and what to do. Empty where it is not
    so.
    """
    lacks = []
    for rejected in choice.rejected:
        errors = [f for f in rejected.findings if f.severity is Severity.ERROR]
        if not errors or any(f.code != "missing-rank" or f.follows or not f.ranks for f in errors):
            return ""
        of = ranges.words(tuple(sorted({pair for f in errors for pair in f.ranks})))
        noun = "rank" if of.isdigit() else "ranks"
        lacks.append(f"{rejected.checkpoint.label} lacks {noun} {of}")
    if not lacks:
        return ""
    more = f" and {len(lacks) - _NAMED:,} more are not" if len(lacks) > _NAMED else ""
    return (
        f"no save is whole: {'; '.join(lacks[:_NAMED])}{more}. Nothing was started: bring the files of these"
        " ranks back, from their own disk or a backup, or say who may stand in for whom with --replica-groups"
    )
