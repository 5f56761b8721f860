"""What the saves of a run lack, where no save has a file for every rank."""

from __future__ import annotations

from collections import defaultdict

from ckpt_tools.discovery import completeness
from ckpt_tools.layouts import Layouts
from ckpt_tools.model import ranges
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.plan import Choice, Rejected
from ckpt_tools.planning.order import SmallerJob

_NAMED = 4
"""Saves of which it is said what they lack."""


def hint(choice: Choice, layouts: Layouts) -> str:
    """Return which ranks each save lacks, and what to do; "" if something else is wrong with one."""
    lacks, todo = [], ""
    for rejected in choice.rejected:
        errors = _find_errors(rejected)
        if not errors or not all(map(_names_ranks, errors)):
            return ""
        todo = todo or errors[0].hint
        of = ranges.words(tuple(sorted({pair for f in errors for pair in f.ranks})))
        lacks.append(f"{rejected.checkpoint.label} lacks rank{'' if of.isdigit() else 's'} {of}")
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
        is_newer = choice.checkpoint is not None and c.mtime_ns >= choice.checkpoint.mtime_ns
        whole = ranks == set(range(len(ranks))) and all(map(_names_ranks, _find_errors(rejected)))
        if ranks and is_newer and whole:
            saves[len(ranks)].append(c)
    jobs = (SmallerJob(n, world, of[0]) for n, of in saves.items() if len(of) > 1 and n < world)
    return next(jobs, None)


def _find_errors(rejected: Rejected) -> list[Finding]:
    return [f for f in rejected.findings if f.severity is Severity.ERROR]


def _names_ranks(f: Finding) -> bool:
    """Return True if the finding says which ranks have no file, and follows from no other one."""
    return f.code == "missing-rank" and not f.follows and bool(f.ranks)
