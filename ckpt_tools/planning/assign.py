"""Assign to every rank of a job the files of a checkpoint that it would load. Pure: reads nothing itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from ckpt_tools.layouts import Piece, layouts_of
from ckpt_tools.layouts.common.saved_by import ALONE, Topology
from ckpt_tools.model import ranges
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Assignment, Load
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning.facts import Evidence, Gap, StandIn
from ckpt_tools.planning.rules.rule import finding_of
from ckpt_tools.planning.rules.save import groups_needed, missing_part, missing_rank, replica_mismatch


class Group(NamedTuple):
    """Ranks that hold the same state of one role, and the flag, file or layout that says so."""

    ranks: Sequence[int]
    source: str


class Groups:
    """Replica groups of the ranks, per role, in the order of docs/design.md section 5."""

    def __init__(self, topology: Topology, selection: Selection) -> None:
        self.topology, self.selection = topology, selection
        self._strategy = {rank: group for group in topology.strategy for rank in group}
        self._ranks_at: dict[tuple[str, ...], dict[tuple[int, ...], list[int]]] = {}  # by axes, coordinates

    def find_group(self, rank: int, piece: Piece) -> Group | None:
        """Return the replica group of a rank for a piece, and who says so; None when nobody does."""
        if piece.readers.sharded:
            return None
        groups, over = self.selection.replica_groups, piece.readers.replicated_over
        by_layout = f"the same on all {' and '.join(over)} ranks" if over else ""
        role = piece.role if piece.role in groups else ""
        if role in groups:
            members = next((group for group in groups[role] if rank in group), ())
            return Group(members, f"--replica-groups {role}".rstrip()) if members else None
        if self.selection.sizes:  # given by flag, also for a layout that does not know its own
            return Group(self._find_peers(rank, over or ("dp", "cp")), by_layout or "parallel sizes")
        if rank in self._strategy:
            return Group(self._strategy[rank], f"the strategy files in {self.selection.strategy_dir}")
        everyone = range(self.topology.world_size)
        if over:
            return Group(self._find_peers(rank, over) if self.topology.sizes else everyone, by_layout)
        return Group(everyone, "--replica-groups all") if self.selection.replicas_all else None

    def _find_peers(self, rank: int, over: tuple[str, ...]) -> Sequence[int]:
        """Return ranks with the coordinates of ``rank`` on all axes but ``over``; cached by these axes."""
        axes = self.topology.apart(over)

        def find_coordinates(r: int) -> tuple[int, ...]:
            at = self.topology.coordinates(r)
            return tuple(at.get(axis, 0) for axis in axes)

        if axes not in self._ranks_at:
            ranks_at = self._ranks_at[axes] = {}
            for r in range(self.topology.world_size):
                ranks_at.setdefault(find_coordinates(r), []).append(r)
        return self._ranks_at[axes][find_coordinates(rank)]


Bad = Mapping[str, Sequence[Finding]]
"""The findings on each part that is broken or unreadable, by its path."""


def assign(checkpoint: Checkpoint, groups: Groups, bad: Bad, evidence: Evidence) -> Assignment:
    """Return for each rank and role a part: its own, else a proven one of its replica group's sound ranks."""
    work = _Work(checkpoint, groups, bad, evidence)
    work.assign_shared()
    work.assign_roles()
    gaps = [replace(gap, ranks=ranges.ranges(ranks)) for gap, ranks in work.gaps.items()]
    ungrouped = [finding_of(groups_needed.RULE, hit) for hit in groups_needed.check(gaps)]
    lost = [finding_of(missing_rank.RULE, hit) for hit in missing_rank.find_unusable(gaps)]
    found = (*ungrouped, *dict.fromkeys(work.findings), *lost)
    if not (work.shared or work.loads or found):
        unknown = [p for p in checkpoint.parts if p.path in bad]
        found = (missing_part.describe_nothing_loaded(checkpoint, unknown),)
    groupless = sorted(rank for gap, ranks in work.gaps.items() if gap.asked for rank in ranks)
    return Assignment(work.loads, work.shared, found, tuple(groupless))


