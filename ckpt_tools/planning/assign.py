"""A checkpoint and a topology in, a load plan out: which file every rank loads, whose it is, and what proves a substitute. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ckpt_tools.findings import finding
from ckpt_tools.layouts import BY_NAME
from ckpt_tools.layouts.common.rank_grid import Topology
from ckpt_tools.model import ranges
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import FileLoad, RankLoad
from ckpt_tools.model.report import Level, Report
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning.replicas import Differences, Evidence, Groups, Load, Signature, proven, substitute


@dataclass
class Assignment:
    """Which parts every rank would load, and which all of them do (``shared``). ``findings`` of severity error make the candidate unusable; ``groupless`` ranks have neither a file nor a group."""

    loads: dict[int, list[Load]] = field(default_factory=dict)
    shared: list[Load] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    groupless: list[int] = field(default_factory=list)

    @property
    def parts(self) -> list[Part]:
        """Every part that some rank loads, once."""
        return list(
            {
                load.part.path: load.part for loads in (self.shared, *self.loads.values()) for load in loads
            }.values()
        )


def assign(
    checkpoint: Checkpoint,
    topology: Topology,
    selection: Selection,
    bad: Mapping[str, Sequence[Finding]],
    signature: Signature,
    evidence: Evidence,
    differences: Differences | None = None,
) -> Assignment:
    """For every rank and role one eligible part: its own, else a proven member of its replica group.

    ``bad`` are parts already found broken or unreadable, with why. Parts of fault ranks are never eligible in dying-gasp checkpoints;
    elsewhere a replica is preferred to them. With ``differences`` a substitute's tensors are compared with those of another member of its group.
    """
    out = Assignment()
    _assign_shared(checkpoint, bad, out)
    work = _Work(
        checkpoint,
        topology,
        selection,
        bad,
        signature,
        evidence,
        differences,
        out,
        Groups(topology, selection),
    )
    for role, parts in _roles(checkpoint).items():
        work.assign(role, parts)
    work.explain()
    if not out.parts and not out.findings:
        out.findings.append(finding("missing-part", "it has no file that is loaded", path=checkpoint.path))
    return out


def _roles(checkpoint: Checkpoint) -> dict[str, list[Part]]:
    """The parts that ranks load one by one, by role, in the order of their layout's pieces."""
    layout, roles = BY_NAME[checkpoint.layout], dict[str, list[Part]]()
    order = {piece.name: i for i, piece in enumerate(layout.pieces)}
    for p in sorted(checkpoint.parts, key=lambda p: order[p.piece]):
        piece = layout.piece(p.piece)
        if piece.loaded and not piece.shared:
            roles.setdefault(p.role, []).append(p)
    return roles


class _Gap(NamedTuple):
    """Why ranks have no file of a role: who their replica group is, whether files of their own are not usable, or nobody knows of a group."""

    role: str
    group: str
    own: bool
    groupless: bool = False


