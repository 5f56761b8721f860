"""``save/topology-mismatch``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from math import prod

from msgspec.structs import replace

from ckpt_tools.discovery import completeness
from ckpt_tools.findings import CODES
from ckpt_tools.layouts import Layout
from ckpt_tools.layouts.common.saved_by import describe_place
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.part import Kind
from ckpt_tools.model.plan import Assignment
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning.facts import Run
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule

_MODEL_PARALLEL = ("tp", "pp", "cp")
"""The axes along which one copy of a model is cut."""
_PLACES = ("tp", "pp")
"""Axes of a model that names of files show."""


def check(c: Checkpoint, assignment: Assignment, run: Run, selection: Selection) -> Iterator[Hit]:
    """Yield why the job would leave state of the save unread; only the first hit counts."""
    layout = run.expected.layouts.of(c)
    yield from _find_lone_share(c, assignment, run)
    reshardable = _is_reshardable(c, layout)
    own = {} if reshardable else _find_own_sizes(c, run)
    grid = prod(max(1, own.get(axis, 1)) for axis in _MODEL_PARALLEL)
    in_files = grid if own.get("world", 0) % grid else own.get("world")  # a multiple of the grid, or wrong
    world = completeness.read_world(c) or in_files
    if not (world or reshardable or _are_replicas_given(c, run, selection)):
        yield from _find_larger_gasp(c, run)
    text = _describe_mismatch(c, assignment, run, world or _find_saved_world(c, run))
    if text := text or _find_other_size(own, run.topology.sizes, selection.sizes):
        hint = "start with the saved world size"
        are_given = selection.replicas_all or selection.replica_groups
        if not are_given and not all(layout.piece(p.piece).readers.sharded for p in assignment.parts):
            hint += ", or name the replicas: --replica-groups GROUPS, or all"
        yield Hit(c.path, f"topology-mismatch: {text} ({c.path})", hint)


def _find_lone_share(c: Checkpoint, assignment: Assignment, run: Run) -> Iterator[Hit]:
    """Yield a hit if all ranks load one model file, but it tells that it is one rank's share of the model."""
    models = [load.part for load in assignment.shared if load.part.role == "model"]
    if len(models) != 1:
        return  # a set, of which each rank takes what it needs
    path = models[0].path
    sizes = run.expected.sizes_in_files(replace(c, parts=(models[0],)))
    if place := describe_place(path, sizes):
        text = f"topology-mismatch: {path} holds the state of {place}, and its name names no rank or place"
        hint = "name the file of each place with {tp} and {pp} in ckpt.toml: docs/adding-a-layout.md"
        yield Hit(path, text, hint)


def _is_reshardable(c: Checkpoint, layout: Layout) -> bool:
    """Return True if the layout lets other sizes load it, and no piece is of one rank or place."""
    readers = (layout.piece(name).readers for name in {p.piece for p in c.parts})
    of_ranks = (r for r in readers if (r.sharded or r.replicated_over) and not r.survivable)
    return layout.reshardable and not any(of_ranks)


def _are_replicas_given(c: Checkpoint, run: Run, selection: Selection) -> bool:
    """Return True if the caller says which ranks hold the same state, also for ranks beyond the job's."""
    world = run.topology.world_size
    grouped = set(chain.from_iterable(chain.from_iterable(selection.replica_groups.values())))
    beyond = {p.rank for p in c.parts if p.rank is not None and p.rank >= world}
    covered = grouped and beyond <= grouped
    return bool(selection.replicas_all or covered or selection.strategy_dir or selection.sizes)


