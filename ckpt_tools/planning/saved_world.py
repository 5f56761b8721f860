"""Whether a job can load all that a checkpoint holds: with ranks as they saved it, or with replicas. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from ckpt_tools.discovery import completeness
from ckpt_tools.errors import UsageError
from ckpt_tools.findings import finding
from ckpt_tools.layouts import Layout
from ckpt_tools.layouts.common.rank_grid import Topology
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.plan import Assignment
from ckpt_tools.planning.run import Run

_MODEL_PARALLEL = ("tp", "pp", "cp")
"""The axes along which one copy of a model is cut."""
_PLACES = ("tp", "pp")
"""Those of them that names of files show."""


def require_its_world(c: Checkpoint, assignment: Assignment, run: Run, given: Mapping[str, int]) -> None:
    """Raises UsageError where the job would leave state unread.

    That is where it has another number of ranks than saved this very checkpoint, or another grid of them.
    ``given`` are the parallel sizes that the caller has named.
    """
    layout = run.expected.layouts.of(c)
    own = {} if layout.reshardable else _own_sizes(c, run)
    saved = completeness.named_world(c) or _world_of(own) or _saved_by(c, run)
    clash = mismatched(c, assignment, run.topology, saved, layout=layout)
    now = {a: run.topology.sizes.get(a, own[a]) for a in _PLACES if own.get(a) and a not in given}
    other = next((axis for axis, size in now.items() if size != own[axis]), None)
    if clash is not None:
        text = clash.message
    elif other is not None:
        text = f"saved with {other}={own[other]}, to be loaded with {other}={now[other]}"
    else:
        return
    raise UsageError(
        f"topology-mismatch: {text} ({c.path})",
        "start with the saved world size, or name the replicas with --replica-groups or --replicas all",
    )


def _own_sizes(c: Checkpoint, run: Run) -> dict[str, int]:
    """What the files of a checkpoint say about the job that saved it.

    Places that its names show are there, whatever the files say.
    """
    own = dict(run.expected.sizes_in_files(c))
    for axis in _PLACES if own else ():
        highest = max((at for p in c.parts for a, at in p.coords if a == axis), default=-1)
        own[axis] = max(own.get(axis, 0), 1 + highest)
    return own


def _world_of(own: Mapping[str, int]) -> int | None:
    """How many ranks there were; of a number that the parallel sizes do not divide, these are right."""
    grid = prod(max(1, own.get(axis, 1)) for axis in _MODEL_PARALLEL)
    return grid if own.get("world", 0) % grid else own.get("world")


def _saved_by(c: Checkpoint, run: Run) -> int | None:
    """How many ranks saved a checkpoint, where other saves tell.

    That an older one had more says nothing of one without a file beyond this job's ranks.
    """
    world = run.topology.world_size
    highest = max(completeness.ranks_of_its_own(c, run.expected.layouts.of(c)), default=world)
    if (run.saved or 0) > world > highest:
        return None
    return run.saved


def mismatched(
    checkpoint: Checkpoint, assignment: Assignment, topology: Topology, saved: int | None, *, layout: Layout
) -> Finding | None:
    """``topology-mismatch`` when another number of ranks would leave state unread or load it wrongly."""
    world = topology.world_size
    if saved is None or saved == world or layout.reshardable:
        return None
    used = {p.path for p in assignment.parts}
    idle = [p for p in checkpoint.parts if p.path not in used and (p.rank is None or p.rank >= world)]
    unread = any(not layout.piece(p.piece).replicated_over for p in idle)
    short = any(f.code == "missing-rank" for f in assignment.findings)
    ragged = world % max(1, prod(topology.sizes.get(axis, 1) for axis in _MODEL_PARALLEL))
    if not (unread or short or ragged):
        return None
    text = f"saved by {saved} ranks, to be loaded by {world}"
    return finding("topology-mismatch", text, path=checkpoint.path)
