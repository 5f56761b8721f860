"""A checkpoint and a topology in, a load plan out: which file every rank loads, whose it is, and what proves a substitute. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ckpt_tools.codes import finding
from ckpt_tools.layouts import BY_NAME
from ckpt_tools.model import Checkpoint, FileLoad, Finding, Kind, Level, Part, RankLoad, Report
from ckpt_tools.question import Selection
from ckpt_tools.replicas import Differences, Evidence, Groups, Load, Signature, proven, substitute
from ckpt_tools.topology import Topology


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
        return list({load.part.path: load.part for loads in (self.shared, *self.loads.values()) for load in loads}.values())


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
    layout, out = BY_NAME[checkpoint.layout], Assignment()
    groups, roles = Groups(topology, selection), dict[str, list[Part]]()
    order = [piece.name for piece in layout.pieces]
    for p in sorted(checkpoint.parts, key=lambda p: order.index(p.piece)):
        piece = layout.piece(p.piece)
        if piece.loaded and not piece.shared:
            roles.setdefault(p.role, []).append(p)
    _assign_shared(checkpoint, bad, out)
    dying = checkpoint.kind is Kind.DYING_GASP
    for role, parts in roles.items():
        by_rank: dict[int, list[Part]] = {}
        for p in parts:
            if p.rank is not None:
                by_rank.setdefault(p.rank, []).append(p)
        placed = [p for p in parts if p.rank is None]
        for rank in range(topology.world_size) if selection.ranks is None else selection.ranks:
            if sum(f.code == "missing-rank" for f in out.findings[-_GAPS:]) == _GAPS:
                break  # one is enough to refuse the checkpoint
            where = topology.coordinates(rank) if placed else {}
            # a rank's own copy first, and of two files of one rank (a leftover of another world size) the newer
            own = sorted(by_rank.get(rank, []), key=lambda p: (order.index(p.piece), dict(p.coords).get("node", rank) != rank, _world_age(p))) or [
                p for p in placed if (p.coords and all(where.get(a) == at for a, at in p.coords)) or (not p.coords and rank == 0)
            ]
            mine = [p for p in own if p.path not in bad and not (dying and rank in selection.fault_ranks)]
            piece = layout.piece((own or parts)[0].piece)
            if mine and rank not in selection.fault_ranks:
                out.loads.setdefault(rank, []).append(Load(mine[0], False))
                continue
            group = groups.of(rank, piece)
            substitutes: list[Part] = []
            if group:
                near = ((m in selection.fault_ranks, abs(m - rank), m) for m in by_rank if m != rank and m in group[0])
                others = [p for failed, _, m in sorted(near) if not (dying and failed) for p in by_rank[m] if p.path not in bad]
                others += [p for p in placed if not p.coords and p not in own and p.path not in bad]
                substitutes = [p for p in others if not (mine and p.rank in selection.fault_ranks)]
            load = substitute(rank, substitutes, layout.piece, group, topology, selection, signature, evidence, out.findings) if substitutes else None
            if load is not None and load.substituted and differences is not None:
                load = proven(
                    load,
                    [p for p in [*mine, *substitutes] if p is not load.part and p.piece == load.part.piece],
                    differences,
                    selection,
                    out.findings,
                )
            if load is None and mine:
                load = Load(mine[0], False)
            if load is None and (piece.required or own):
                _explain_gap(rank, role, own, group, bad, dying, selection, layout.committed, checkpoint, out)
            elif load is not None:
                out.loads.setdefault(rank, []).append(load)
    if not out.parts and not out.findings:
        out.findings.append(finding("missing-part", "it has no file that is loaded", path=checkpoint.path))
    return out


_GAPS = 64
"""Ranks without a file that are told, at most."""


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
                Load(good[0], False, "" if good[0] is parts[0] else f"{parts[0].path.rpartition('/')[2]} is not usable; this is a copy")
            )
        else:
            out.findings += [f for p in parts for f in _located(p, bad)]


def _located(p: Part, bad: Mapping[str, Sequence[Finding]]) -> list[Finding]:
    return [f if f.path else finding(f.code, f.message, offset=f.offset, severity=f.severity, path=p.path) for f in bad.get(p.path, ())]


def _explain_gap(rank: int, role: str, own: Sequence[Part], group: tuple[Sequence[int], str] | None, bad: Mapping[str, Sequence[Finding]], dying: bool,
                 selection: Selection, committed: bool, checkpoint: Checkpoint, out: Assignment) -> None:  # fmt: skip
    """Why a rank has no file of a role."""
    what = f"rank {rank} has no usable {role} file"
    if committed and not own and group is None:
        out.groupless.append(rank)
        out.findings.append(
            finding(
                "replica-groups-needed", f"rank {rank} has no file in this checkpoint, and no replica group is known for it", path=checkpoint.path
            )
        )
        return
    for p in own:
        if dying and rank in selection.fault_ranks:
            out.findings.append(finding("fault-rank", f"rank {rank} failed while this checkpoint was saved, so its file is not trusted", path=p.path))
        out.findings += _located(p, bad)
    if group:
        what += f", nor has another member of its replica group ({group[1]})"
    out.findings.append(finding("missing-rank", what, path=checkpoint.path))


def mismatched(checkpoint: Checkpoint, assignment: Assignment, topology: Topology, saved: int | None) -> Finding | None:
    """``topology-mismatch`` when another number of ranks would leave saved state unread or load it wrongly."""
    if saved is None or saved == topology.world_size or BY_NAME[checkpoint.layout].reshardable:
        return None
    layout, used = BY_NAME[checkpoint.layout], {p.path for p in assignment.parts}
    idle = [p for p in checkpoint.parts if p.path not in used and (p.rank is None or p.rank >= topology.world_size)]
    unread = [p for p in idle if not layout.piece(p.piece).replicated_over]
    short = any(f.code == "missing-rank" for f in assignment.findings)
    ragged = topology.world_size % max(1, topology.sizes.get("tp", 1) * topology.sizes.get("pp", 1) * topology.sizes.get("cp", 1))
    if unread or short or ragged:
        return finding("topology-mismatch", f"saved by {saved} ranks, to be loaded by {topology.world_size}", path=checkpoint.path)
    return None


def files(loads: Iterable[Load], reports: Mapping[str, Report]) -> tuple[FileLoad, ...]:
    """The loads of one rank with what verification saw of each file."""
    out = []
    for load in loads:
        p, r = load.part, reports.get(load.part.path)
        level, coverage = (r.level, r.coverage) if r else (Level.PRESENCE, 0.0)
        out.append(FileLoad(p.role, p.path, p.size, p.mtime_ns, level, coverage, p.rank, load.substituted and p.rank is not None, None, load.reason))
    return tuple(out)


def fingerprint(root: str, ranks: Sequence[RankLoad], shared: Sequence[FileLoad] = ()) -> str:
    """XXH3-128 (hex) over the sorted (path below ``root``, size, mtime_ns) of the planned files and the rank map."""
    import xxhash

    digest = xxhash.xxh3_128()
    entries = {(f.path.removeprefix(root).lstrip("/"), f.size, f.mtime_ns) for r in ranks for f in r.files} | {
        (f.path.removeprefix(root).lstrip("/"), f.size, f.mtime_ns) for f in shared
    }
    for path, size, mtime_ns in sorted(entries):
        digest.update(f"{path}\0{size}\0{mtime_ns}\n".encode("utf-8", "surrogateescape"))
    for r in ranks:
        names = "\0".join(f.path.removeprefix(root).lstrip("/") for f in r.files)
        digest.update(f"{r.rank}\0{names}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
