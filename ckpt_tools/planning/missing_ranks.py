"""What the saves of a run lack, where no save has a file for every rank."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt_tools.layouts import Layouts
from ckpt_tools.model import ranges
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.plan import Choice

_NAMED = 4
"""Saves of which it is said what they lack."""


def hint(choice: Choice, layouts: Layouts) -> str:
    """Where each save lacks ranks, and nothing else is wrong: which, and what to do. Empty where it is not
    so.
    """
    lacks, todo = [], ""
    for rejected in choice.rejected:
        errors = [f for f in rejected.findings if f.severity is Severity.ERROR]
        if not errors or not all(map(_names_ranks, errors)):
            return ""
        todo = todo or errors[0].hint
        lacks.append(f"{rejected.checkpoint.label} lacks {_say_ranks(errors)}")
    if not lacks:
        return ""
    more = f" and {len(lacks) - _NAMED:,} more are not" if len(lacks) > _NAMED else ""
    pieces = [layouts.piece_of(p) for r in choice.rejected for p in r.checkpoint.parts]
    if not any(piece.sharded or piece.shared for piece in pieces):
        todo += "; or say who may stand in for whom with --replica-groups"
    return f"no save is whole: {'; '.join(lacks[:_NAMED])}{more}. Nothing was started: {todo}"


def _say_ranks(errors: Sequence[Finding]) -> str:
    """Return all ranks that the findings name, as words."""
    of = ranges.words(tuple(sorted({pair for f in errors for pair in f.ranks})))
    return f"rank {of}" if of.isdigit() else f"ranks {of}"


def _names_ranks(f: Finding) -> bool:
    """Return True if the finding says which ranks have no file, and follows from no other one."""
    return f.code == "missing-rank" and not f.follows and bool(f.ranks)
