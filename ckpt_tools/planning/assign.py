"""A checkpoint and the replica groups of a job in, the file that every rank would load out. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from ckpt_tools.findings import finding
from ckpt_tools.layouts import Layout, layouts_of
from ckpt_tools.layouts.common.rank_grid import ALONE, Topology
from ckpt_tools.model import ranges
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.frozen import replace
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Assignment, Load
from ckpt_tools.planning.replicas import Group, Groups
from ckpt_tools.planning.substitutes import Evidence, Substitutes

Bad = Mapping[str, Sequence[Finding]]
"""The paths of parts that are broken or unreadable, with why."""


def assign(checkpoint: Checkpoint, groups: Groups, bad: Bad, evidence: Evidence) -> Assignment:
    """For every rank and role one eligible part: its own, else a proven member of its replica group.

    Parts of fault ranks are never eligible in dying-gasp checkpoints; elsewhere a replica is preferred to
    them.
    """
    layout = layouts_of(groups.selection).of(checkpoint)
    work = _Work(checkpoint, groups, bad, evidence)
    world = groups.topology.provenance.get("world_size")
    own = () if world is None or world.provenance == ALONE else _of_single_ranks(checkpoint, layout)
    shared = _shared(checkpoint, layout, bad, own)
    if own:
        work.assign_own(own, checkpoint.path)
    for role in _roles(checkpoint, layout):
        work.assign(role)
    without = _without_files(work.gaps, groups.topology.world_size, checkpoint.path)
    found = (*without.asked, *dict.fromkeys((*shared.findings, *work.findings)), *without.lost)
    if not (shared.loads or work.loads or found):
        found = (_nothing_loaded(checkpoint, bad),)
    return Assignment(work.loads, shared.loads, found, without.groupless)


def _nothing_loaded(checkpoint: Checkpoint, bad: Bad) -> Finding:
    """Why a checkpoint has no file for any rank, although nothing is wrong with those that are there."""
    if not (unknown := [p for p in checkpoint.parts if p.path in bad]):
        return finding("missing-part", "it has no file that is loaded", path=checkpoint.path)
    name = unknown[0].path.rpartition("/")[2]
    text = f"{name} is called as a checkpoint, and is in no format that ckpt knows"
    hint = (
        "if it is one, describe all files of a save in ckpt.toml (docs/adding-a-layout.md):"
        " they are then judged by their names and sizes; if it is none, say --exclude GLOB"
    )
    return finding("no-layout", text, path=checkpoint.path, hint=hint)


class _Shared(NamedTuple):
    """What all ranks load, and what is wrong with the rest of it."""

    loads: Sequence[Load]
    findings: Sequence[Finding]


def _of_single_ranks(checkpoint: Checkpoint, layout: Layout) -> Sequence[Part]:
    """The files of a shared set that each rank has of its own (random numbers): only the rank in their names
    opens them, and one without a rank only a job of one.
    """
    roles = {piece.role for piece in layout.pieces if piece.shared and piece.sharded and piece.survivable}
    return [p for p in checkpoint.parts if p.role in roles]


def _shared(checkpoint: Checkpoint, layout: Layout, bad: Bad, own: Sequence[Part]) -> _Shared:
    """Every file that all ranks load must be good; of copies of each other one is enough. Those of ``own``
    are of single ranks.
    """
    order = _order(layout)
    loads, found, copies = list[Load](), list[Finding](), dict[str, list[Part]]()
    others = {p.path for p in own} | layout.unread(checkpoint)
    for p in sorted(checkpoint.parts, key=lambda p: (order[p.piece], p.path)):
        piece = layout.piece(p.piece)
        if not (piece.shared and piece.loaded) or p.path in others:
            continue
        if piece.single:
            copies.setdefault(p.role, []).append(p)
        elif p.path in bad:
            found += _located(p, bad)
        else:
            loads.append(Load(p))
    for parts in copies.values():
        load = _one_of(parts, bad)
        if load is not None:
            loads.append(load)
        else:
            found += chain.from_iterable(_located(p, bad) for p in parts)
    return _Shared(loads, found)


def _one_of(copies: Sequence[Part], bad: Bad) -> Load | None:
    """The first good one of files that are copies of each other."""
    good = next((p for p in copies if p.path not in bad), None)
    if good is None:
        return None
    if good is copies[0]:
        return Load(good)
    name = copies[0].path.rpartition("/")[2]
    return Load(good, reason=f"{name} is not usable; this is a copy")


def _order(layout: Layout) -> Mapping[str, int]:
    """The pieces of a layout by name, in the order in which it lists them."""
    return {piece.name: i for i, piece in enumerate(layout.pieces)}


def _located(p: Part, bad: Bad) -> list[Finding]:
    """What is wrong with a part, each with its path."""
    return [f if f.path else replace(f, path=p.path) for f in bad.get(p.path, ())]


class _Gap(NamedTuple):
    """Why ranks have no file of a role.

    Who their replica group is, whether files of their own are not usable, or nobody knows of a group.
    """

    role: str
    group: str
    own: bool
    groupless: bool = False


class _Role:
    """The files of one role: those that name a rank, and those that stand at a place of the grid."""

    def __init__(self, name: str, parts: Sequence[Part], order: Mapping[str, int]) -> None:
        self.name, self.parts, self._order = name, parts, order
        self.by_rank: dict[int, list[Part]] = {}
        for p in parts:
            if p.rank is not None:
                self.by_rank.setdefault(p.rank, []).append(p)
        self._at_places = _Places([p for p in parts if p.rank is None])
        self.anywhere = self._at_places.anywhere

    def of(self, rank: int, topology: Topology) -> list[Part]:
        """A rank's own files, its own copy first, and of two (a leftover of another world size) the newer."""
        if rank not in self.by_rank:
            return self._at_places.of(rank, topology)

        def precedence(p: Part) -> tuple[int, bool, int]:
            coords = dict(p.coords)
            on_another_node = coords.get("node", rank) != rank
            age = -p.mtime_ns if "world" in coords else 0
            return self._order[p.piece], on_another_node, age

        return sorted(self.by_rank[rank], key=precedence)


