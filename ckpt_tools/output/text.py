"""A plan -> the paths of its files, one per line, nothing else."""

from __future__ import annotations

from collections.abc import Iterable

from ckpt_tools.errors import UsageError
from ckpt_tools.model.plan import OPENED_BY_RANKS, LoadPlan
from ckpt_tools.output.words import printable


def render(plan: LoadPlan, *, terminal: bool = False) -> str:
    """Each file once, or what a framework is given for all ranks; on a ``terminal`` names are escaped."""
    paths = list(dict.fromkeys(file.path for _, file in plan.loads))
    own = {file.role for rank, file in plan.loads if rank is not None}
    told = plan.resume.path
    if told and told not in paths and plan.checkpoint and plan.shared and own <= OPENED_BY_RANKS:
        # Megatron is told the directory and the iteration
        above = plan.checkpoint.path.startswith(f"{told}/")
        paths = [plan.checkpoint.path if above else told]
    return lines(paths, terminal=terminal)


def lines(paths: Iterable[str], *, terminal: bool = False) -> str:
    paths = list(paths)
    for path in paths:
        if "\n" in path and not terminal:
            raise UsageError(f"the path {path!r} holds a line break", "add --json or --format shell")
    return "".join(f"{printable(path) if terminal else path}\n" for path in paths)
