"""What the saves of a run lack, where no save has a file for every rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ckpt_tools.discovery import completeness
from ckpt_tools.layouts import Layouts
from ckpt_tools.model import ranges
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.plan import Choice
from ckpt_tools.planning.order import SmallerJob

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


def find_smaller_job(choice: Choice, layouts: Layouts, world: int) -> SmallerJob | None:
    """Return the job of fewer ranks of which at least two newer saves lack nothing."""
    saves: dict[int, list[Checkpoint]] = defaultdict(list)
    for rejected in choice.rejected:
        c = rejected.checkpoint
        ranks = completeness.ranks_of_its_own(c, layouts.of(c))
        errors = [f for f in rejected.findings if f.severity is Severity.ERROR]
        is_newer = choice.checkpoint is not None and c.mtime_ns >= choice.checkpoint.mtime_ns
        if ranks and is_newer and all(map(_names_ranks, errors)) and ranks == set(range(len(ranks))):
            saves[len(ranks)].append(c)
    jobs = (SmallerJob(n, world, of[0]) for n, of in saves.items() if len(of) > 1 and n < world)
    return next(jobs, None)


def _say_ranks(errors: Sequence[Finding]) -> str:
    """Return all ranks that the findings name, as words."""
    of = ranges.words(tuple(sorted({pair for f in errors for pair in f.ranks})))
    return f"rank {of}" if of.isdigit() else f"ranks {of}"


def _names_ranks(f: Finding) -> bool:
    """Return True if the finding says which ranks have no file, and follows from no other one."""
    return f.code == "missing-rank" and not f.follows and bool(f.ranks)
