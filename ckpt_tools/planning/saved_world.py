"""Whether a job can load all that a checkpoint holds: with ranks as they saved it, or with replicas. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from math import prod

from ckpt_tools.discovery import completeness
from ckpt_tools.errors import UsageError
from ckpt_tools.findings import CODES, finding
from ckpt_tools.layouts import Layout, Piece
from ckpt_tools.layouts.common.rank_grid import Topology
from ckpt_tools.layouts.common.saved_by import told_place
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.frozen import replace
from ckpt_tools.model.part import Kind
from ckpt_tools.model.plan import Assignment
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning.run import Run

_MODEL_PARALLEL = ("tp", "pp", "cp")
"""The axes along which one copy of a model is cut."""
_PLACES = ("tp", "pp")
"""Those of them that names of files show."""


def require_its_world(c: Checkpoint, assignment: Assignment, run: Run, selection: Selection) -> None:
    """Raises UsageError where the job would leave state unread.

    That is where it has another number of ranks than saved this very checkpoint, or another grid of them.
    """
    _require_all_places(c, assignment, run)
    layout, given = run.expected.layouts.of(c), selection.sizes
    reshardable = _reshardable(c, layout)
    own = {} if reshardable else _own_sizes(c, run)
    told = completeness.named_world(c) or _world_of(own)
    if not (told or reshardable or _tells_replicas(c, run, selection)) and _named_gasp(c, layout):
        _require_world_of_gasp(c, run)
    saved = told or _saved_by(c, run)
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
        f"topology-mismatch: {text} ({c.path})", _way_out(selection), rule="save/topology-mismatch"
    )


def _require_all_places(c: Checkpoint, assignment: Assignment, run: Run) -> None:
    """Raises UsageError where one file is the model for all ranks, and is told to be that of one place."""
    models = [load.part for load in assignment.shared if load.part.role == "model"]
    if len(models) != 1:
        return  # a set, of which each rank takes what it needs
    path = models[0].path
    told = run.expected.sizes_in_files(replace(c, parts=(models[0],)))
    if place := told_place(path, told):
        raise UsageError(
            f"topology-mismatch: {path} holds the state of {place}, and its name does not tell which ranks "
            "load it, so it is given to none",
            "say in ckpt.toml, with {tp} and {pp} in a [[layout]], where the file of each place lies: "
            "docs/adding-a-layout.md",
            rule="save/topology-mismatch",
        )


def _way_out(selection: Selection) -> str:
    if selection.replicas_all or selection.replica_groups:
        return "start with the saved world size"
    return "start with the saved world size, or name the replicas: --replica-groups GROUPS, or --replicas"


def _reshardable(c: Checkpoint, layout: Layout) -> bool:
    """Whether a job of another size can load it: as its layout says, unless ranks have pieces of their own
    in it, as those of DeepSpeed below a directory of the Trainer or of Accelerate.
    """
    return layout.reshardable and not any(map(_of_one_rank, {layout.piece(p.piece) for p in c.parts}))


def _of_one_rank(piece: Piece) -> bool:
    """Whether it holds what one rank alone has, or one place of a grid."""
    return (piece.sharded or bool(piece.replicated_over)) and not piece.survivable


def _tells_replicas(c: Checkpoint, run: Run, selection: Selection) -> bool:
    """Whether the caller has said which ranks hold the same state, also those that the job does not have."""
    grouped = set(chain.from_iterable(chain.from_iterable(selection.replica_groups.values())))
    beyond = {p.rank for p in c.parts if p.rank is not None and p.rank >= run.topology.world_size}
    told = (grouped and beyond <= grouped, selection.strategy_dir, selection.sizes)
    return selection.replicas_all or any(told)


def _named_gasp(c: Checkpoint, layout: Layout) -> bool:
    """Whether it is called a dying gasp, and is not taken for one because it lacks ranks."""
    return all(layout.piece(p.piece).kind is Kind.DYING_GASP for p in c.parts)


def _require_world_of_gasp(c: Checkpoint, run: Run) -> None:
    """Raises UsageError where a dying gasp may hold state of ranks that the job does not have.

    It need not have a file of every rank, so those that it has do not show that the job had become smaller:
    the regular save before it tells how many there were.
    """
    layouts, world = run.expected.layouts, run.topology.world_size
    before = [o for o in run.checkpoints if o.kind is Kind.PERIODIC and o.order <= c.order]
    asked = [c, *sorted(before, key=lambda o: o.order)[-1:]]
    saved = max(completeness.highest_rank(o, layouts.of(o)) for o in asked) + 1
    if saved <= world:
        return
    hint = f"start with {saved} ranks, or {CODES['replica-groups-needed'].hint}"
    who = "it has"
    if saved > completeness.highest_rank(c, layouts.of(c)) + 1:
        who = "the save before it has"
    raise UsageError(
        f"topology-mismatch: {who} files of {saved} ranks, to be loaded by {world} ({c.path})",
        hint,
        rule="save/topology-mismatch",
    )


def _own_sizes(c: Checkpoint, run: Run) -> dict[str, int]:
    """What the files of a checkpoint say about the job that saved it.

    Places that its names show are there, whatever the files say. Where these say nothing, as many places as
    the job has, or fewer, are no size of its own: some may have been lost.
    """
    own, now = dict(run.expected.sizes_in_files(c)), run.topology.sizes
    told = bool(own)
    for axis in _PLACES:
        named = 1 + max((at for p in c.parts for a, at in p.coords if a == axis), default=-1)
        if told or named > now.get(axis, 1):
            own[axis] = max(own.get(axis, 0), named)
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
    own = completeness.ranks_of_its_own(c, run.expected.layouts.of(c))
    highest = max(own, default=world)
    if (run.saved or 0) > world > highest:
        return None
    return max(run.saved or 0, highest + 1) if own and highest >= world else run.saved


def mismatched(
    checkpoint: Checkpoint, assignment: Assignment, topology: Topology, saved: int | None, *, layout: Layout
) -> Finding | None:
    """``topology-mismatch`` when another number of ranks would leave state unread or load it wrongly."""
    world = topology.world_size
    if saved is None or saved == world or _reshardable(checkpoint, layout):
        return None
    short = any(f.code == "missing-rank" for f in assignment.findings)
    ragged = world % max(1, prod(topology.sizes.get(axis, 1) for axis in _MODEL_PARALLEL))
    gone = saved > world and _shared_out(checkpoint, layout)  # of what ranks share the last file may be lost
    if not (short or ragged or gone or _unread(checkpoint, assignment, world, layout)):
        return None
    text = f"saved by {saved} ranks, to be loaded by {world}"
    return finding("topology-mismatch", text, path=checkpoint.path)


def _shared_out(checkpoint: Checkpoint, layout: Layout) -> bool:
    """Whether the ranks that saved it share some of its state, each in a file of its own."""
    for p in checkpoint.parts:
        piece = layout.piece(p.piece)
        of_a_rank = p.rank is not None or any(axis == "dp" for axis, _ in p.coords)
        if of_a_rank and piece.sharded and not piece.survivable:
            return True
    return False


def _unread(checkpoint: Checkpoint, assignment: Assignment, world: int, layout: Layout) -> bool:
    """Whether ranks that the job does not have hold state of their own."""
    used = {p.path for p in assignment.parts}
    idle = [p for p in checkpoint.parts if p.path not in used and (p.rank is None or p.rank >= world)]
    return any(not layout.piece(p.piece).replicated_over for p in idle)