class _Role:
    """The files of one role: files that name a rank, and files that name coordinates of the grid."""

    def __init__(self, parts: Sequence[Part], order: Mapping[str, int]) -> None:
        self.parts, self._order = parts, order
        self.by_rank = dict[int, list[Part]]()
        self._by_coords = dict[tuple[str, ...], dict[tuple[int, ...], list[tuple[int, Part]]]]()
        for i, p in enumerate(parts):
            if p.rank is not None:
                self.by_rank.setdefault(p.rank, []).append(p)
            elif p.coords:
                axes, at = zip(*p.coords, strict=True)
                self._by_coords.setdefault(axes, {}).setdefault(at, []).append((i, p))
        self.anywhere = [p for p in parts if p.rank is None and not p.coords]

    def find_own_files(self, rank: int, topology: Topology) -> list[Part]:
        """Return the files that name a rank, else the files that name its coordinates, the best first."""

        def precedence(p: Part) -> tuple[int, bool, int]:
            coords = dict(p.coords)
            on_another_node = coords.get("node", rank) != rank
            return self._order[p.piece], on_another_node, -p.mtime_ns if "world" in coords else 0

        if rank in self.by_rank:
            return sorted(self.by_rank[rank], key=precedence)
        found = list[tuple[int, Part]]()
        own = topology.coordinates(rank) if self._by_coords else {}
        for axes, parts in self._by_coords.items():
            found += parts.get(tuple(own.get(axis, -1) for axis in axes), ())
        return [*(self.anywhere if rank == 0 else ()), *(p for _, p in sorted(found))]