def _find_larger_gasp(c: Checkpoint, run: Run) -> Iterator[Hit]:
    """Yield a dying gasp that may hold state of ranks that the job lacks, by it or the save before it."""
    layouts, world = run.expected.layouts, run.topology.world_size
    if not all(layouts.of(c).piece(p.piece).kind is Kind.DYING_GASP for p in c.parts):
        return
    earlier = [o for o in run.checkpoints if o.kind is Kind.PERIODIC and o.order <= c.order]
    saves = [c, *sorted(earlier, key=lambda o: o.order)[-1:]]
    highest = [completeness.find_highest(o, layouts.of(o)) for o in saves]
    saved = max(highest) + 1
    if saved > world:
        who = "it has" if saved == highest[0] + 1 else "the save before it has"
        text = f"topology-mismatch: {who} files of {saved} ranks, to be loaded by {world} ({c.path})"
        hint = f"start with {saved} ranks, or {CODES['replica-groups-needed'].hint}"
        yield Hit(c.path, text, hint)


def _find_own_sizes(c: Checkpoint, run: Run) -> dict[str, int]:
    """Return the saving job's parallel sizes; those of names alone count only if larger than this job's."""
    own, now = dict(run.expected.sizes_in_files(c)), run.topology.sizes
    in_files = bool(own)
    for axis in _PLACES:
        in_names = 1 + max((at for p in c.parts for a, at in p.coords if a == axis), default=-1)
        if in_files or in_names > now.get(axis, 1):
            own[axis] = max(own.get(axis, 0), in_names)
    return own


def _find_saved_world(c: Checkpoint, run: Run) -> int | None:
    """Return how many ranks saved it, as other saves tell; None if they may be of an older, larger job."""
    world = run.topology.world_size
    own = completeness.list_own_ranks(c, run.expected.layouts.of(c))
    highest = max(own, default=world)
    if (run.saved or 0) > world > highest:
        return None
    return max(run.saved or 0, highest + 1) if own and highest >= world else run.saved


def _find_other_size(own: Mapping[str, int], now: Mapping[str, int], given: Mapping[str, int]) -> str:
    """Return which parallel size differs from the saved one, and how; "" if none does."""
    for axis in _PLACES:
        size = own.get(axis)
        if size and axis not in given and now.get(axis, size) != size:
            return f"saved with {axis}={size}, to be loaded with {axis}={now[axis]}"
    return ""


def _describe_mismatch(c: Checkpoint, assignment: Assignment, run: Run, saved: int | None) -> str:
    """Return the saved and the job's number of ranks, in words, if state is unread or misread; else ""."""
    layout, world = run.expected.layouts.of(c), run.topology.world_size
    if saved is None or saved == world or _is_reshardable(c, layout):
        return ""
    ranks_lack_files = any(f.code == "missing-rank" for f in assignment.findings)
    no_whole_models = world % max(1, prod(run.topology.sizes.get(axis, 1) for axis in _MODEL_PARALLEL))
    shared_out = saved > world and _is_sharded(c, layout)  # the last shared file may be lost
    if ranks_lack_files or no_whole_models or shared_out or _is_left_unread(c, assignment, world, layout):
        return f"saved by {saved} ranks, to be loaded by {world}"
    return ""


def _is_sharded(c: Checkpoint, layout: Layout) -> bool:
    """Return True if ranks share some of its state, each with a file of its own."""
    of_ranks = (layout.piece(p.piece) for p in c.parts if p.rank is not None or "dp" in dict(p.coords))
    return any(piece.readers.sharded and not piece.readers.survivable for piece in of_ranks)


def _is_left_unread(c: Checkpoint, assignment: Assignment, world: int, layout: Layout) -> bool:
    """Return True if a file that nobody loads holds state of a rank that the job lacks."""
    used = {p.path for p in assignment.parts}
    idle = (p for p in c.parts if p.path not in used and (p.rank is None or p.rank >= world))
    return any(not layout.piece(p.piece).readers.replicated_over for p in idle)


RULE = Rule(
    id="save/topology-mismatch",
    codes=("topology-mismatch",),
    effect=Effect.ASK,
    answer="start the job with the saved world size, or convert the checkpoint",
    why="""\
The save was written by another number of ranks than the job has, and its layout cannot be loaded by
another number. Loading part of it trains on part of the state.
For: Megatron's torch format, DeepSpeed's zero_pp_rank files: shards of a fixed grid.
""",
)
