"""The load plan for one question, or the error in its place, and the part of it for one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from ckpt_tools.cache import Cache
from ckpt_tools.errors import NoCheckpoint, UsageError
from ckpt_tools.model.plan import LoadPlan, Resume
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning import decision_log
from ckpt_tools.planning.planner import Planner
from ckpt_tools.planning.rules.rule import error_of
from ckpt_tools.planning.rules.tree import could_not_look
from ckpt_tools.reading.session import Progress
from ckpt_tools.settings import plugins

if TYPE_CHECKING:
    from ckpt_tools.launchers.launcher import Started


def load_plan(root: str, selection: Selection, progress: Progress | None, cache: Cache | None) -> LoadPlan:
    """Return the plan; one without a checkpoint only where that is allowed and no earlier start had one."""
    try:
        made = Planner(root, selection, progress, cache).plan()
    except NoCheckpoint as error:  # that something is gone says more
        decision_log.require_first_launch(root, selection, error.plan)
        raise
    if made.checkpoint is None:
        decision_log.require_first_launch(root, selection, made)
    if selection.strict:
        broken = tuple(plugins.findings())
        for hit in could_not_look.find_unknown(made.below_level, selection.level, broken):
            plan = replace(made, checkpoint=None, resume=Resume(None), by_rank=(), shared=())
            raise error_of(could_not_look.RULE, hit, plan=plan)
    return made


def find_asking_rank(full: LoadPlan, selection: Selection, started: Started | None) -> int:
    """Return the rank that was named, else the launcher's. Raises UsageError if it is unknown and matters."""
    if selection.rank is not None:
        return selection.rank
    if started and started.rank:
        return started.rank.value
    if len({tuple(f.path for f in r.files) for r in full.by_rank}) <= 1:
        return full.by_rank[0].rank if full.by_rank else 0
    message = f"{len(full.by_rank)} ranks load different files, and which rank is asking is unknown"
    if started and started.unclear:
        raise UsageError(f"{message}: {started.unclear}", started.hint)
    raise UsageError(message, "pass --rank N, or set CKPT_RANK")


def narrow_to_rank(full: LoadPlan, mine: int) -> LoadPlan:
    """Return the plan with the files of one rank. Raises UsageError if the rank is outside the world."""
    if full.checkpoint is None or (full.shared and not full.by_rank):
        return full
    ranks = tuple(r for r in full.by_rank if r.rank == mine)
    if not ranks:
        raise UsageError(
            f"rank {mine} is outside the world of {full.world_size} ranks",
            "add --world-size N, and --replica-groups all if every rank loads the same file",
        )
    files = ranks[0].files
    resume = full.resume if full.resume.path or len(files) != 1 else replace(full.resume, path=files[0].path)
    return replace(full, by_rank=ranks, resume=resume)