class _Work:
    """One assignment in progress: files that ranks load, findings, and ranks without a file (``gaps``)."""

    def __init__(self, checkpoint: Checkpoint, groups: Groups, bad: Bad, evidence: Evidence) -> None:
        self.checkpoint, self.groups, self.bad, self.evidence = checkpoint, groups, bad, evidence
        self.topology, self.selection = groups.topology, groups.selection
        self.layouts, self.faults = layouts_of(self.selection), self.selection.fault_ranks
        self.layout = self.layouts.of(checkpoint)
        self.order = {piece.name: i for i, piece in enumerate(self.layout.pieces)}
        self.dying = checkpoint.kind is Kind.DYING_GASP
        ranks, world = self.selection.ranks, self.topology.world_size
        self.wanted: Iterable[int] = range(world) if ranks is None else ranks
        self.shared: list[Load] = []
        self.loads: dict[int, list[Load]] = {}
        self.findings: list[Finding] = []
        self.gaps: dict[Gap, list[int]] = defaultdict(list)

    def _add_findings(self, parts: Iterable[Part]) -> None:
        """Add why parts are bad to the findings of the assignment."""
        for p in parts:
            self.findings += (f.at(p.path) for f in self.bad.get(p.path, ()))

    def assign_shared(self) -> None:
        """Assign the files that all ranks load; of copies (``single``) one, and a rank's own to it alone."""
        world = self.topology.provenance.get("world_size")
        own = [] if world is None or world.provenance == ALONE else self._find_files_of_own_ranks()
        left_out = {p.path for p in own}.union(self.layout.unread(self.checkpoint))
        copies = dict[str, list[Part]]()
        for p in sorted(self.checkpoint.parts, key=lambda p: (self.order[p.piece], p.path)):
            piece = self.layout.piece(p.piece)
            if not (piece.readers.shared and piece.loaded) or p.path in left_out:
                continue
            if piece.readers.single:
                copies.setdefault(p.role, []).append(p)
            elif p.path in self.bad:
                self._add_findings([p])
            else:
                self.shared.append(Load(p))
        for parts in copies.values():
            self._assign_first_good(parts)
        if own:
            self._assign_own_files(own)

    def _assign_first_good(self, copies: Sequence[Part]) -> None:
        """Assign to all ranks the first good file of several copies; add the findings if none is good."""
        good = next((p for p in copies if p.path not in self.bad), None)
        if good is None:
            self._add_findings(copies)
        else:
            why = f"{copies[0].path.rpartition('/')[2]} is not usable; this is a copy"
            self.shared.append(Load(good, reason="" if good is copies[0] else why))

    def _find_files_of_own_ranks(self) -> list[Part]:
        """Return files of a shared set that hold a rank's own state and that resuming can do without."""
        pieces = [piece for piece in self.layout.pieces if piece.readers.shared and piece.readers.sharded]
        roles = {piece.role for piece in pieces if piece.readers.survivable}
        return [p for p in self.checkpoint.parts if p.role in roles]

    def _assign_own_files(self, parts: Sequence[Part]) -> None:
        """Assign to each rank its own file of a shared set. Ranks that the saving job lacked have none."""
        world, by_rank = self.topology.world_size, dict[int, list[Part]]()
        for p in parts:
            if p.rank is not None or world == 1:
                by_rank.setdefault(p.rank or 0, []).append(p)
        for rank in self.wanted:
            mine = by_rank.get(rank, ())
            self.loads[rank] = [Load(p) for p in mine if p.path not in self.bad]
            self._add_findings(mine)
        highest = max(by_rank, default=-1)
        if new := ranges.ranges(rank for rank in self.wanted if rank > highest):
            gap = Gap(self.checkpoint.path, parts[0].role, world=world, ranks=new)
            self.findings.append(missing_rank.describe_new_ranks(gap))

    def assign_roles(self) -> None:
        """Assign a file of every role that ranks load one by one, in the order of their layout's pieces."""
        by_role = dict[str, list[Part]]()
        for p in sorted(self.checkpoint.parts, key=lambda p: self.order[p.piece]):
            piece = self.layout.piece(p.piece)
            if piece.loaded and not piece.readers.shared:
                by_role.setdefault(p.role, []).append(p)
        for name, parts in by_role.items():
            role = _Role(parts, self.order)
            for rank in self.wanted:
                self._assign_to_rank(rank, name, role)

    def _assign_to_rank(self, rank: int, name: str, role: _Role) -> None:
        """Assign to a rank its file of the role ``name``; else note the gap, and what is wrong."""
        own = role.find_own_files(rank, self.topology)
        piece = self.layout.piece((own or role.parts)[0].piece)
        group = self.groups.find_group(rank, piece)
        if load := self._find_load(rank, role, own, group):
            self.loads.setdefault(rank, []).append(load)
        elif piece.required or own:
            must_ask = self.layout.complete.by_name and not own and group is None
            source, world = group.source if group else "", self.topology.world_size
            self.gaps[Gap(self.checkpoint.path, name, world, source, bool(own), must_ask)].append(rank)
            for p in own:
                if self.dying and rank in self.faults:
                    self.findings.append(groups_needed.describe_failed(rank, p.path))
                self._add_findings([p])

    def _find_load(self, rank: int, role: _Role, own: Sequence[Part], group: Group | None) -> Load | None:
        """Return the file that a rank loads: its own, else one of its replica group that did not fail."""
        failed = rank in self.faults
        mine = [p for p in own if p.path not in self.bad and not (failed and self.dying)]
        if group and (failed or not mine):
            parts = self._find_members(rank, role, own, group)
            if mine:
                parts = [p for p in parts if p.rank not in self.faults]
            if load := self._find_substitute(rank, group, mine, parts):
                return load
        return Load(mine[0]) if mine else None

    def _find_members(self, rank: int, role: _Role, own: Sequence[Part], group: Group) -> list[Part]:
        """Return good files of the group's other ranks, nearest first, then files that name no rank."""
        smaller, larger = sorted([group.ranks, role.by_rank], key=len)  # the group may be a whole large job
        others = [r for r in smaller if r in larger and r != rank and not (self.dying and r in self.faults)]
        others.sort(key=lambda r: (r in self.faults, abs(r - rank), r))
        parts = [p for r in others for p in role.by_rank[r]]
        parts += (p for p in role.anywhere if p not in own)
        return [p for p in parts if p.path not in self.bad]

    def _find_substitute(self, rank: int, group: Group, mine: list[Part], parts: list[Part]) -> Load | None:
        """Return the first of ``parts`` that may stand in for the rank; ``mine`` are its own good files."""
        given, strict = self.selection.replica_groups or self.topology.strategy, self.selection.strict
        for part in parts:
            piece = self.layouts.piece_of(part)
            by_layout = bool(piece.readers.replicated_over) and not given
            facts = StandIn(rank, part, piece, group.source, self.topology, self.evidence, by_layout, strict)
            reason, finding = replica_mismatch.weigh(facts)
            self.findings += [finding] if finding else []
            if reason:
                others = [p for p in (*mine, *parts) if p is not part and p.piece == part.piece]
                reason, finding = replica_mismatch.compare_bytes(facts, reason, others)
                self.findings += [finding] if finding else []
                return Load(part, True, reason) if reason else None
        return None
