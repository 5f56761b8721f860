"""How many ranks there are and how they are arranged, with the source of every number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain, islice, pairwise
from math import prod
from typing import NamedTuple

from ckpt_tools import launchers
from ckpt_tools.discovery import completeness
from ckpt_tools.discovery.completeness import left_over
from ckpt_tools.discovery.group import essential
from ckpt_tools.errors import UsageError
from ckpt_tools.findings import finding
from ckpt_tools.layouts import Layout, Layouts
from ckpt_tools.layouts.common import saved_by as in_files
from ckpt_tools.layouts.common.rank_grid import ALONE, Topology
from ckpt_tools.layouts.common.templates import COORDS
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.frozen import replace
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Known
from ckpt_tools.model.report import Level, Report
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning.writers import placed, rank_order
from ckpt_tools.reading.prefetch import prefetch
from ckpt_tools.reading.session import Session

HIGHEST = "highest rank on disk"
_SIZED = ("tp", "pp", "cp", "ep", "etp")
"""Axes whose size files or names may tell; the data parallel size is what the world size leaves over."""
_GRID = ("tp", "cp", "dp", "pp")
"""Axes whose sizes make up the world size."""
_PLACED = ("tp", "cp", "ep", "dp", "pp")
"""Axes that the rank order has to place."""
_PLACES = ("tp", "pp", "ep")
"""Axes at whose places files lie of their own."""
_FILES = 256
"""Files of one checkpoint at most that are asked."""
_NEIGHBOURS = 64
"""Files of other checkpoints at most that are asked for the rank order; the judge compares with as many."""
_ASKED = 4
"""Checkpoints at most whose files are asked how many ranks there are."""


def expert_names(
    session: Session, checkpoints: list[Checkpoint], level: Level = Level.STRUCTURE
) -> list[Checkpoint]:
    """Checkpoints with the axis ``ep`` in place of ``pp`` where names count experts and not pipeline stages.

    The last number of a name such as mp_rank_00_001 is a stage, or an expert when there is one stage: the
    file of a model tells, that of an optimizer beside it may not. A job may have had other sizes before:
    saves with other places are asked themselves.
    """
    if not any(_ambiguous(p) and _stage(p) for c in checkpoints for p in c.parts):
        return checkpoints
    places = [_places_in_names(c, session.layouts) for c in checkpoints]
    told = dict[_Places, bool | None]()
    for c, named in zip(checkpoints, places, strict=True):
        if named and told.get(named) is None:
            told[named] = _counts_experts(session, c, level)
    usual = next((said for said in told.values() if said is not None), False)

    def renamed(p: Part) -> Part:
        if not _ambiguous(p):
            return p
        return p._replace(coords=tuple(("ep" if axis == "pp" else axis, at) for axis, at in p.coords))

    def of_experts(named: _Places) -> bool:
        said = told.get(named)
        return usual if said is None else said

    return [
        replace(c, parts=tuple(map(renamed, c.parts))) if of_experts(named) else c
        for c, named in zip(checkpoints, places, strict=True)
    ]


_Places = frozenset[tuple[tuple[str, int], ...]]
"""The places of a grid that the names of a checkpoint's files show."""


def _ambiguous(p: Part) -> bool:
    """Whether its name may count experts where it seems to count stages."""
    axes = [axis for axis, _ in p.coords]
    return "pp" in axes and "ep" not in axes


def _stage(p: Part) -> int:
    return dict(p.coords).get("pp", 0)


def _places_in_names(c: Checkpoint, layouts: Layouts) -> _Places:
    """The places of a checkpoint's files that may be stages or experts; empty where there is only one."""
    found = frozenset(p.coords for p in _telling(c, layouts) if _ambiguous(p))
    return found if len(found) > 1 else frozenset()


def _counts_experts(session: Session, c: Checkpoint, level: Level) -> bool | None:
    """Whether the names of a checkpoint count experts; None where none of its files tells."""
    asked = islice((p for p in _telling(c, session.layouts) if _ambiguous(p)), _NEIGHBOURS)
    sizes = next(filter(None, (in_files.saved_sizes([session.report(p, level)]) for p in asked)), None)
    return None if sizes is None else sizes.get("pp") == 1 and sizes.get("ep", 1) > 1