class _Placed:
    """Parts that no rank is named for, by their places in the grid: whoever asks for one need not go through all."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.anywhere = [p for p in parts if not p.coords]
        self.by_axes: dict[tuple[str, ...], dict[tuple[int, ...], list[tuple[int, Part]]]] = {}
        for i, p in enumerate(parts):
            if p.coords:
                axes, at = zip(*p.coords, strict=True)
                self.by_axes.setdefault(axes, {}).setdefault(at, []).append((i, p))

    def of(self, rank: int, where: Mapping[str, int]) -> list[Part]:
        """Those of a rank that stands at ``where``, in the order of the parts; what has no place belongs to the first rank."""
        found = [
            row
            for axes, known in self.by_axes.items()
            for row in known.get(tuple(where.get(a, -1) for a in axes), ())
        ]
        return [*(self.anywhere if rank == 0 else ()), *(p for _, p in sorted(found, key=lambda row: row[0]))]


@dataclass
class _Work:
    """One assignment under way: as for ``assign``, and for each reason the ranks that have no file."""

    checkpoint: Checkpoint
    topology: Topology
    selection: Selection
    bad: Mapping[str, Sequence[Finding]]
    signature: Signature
    evidence: Evidence
    differences: Differences | None
    out: Assignment
    groups: Groups
    gaps: dict[_Gap, list[int]] = field(default_factory=dict)

    @property
    def dying(self) -> bool:
        return self.checkpoint.kind is Kind.DYING_GASP

    def assign(self, role: str, parts: Sequence[Part]) -> None:
        """A file of one role for every rank."""
        layout, by_rank = BY_NAME[self.checkpoint.layout], dict[int, list[Part]]()
        order = {piece.name: i for i, piece in enumerate(layout.pieces)}
        for p in parts:
            if p.rank is not None:
                by_rank.setdefault(p.rank, []).append(p)
        placed = [p for p in parts if p.rank is None]
        at_place = _Placed(placed)
        for rank in range(self.topology.world_size) if self.selection.ranks is None else self.selection.ranks:
            where = self.topology.coordinates(rank) if placed else {}
            # a rank's own copy first, and of two files of one rank (a leftover of another world size) the newer
            own = sorted(
                by_rank.get(rank, []),
                key=lambda p: (order[p.piece], dict(p.coords).get("node", rank) != rank, _world_age(p)),
            ) or at_place.of(rank, where)
            piece = layout.piece((own or parts)[0].piece)
            group = self.groups.of(rank, piece)
            load = self._load(rank, own, by_rank, placed, group)
            if load is not None:
                self.out.loads.setdefault(rank, []).append(load)
            elif piece.required or own:
                groupless = layout.committed and not own and group is None
                self.gaps.setdefault(_Gap(role, group[1] if group else "", bool(own), groupless), []).append(
                    rank
                )
                self._blame(rank, [] if groupless else own)

    def _load(
        self,
        rank: int,
        own: Sequence[Part],
        by_rank: Mapping[int, Sequence[Part]],
        placed: Sequence[Part],
        group: tuple[Sequence[int], str] | None,
    ) -> Load | None:
        """The file that a rank loads: its own, else one of its replica group."""
        faults, bad = self.selection.fault_ranks, self.bad
        mine = [p for p in own if p.path not in bad and not (self.dying and rank in faults)]
        if mine and rank not in faults:
            return Load(mine[0], False)
        substitutes: list[Part] = []
        if group:
            members = group[0] if len(group[0]) < len(by_rank) else [m for m in by_rank if m in group[0]]
            near = sorted((m in faults, abs(m - rank), m) for m in members if m != rank and m in by_rank)
            substitutes = [
                p
                for failed, _, m in near
                if not (self.dying and failed)
                for p in by_rank[m]
                if p.path not in bad
            ]
            substitutes += [p for p in placed if not p.coords and p not in own and p.path not in bad]
            substitutes = [p for p in substitutes if not (mine and p.rank in faults)]
        return (self._stand_in(rank, mine, substitutes, group) if substitutes else None) or (
            Load(mine[0], False) if mine else None
        )

    def _stand_in(
        self, rank: int, mine: Sequence[Part], parts: Sequence[Part], group: tuple[Sequence[int], str] | None
    ) -> Load | None:
        """A part that nothing contradicts, and its proof."""
        piece_of, found = BY_NAME[self.checkpoint.layout].piece, self.out.findings
        load = substitute(
            rank, parts, piece_of, group, self.topology, self.selection, self.signature, self.evidence, found
        )
        if load is None or not load.substituted or self.differences is None:
            return load
        others = [p for p in [*mine, *parts] if p is not load.part and p.piece == load.part.piece]
        return proven(load, others, self.differences, self.selection, found)

    def _blame(self, rank: int, own: Sequence[Part]) -> None:
        """What is wrong with the files of a rank that has none to load."""
        for p in own:
            if self.dying and rank in self.selection.fault_ranks:
                text = f"rank {rank} failed while this checkpoint was saved, so its file is not trusted"
                self.out.findings.append(finding("fault-rank", text, path=p.path))
            self.out.findings += _located(p, self.bad)

    def explain(self) -> None:
        """Every damaged file once, then all ranks that have none, however many, and last the ranks for which that follows."""
        out, world, path = self.out, self.topology.world_size, self.checkpoint.path
        asked, lost = list[Finding](), list[Finding]()
        for gap, some in self.gaps.items():
            of = ranges.ranges(some)
            if gap.groupless:
                out.groupless += some
                asked.append(finding("replica-groups-needed", _unknown(of, world), path=path, ranks=of))
            else:
                lost.append(
                    finding("missing-rank", _without(gap, of, world), path=path, ranks=of, follows=gap.own)
                )
        out.groupless.sort()
        out.findings = [*asked, *dict.fromkeys(out.findings), *sorted(lost, key=lambda f: f.follows)]


def _unknown(of: ranges.Ranges, world: int) -> str:
    if ranges.size(of) == 1:
        return (
            f"{ranges.ranks(of, world)} has no file in this checkpoint, and no replica group is known for it"
        )
    return f"there is no file in this checkpoint, and no known replica group, for {ranges.ranks(of, world)}"


def _without(gap: _Gap, of: ranges.Ranges, world: int) -> str:
    if ranges.size(of) == 1:
        others = f", nor has another member of its replica group ({gap.group})" if gap.group else ""
        return f"{ranges.ranks(of, world)} has no usable {gap.role} file{others}"
    others = f", nor in their replica groups ({gap.group})," if gap.group else ""
    return f"there is no usable {gap.role} file{others} for {ranges.ranks(of, world)}"


def _world_age(p: Part) -> int:
    return -p.mtime_ns if any(a == "world" for a, _ in p.coords) else 0


def _assign_shared(checkpoint: Checkpoint, bad: Mapping[str, Sequence[Finding]], out: Assignment) -> None:
    """Every file that all ranks load must be good; of copies of each other one is enough."""
    layout = BY_NAME[checkpoint.layout]
    order = [piece.name for piece in layout.pieces]
    copies: dict[str, list[Part]] = {}
    for p in sorted(checkpoint.parts, key=lambda p: (order.index(p.piece), p.path)):
        piece = layout.piece(p.piece)
        if not (piece.shared and piece.loaded):
            continue
        if piece.single:
            copies.setdefault(p.role, []).append(p)
        elif p.path in bad:
            out.findings += _located(p, bad)
        else:
            out.shared.append(Load(p, False))
    for parts in copies.values():
        good = [p for p in parts if p.path not in bad]
        if good:
            out.shared.append(
                Load(
                    good[0],
                    False,
                    ""
                    if good[0] is parts[0]
                    else f"{parts[0].path.rpartition('/')[2]} is not usable; this is a copy",
                )
            )
        else:
            out.findings += [f for p in parts for f in _located(p, bad)]


def _located(p: Part, bad: Mapping[str, Sequence[Finding]]) -> list[Finding]:
    return [
        f if f.path else finding(f.code, f.message, offset=f.offset, severity=f.severity, path=p.path)
        for f in bad.get(p.path, ())
    ]


def mismatched(
    checkpoint: Checkpoint, assignment: Assignment, topology: Topology, saved: int | None
) -> Finding | None:
    """``topology-mismatch`` when another number of ranks would leave saved state unread or load it wrongly."""
    if saved is None or saved == topology.world_size or BY_NAME[checkpoint.layout].reshardable:
        return None
    layout, used = BY_NAME[checkpoint.layout], {p.path for p in assignment.parts}
    idle = [
        p
        for p in checkpoint.parts
        if p.path not in used and (p.rank is None or p.rank >= topology.world_size)
    ]
    unread = [p for p in idle if not layout.piece(p.piece).replicated_over]
    short = any(f.code == "missing-rank" for f in assignment.findings)
    ragged = topology.world_size % max(
        1, topology.sizes.get("tp", 1) * topology.sizes.get("pp", 1) * topology.sizes.get("cp", 1)
    )
    if unread or short or ragged:
        return finding(
            "topology-mismatch",
            f"saved by {saved} ranks, to be loaded by {topology.world_size}",
            path=checkpoint.path,
        )
    return None


def files(loads: Iterable[Load], reports: Mapping[str, Report]) -> tuple[FileLoad, ...]:
    """The loads of one rank with what verification saw of each file."""
    out = []
    for load in loads:
        p, r = load.part, reports.get(load.part.path)
        level, coverage = (r.level, r.coverage) if r else (Level.PRESENCE, 0.0)
        out.append(
            FileLoad(
                p.role,
                p.path,
                p.size,
                p.mtime_ns,
                level,
                coverage,
                p.rank,
                load.substituted and p.rank is not None,
                None,
                load.reason,
            )
        )
    return tuple(out)


def fingerprint(root: str, ranks: Sequence[RankLoad], shared: Sequence[FileLoad] = ()) -> str:
    """XXH3-128 (hex) over the sorted (path below ``root``, size, mtime_ns) of the planned files and the rank map."""
    import xxhash

    digest = xxhash.xxh3_128()
    entries = {
        (f.path.removeprefix(root).lstrip("/"), f.size, f.mtime_ns) for r in ranks for f in r.files
    } | {(f.path.removeprefix(root).lstrip("/"), f.size, f.mtime_ns) for f in shared}
    for path, size, mtime_ns in sorted(entries):
        digest.update(f"{path}\0{size}\0{mtime_ns}\n".encode("utf-8", "surrogateescape"))
    for r in ranks:
        names = "\0".join(f.path.removeprefix(root).lstrip("/") for f in r.files)
        digest.update(f"{r.rank}\0{names}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