class _Numbered(NamedTuple):
    """A part and its number among those of its role."""

    i: int
    part: Part


class _Places:
    """Parts that no rank is named for, by their places in the grid."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.anywhere = [p for p in parts if not p.coords]
        self._by_axes: dict[tuple[str, ...], dict[tuple[int, ...], list[_Numbered]]] = {}
        for i, p in enumerate(parts):
            if p.coords:
                axes, at = zip(*p.coords, strict=True)
                self._by_axes.setdefault(axes, {}).setdefault(at, []).append(_Numbered(i, p))

    def of(self, rank: int, topology: Topology) -> list[Part]:
        """Those at the place of a rank, in their order; what has no place belongs to the first rank."""
        found = list[_Numbered]()
        where = topology.coordinates(rank) if self._by_axes else {}
        for axes, at_places in self._by_axes.items():
            found += at_places.get(tuple(where.get(axis, -1) for axis in axes), ())
        found.sort(key=lambda row: row.i)
        return [*(self.anywhere if rank == 0 else ()), *(row.part for row in found)]


def _roles(checkpoint: Checkpoint, layout: Layout) -> list[_Role]:
    """The parts that ranks load one by one, by role, in the order of their layout's pieces."""
    by_role = dict[str, list[Part]]()
    order = _order(layout)
    for p in sorted(checkpoint.parts, key=lambda p: order[p.piece]):
        piece = layout.piece(p.piece)
        if piece.loaded and not piece.shared:
            by_role.setdefault(p.role, []).append(p)
    return [_Role(role, parts, order) for role, parts in by_role.items()]


class _Wanted(NamedTuple):
    """A rank that needs a file of a role: its own files, good or not, and its replica group."""

    rank: int
    role: _Role
    own: Sequence[Part]
    group: Group | None