def saved_sizes(session: Session, checkpoint: Checkpoint, level: Level) -> Mapping[str, int]:
    """What the files of one checkpoint say about the job that saved it; some of them are read for it."""
    return in_files.saved_sizes(
        session.report(p, level) for p in _telling(checkpoint, session.layouts)[:_ASKED]
    )


def without_leftovers(
    session: Session, checkpoints: Sequence[Checkpoint], level: Level = Level.STRUCTURE
) -> list[Checkpoint]:
    """Checkpoints without files of ranks that their job did not have, and that are older than its own: what a
    larger job left there makes no save old.
    """

    def settled(c: Checkpoint) -> Checkpoint:
        if not _has_older_ranks(c.parts):
            return c
        layout = session.layouts.of(c)
        lost = {p.path for p in left_over(c, layout, saved_sizes(session, c, level))}
        kept = tuple(p for p in c.parts if p.path not in lost)
        times = sorted(p.mtime_ns for p in essential(kept, layout))
        if not (lost and times):
            return c
        return replace(c, parts=kept, mtime_ns=times[len(times) // 2])

    return [settled(c) for c in checkpoints]


def leftovers_beside(session: Session, c: Checkpoint, expected: completeness.Expected) -> Iterator[Finding]:
    """That files of a larger job lie in the directory of a checkpoint."""
    if any(axis == "dp" for p in c.parts for axis, _ in p.coords):
        there = replace(c, parts=tuple(p for p in session.parts if p.home == c.parts[0].home))
        yield from completeness.leftovers(there, session.layouts.of(c), expected.sizes_in_files(c))


def _has_older_ranks(parts: Sequence[Part]) -> bool:
    """Whether all files from some data parallel rank on are older than all of those before it."""
    rows = sorted((dict(p.coords).get("dp", 0), p.mtime_ns) for p in parts)
    oldest = list(accumulate((at for _, at in rows), min))
    newest = list(accumulate((at for _, at in reversed(rows)), max))[::-1]
    return any(a[0] < b[0] and newest[i] < oldest[i - 1] for i, (a, b) in enumerate(pairwise(rows), 1))


class Found(NamedTuple):
    """The topology of a job, how many ranks wrote the files where these or their names tell, and warnings."""

    topology: Topology
    saved: int | None
    warnings: Sequence[Finding]


def find_topology(
    session: Session, ranked: Sequence[Checkpoint], expected: completeness.Expected, selection: Selection
) -> Found:
    """How many ranks there are and how they are arranged.

    Order of trust: flag, launcher, file content, names on disk (docs/design.md section 5); but of contents
    that contradict the names, or each other, the names are right.
    """
    first = next((c for c in ranked if c.kind is not Kind.RELEASE), ranked[0])
    files = _files_asked(session, ranked, first, selection)
    known = _sizes(first, ranked, files.reports, selection)
    sizes = {axis: size.value for axis, size in known.items()}
    _require_order(selection, sizes)
    worlds = _worlds(_newest(first, ranked), expected, files, sizes, given=bool(selection.sizes))
    known["world_size"] = world = _world_size(selection, worlds)
    topology = Topology(world.value, sizes, selection.rank_order, known)
    warnings = [*_warn_of_inferred(world, first, session)]
    if selection.rank_order == Selection().rank_order:
        order = _rank_order(session, ranked, files, selection)
        if order != topology.order:
            topology = replace(topology, order=order)
            text = f"the files were written in rank order {order}, which the plan follows"
            hint = f"nothing is wrong with them; --rank-order {order} says it without a note"
            note = finding("rank-mismatch", text, path=first.path, severity=Severity.NOTE, hint=hint)
            warnings.append(note)
    if selection.strategy_dir is not None:
        from ckpt_tools.planning.strategy import require_trusted, strategy_groups

        require_trusted(selection.strategy_dir, session.root, selection.trust)
        topology = replace(topology, strategy=strategy_groups(selection.strategy_dir, world.value))
    return Found(topology, _saved_by(first, worlds, session.layouts.of(first)), warnings)


# ---- which files are asked


class _Files(NamedTuple):
    """Files that were asked about the job that saved them, and how many ranks they say it had."""

    parts: Sequence[Part]
    reports: Sequence[Report]
    world: int | None


def _files_asked(
    session: Session, ranked: Sequence[Checkpoint], first: Checkpoint, selection: Selection
) -> _Files:
    """The newest files that can tell: the newest may be cut off, and say nothing any more. Of each piece one
    sound file is asked, further pieces only where names show places of a grid: a save may have lost them.
    """
    level, silent, asked = min(Level.STRUCTURE, selection.level), _Files([], [], None), set[str]()
    for c in ranked[:_ASKED]:
        if c.kind is Kind.RELEASE and c is not first:
            continue
        parts = [p for p in _telling(c, session.layouts) if p.piece not in asked][:_FILES]
        prefetch(session, parts, level)
        reports = [session.report(p, level) for p in parts]
        if world := _world_told(parts, reports, session.layouts.of(c).sized_by):
            return _Files(parts, reports, world)
        if not silent.parts:
            silent = _Files(parts, reports, None)
        asked.update(p.piece for p, r in zip(parts, reports, strict=True) if r.verdict is not Verdict.BROKEN)
        if asked and not any(axis in COORDS for p in first.parts for axis, _ in p.coords):
            break  # it could have told
    return silent


def _world_told(parts: Sequence[Part], reports: Sequence[Report], sizing: str) -> int | None:
    there_for_it = [r for p, r in zip(parts, reports, strict=True) if p.piece == sizing]
    return in_files.saved_world_size(reports) or in_files.said_world_size(there_for_it)


def _telling(c: Checkpoint, layouts: Layouts) -> list[Part]:
    """The files that may say how many ranks saved them, first what is there for that."""
    sizing = layouts.of(c).sized_by
    telling = [p for p in c.parts if p.role == "model" or p.piece == sizing]
    return sorted(telling, key=lambda p: p.piece != sizing)


# ---- parallel sizes


def _newest(first: Checkpoint, ranked: Sequence[Checkpoint]) -> Sequence[Checkpoint]:
    """The first, and the save of its run after it: one alone may have lost the highest places, which two do
    not.
    """
    like = (c for c in ranked if (c.kind, c.layout, c.run) == (first.kind, first.layout, first.run))
    return [first, *islice((c for c in like if c is not first), 1)]


def _sizes(
    first: Checkpoint, ranked: Sequence[Checkpoint], reports: Sequence[Report], selection: Selection
) -> dict[str, Known]:
    """The sizes of all parallel axes that anything tells; the data parallel one only a flag."""
    told = _told_world(selection)

    def of(saves: Sequence[Checkpoint]) -> dict[str, Known]:
        return {axis: _size(axis, saves, reports, selection.sizes.get(axis)) for axis in _SIZED}

    sizes = of(_newest(first, ranked))
    if told and told.value % prod(max(1, sizes[axis].value) for axis in _GRID if axis in sizes):
        sizes = of([first])  # this job has not as many places as the save before
    if dp := selection.sizes.get("dp"):
        sizes["dp"] = Known(dp, "--dp")
    return {axis: size for axis, size in sizes.items() if size.value}


def _size(axis: str, newest: Sequence[Checkpoint], reports: Sequence[Report], flag: int | None) -> Known:
    """The size of one parallel axis, 0 when nothing tells it. Names of a second save are asked where no file
    tells.
    """
    if flag:
        return Known(flag, f"--{axis}")
    told, shards = in_files.told_size(axis, reports), in_files.told_shards(axis, reports)
    asked = newest[:1] if told or shards else newest
    on_disk = Known(_named_size(axis, asked), "directory names")
    if shards and shards.value > on_disk.value:
        on_disk = shards
    return told if told and told.value >= on_disk.value else on_disk


def _named_size(axis: str, saves: Sequence[Checkpoint]) -> int:
    """How many places of an axis the names of files show, 0 where they show none."""
    return 1 + max((at for c in saves for p in c.parts for a, at in p.coords if a == axis), default=-1)


def _require_order(selection: Selection, sizes: Mapping[str, int]) -> None:
    """Raises UsageError when --rank-order leaves out an axis."""
    order = selection.rank_order.split("-")
    axis = next((axis for axis in _PLACED if axis not in order and sizes.get(axis, 1) > 1), None)
    if axis is not None:
        text = (
            f"--rank-order {selection.rank_order} does not say where {axis} is, whose size is {sizes[axis]}"
        )
        raise UsageError(text, "name every axis whose size is above 1, fastest first")


def _rank_order(session: Session, ranked: Sequence[Checkpoint], files: _Files, selection: Selection) -> str:
    """The rank order that most files show, also in other checkpoints: the newest may have been swapped."""
    rows = list(placed(list(zip(files.parts, files.reports, strict=True))))
    # of a save that has lost files, one may be left, which stands where every order has it
    places = max((prod(n for axis, n in row.sizes if axis in _PLACES) for row in rows), default=1)
    if places > 1 or len({row.rank for row in rows}) > 1:
        level, asked = min(Level.STRUCTURE, selection.level), {p.path for p in files.parts}
        telling = (p for c in ranked[:_ASKED] for p in _telling(c, session.layouts))
        others = [p for p in telling if p.path not in asked][:_NEIGHBOURS]
        prefetch(session, others, level)
        rows += placed([(p, session.report(p, level)) for p in others])
    return rank_order(rows)


# ---- the number of ranks


class _Worlds(NamedTuple):
    """How many ranks there are, as each of these tells it: None when it says nothing."""

    in_files: Known | None
    in_names: int | None
    highest: int | None
    grid: int | None


def _worlds(
    newest: Sequence[Checkpoint],
    expected: completeness.Expected,
    files: _Files,
    sizes: Mapping[str, int],
    *,
    given: bool,
) -> _Worlds:
    """What the files, their names and the parallel sizes tell of the first of the ``newest`` saves.
    ``given``: the caller has named some sizes.
    """
    first = newest[0]
    grid = prod(sizes.get(axis, 1) for axis in _GRID) if sizes else None
    told = Known(files.world, "world_size in the files") if files.world else None
    if told and grid and not given and told.value % grid:
        told = Known(grid, "parallel sizes")  # places that are there were saved by ranks
    if grid and "dp" not in sizes:
        grid *= _named_size("dp", newest) or 1
    layout = expected.layouts.of(first)
    shared = all(layout.piece(p.piece).shared for p in first.parts)
    # what all of them share was written by as many as its own names tell
    highest = completeness.expected_ranks([first], expected.layouts) if shared else expected.named
    return _Worlds(told, completeness.named_world(first), highest, grid)


def _world_size(selection: Selection, worlds: _Worlds) -> Known:
    """How many ranks there are: by a flag, by the launcher, or as the checkpoint tells.

    A rank that --replica-groups names is one of them.
    """
    if told := _told_world(selection):
        return told
    world = _first_told(worlds)
    groups = chain.from_iterable(selection.replica_groups.values())
    grouped = 1 + max(chain.from_iterable(groups), default=-1)
    return Known(grouped, "--replica-groups") if grouped > world.value else world


def _told_world(selection: Selection) -> Known | None:
    """The number of ranks by a flag or by the launcher."""
    if selection.world_size:
        return Known(selection.world_size, selection.world_from)
    started = launchers.current()
    if started and started.world_size:
        return Known(started.world_size.value, started.world_size.provenance)
    return None


def _first_told(worlds: _Worlds) -> Known:
    """The number of ranks by whoever is trusted most."""
    if worlds.in_files:
        return worlds.in_files
    if worlds.in_names:
        return Known(worlds.in_names, "names on disk")
    if worlds.highest:
        return Known(worlds.highest, HIGHEST)
    return Known(worlds.grid, "parallel sizes") if worlds.grid else Known(1, ALONE)


def _warn_of_inferred(world: Known, first: Checkpoint, session: Session) -> Iterator[Finding]:
    """That only names tell the number of ranks, where some rank has a required file of its own."""
    pieces = (session.layouts.piece_of(p) for p in first.parts)
    if world.provenance == HIGHEST and any(piece.required and not piece.shared for piece in pieces):
        text = f"{world.value} ranks, from the highest rank on disk"
        yield finding("world-size-inferred", text, path=session.root)


def _saved_by(first: Checkpoint, worlds: _Worlds, layout: Layout) -> int | None:
    """How many ranks wrote the files, as far as they or their names tell."""
    if worlds.in_files:
        return worlds.in_files.value
    if layout.committed:
        return None
    if any(layout.piece(p.piece).sharded for p in first.parts):
        # how many ranks shared them cannot be seen from the grid of their names
        return worlds.in_names or worlds.highest or None
    return worlds.in_names or worlds.highest or worlds.grid or 1
