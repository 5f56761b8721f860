"""Whether a job now has fewer ranks than when an older save was made, or has lost the files of some.

Names alone cannot tell, once it has saved twice without them. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from math import prod
from typing import NamedTuple

from ckpt_tools.discovery import completeness
from ckpt_tools.errors import UsageError
from ckpt_tools.layouts import Layouts
from ckpt_tools.model import ranges
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.selection import Selection

_SAVES = 2
"""Saves without the highest ranks that are no accident: one may have been cut off, or have lost a rank."""


class SmallerJob(NamedTuple):
    """A job of ``size`` ranks that may have written the newest ``saves``, newest first."""

    size: int
    saves: Sequence[Checkpoint]


def smaller_jobs(saves: Sequence[Checkpoint], world: int, layouts: Layouts) -> Iterator[SmallerJob]:
    """Jobs of fewer than ``world`` ranks since which no save has a file of a higher rank; ``saves`` are
    newest first.
    """
    rows = [(c, ranks) for c in saves if (ranks := completeness.ranks_of_its_own(c, layouts.of(c)))]
    for size in sorted({len(ranks) for _, ranks in rows if max(ranks) + 1 == len(ranks) < world}):
        mine = list(_saves_of(size, rows))
        if len(mine) >= _SAVES:
            yield SmallerJob(size, mine)


def _saves_of(size: int, rows: Sequence[tuple[Checkpoint, set[int]]]) -> Iterator[Checkpoint]:
    """The saves of that many ranks, down to the first of more; saves of fewer may have been cut off."""
    return (c for c, ranks in takewhile(lambda row: max(row[1]) < size, rows) if len(ranks) == size)


def possible(size: int, selection: Selection, sizes: Mapping[str, int]) -> bool:
    """Whether a job may have that many ranks for all that the caller says.

    No replica group may name another rank, and the parallel sizes must divide it.
    """
    model_parallel = prod(max(1, sizes.get(axis, 1)) for axis in ("tp", "cp", "pp"))
    grid = model_parallel * max(1, selection.sizes.get("dp", 1))
    named = (rank for groups in selection.replica_groups.values() for group in groups for rank in group)
    return size % grid == 0 and max(named, default=-1) < size


def size_in_doubt(job: SmallerJob, world: int, mine: Checkpoint, other: Checkpoint | None) -> UsageError:
    """How many ranks the job has: what each answer resumes from.

    ``mine`` is the newest checkpoint of the smaller job, ``other`` that of one of ``world`` ranks.
    """
    size = job.size
    gone = ranges.ranks(ranges.gaps(range(size), world), world)
    of = "rank 0" if size == 1 else f"ranks 0–{size - 1}"
    rest, older = "of which no checkpoint is complete and sound", ""
    if other:
        rest = f"whose newest complete checkpoint is {other.path} ({other.label})"
        older = f" to resume from {other.label}"
    text = (
        f"how many ranks the job has is in doubt: its newest {len(job.saves)} saves of {of} have no file of "
        f"{gone}, and nothing else tells. Either it is now a job of {size}, whose newest checkpoint is "
        f"{mine.path} ({mine.label}), or one of {world} that lost those files, {rest}"
    )
    return UsageError(
        text, f"say --world-size {size} to resume from {mine.label}, or --world-size {world}{older}"
    )