class _Work:
    """One assignment under way: what ranks load, what was found, and the ranks without a file by reason."""

    def __init__(self, checkpoint: Checkpoint, groups: Groups, bad: Bad, evidence: Evidence) -> None:
        self.layout = layouts_of(groups.selection).of(checkpoint)
        self.dying = checkpoint.kind is Kind.DYING_GASP
        self.groups, self.bad, self.faults = groups, bad, groups.selection.fault_ranks
        self.substitutes = Substitutes(groups, evidence)
        self.loads: dict[int, list[Load]] = {}
        self.findings: list[Finding] = []
        self.gaps: dict[_Gap, list[int]] = {}

    def assign_own(self, parts: Sequence[Part], path: str) -> None:
        """Its own file of a shared set for every rank that is asked for, if it has one. Ranks beyond those of
        the job that saved it have none.
        """
        world, by_rank = self.groups.topology.world_size, dict[int, list[Part]]()
        for p in parts:
            if p.rank is not None or world == 1:
                by_rank.setdefault(p.rank or 0, []).append(p)
        for rank in self._wanted():
            mine = by_rank.get(rank, ())
            self.loads[rank] = [Load(p) for p in mine if p.path not in self.bad]
            self.findings += chain.from_iterable(_located(p, self.bad) for p in mine)
        if new := ranges.ranges([rank for rank in self._wanted() if rank > max(by_rank, default=-1)]):
            without = ranges.ranks(new, world)
            text = f"there is no {parts[0].role} file of {without}: random numbers begin anew there"
            hint = "nothing has to be done if the job has more ranks than the one that saved it"
            found = finding("missing-rank", text, severity=Severity.WARNING, path=path, hint=hint, ranks=new)
            self.findings.append(found)

    def _wanted(self) -> Iterable[int]:
        wanted = self.groups.selection.ranks
        return range(self.groups.topology.world_size) if wanted is None else wanted

    def assign(self, role: _Role) -> None:
        """A file of one role for every rank that is asked for."""
        topology = self.groups.topology
        for rank in self._wanted():
            own = role.of(rank, topology)
            piece = self.layout.piece((own or role.parts)[0].piece)
            group = self.groups.of(rank, piece)
            load = self._load(_Wanted(rank, role, own, group))
            if load is not None:
                self.loads.setdefault(rank, []).append(load)
            elif piece.required or own:
                groupless = self.layout.committed and not own and group is None
                gap = _Gap(role.name, group.source if group else "", bool(own), groupless)
                self.gaps.setdefault(gap, []).append(rank)
                self._blame(rank, own)

    def _load(self, wanted: _Wanted) -> Load | None:
        """The file that a rank loads: its own, else one of its replica group."""
        failed = wanted.rank in self.faults
        mine = [p for p in wanted.own if p.path not in self.bad and not (failed and self.dying)]
        if mine and not failed:
            return Load(mine[0])
        load = self._substitute(wanted, wanted.group, mine) if wanted.group else None
        if load is None and mine:
            return Load(mine[0])
        return load

    def _substitute(self, wanted: _Wanted, group: Group, mine: Sequence[Part]) -> Load | None:
        """A file of the group that nothing contradicts, and its proof; ``mine`` are good ones of its own."""
        parts = self._good_members(wanted, group)
        if mine:  # of a rank that failed: only one that did not is better
            parts = [p for p in parts if p.rank not in self.faults]
        found = self.substitutes.first(wanted.rank, group, parts)
        self.findings += found.findings
        if found.load is None:
            return None
        chosen = found.load.part
        others = [p for p in (*mine, *parts) if p is not chosen and p.piece == chosen.piece]
        proven = self.substitutes.compared(found.load, others)
        self.findings += proven.findings
        return proven.load

    def _good_members(self, wanted: _Wanted, group: Group) -> list[Part]:
        """Good files of the other ranks of a group, the nearest first, and then those of no rank or place."""
        by_rank = wanted.role.by_rank
        parts = [p for rank in self._others(wanted, group) for p in by_rank[rank]]
        parts += (p for p in wanted.role.anywhere if p not in wanted.own)
        return [p for p in parts if p.path not in self.bad]

    def _others(self, wanted: _Wanted, group: Group) -> list[int]:
        """The other ranks of a group that have files, nearest first, those that failed last.

        Without these in a save of the job that died of it.
        """
        here, by_rank = wanted.rank, wanted.role.by_rank
        if len(group.ranks) <= len(by_rank):
            others = [rank for rank in group.ranks if rank in by_rank and rank != here]
        else:  # the group may be a whole large job
            others = [rank for rank in by_rank if rank in group.ranks and rank != here]
        if self.dying:
            others = [rank for rank in others if rank not in self.faults]
        return sorted(others, key=lambda rank: (rank in self.faults, abs(rank - here), rank))

    def _blame(self, rank: int, own: Sequence[Part]) -> None:
        """What is wrong with the files of a rank that has none to load."""
        for p in own:
            if self.dying and rank in self.faults:
                text = f"rank {rank} failed while this checkpoint was saved, so its file is not trusted"
                self.findings.append(finding("fault-rank", text, path=p.path))
            self.findings += _located(p, self.bad)


class _Without(NamedTuple):
    """Ranks without a file: those of which no replica group is known, what to say of them, and of others."""

    groupless: tuple[int, ...]
    asked: Sequence[Finding]
    lost: Sequence[Finding]


def _without_files(gaps: Mapping[_Gap, Sequence[int]], world: int, path: str) -> _Without:
    """All ranks without a file, in one finding for each reason; what follows from damaged files is last."""
    groupless, asked, lost = list[int](), list[Finding](), list[Finding]()
    for gap, some in gaps.items():
        of = ranges.ranges(some)
        if gap.groupless:
            groupless += some
            asked.append(finding("replica-groups-needed", _unknown(of, world), path=path, ranks=of))
        else:
            text = _unusable(gap, of, world)
            lost.append(finding("missing-rank", text, path=path, ranks=of, follows=gap.own))
    return _Without(tuple(sorted(groupless)), asked, sorted(lost, key=lambda f: f.follows))


def _unknown(of: ranges.Ranges, world: int) -> str:
    unknown = "and no rank is known to hold the same state"
    if ranges.size(of) == 1:
        return f"{ranges.ranks(of, world)} has no file in this checkpoint, {unknown}"
    return f"there is no file in this checkpoint, {unknown}, for {ranges.ranks(of, world)}"


def _unusable(gap: _Gap, of: ranges.Ranges, world: int) -> str:
    same = f"a rank with the same state ({gap.group})"
    if ranges.size(of) == 1:
        others = f", nor has {same}" if gap.group else ""
        return f"{ranges.ranks(of, world)} has no usable {gap.role} file{others}"
    others = f", nor one of {same}," if gap.group else ""
    return f"there is no usable {gap.role} file{others} for {ranges.ranks(of, world)}"
