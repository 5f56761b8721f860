"""Who may stand in for a rank whose own file is lost or damaged, and what proves it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ckpt_tools.findings import finding
from ckpt_tools.layouts import Piece
from ckpt_tools.layouts.common.rank_grid import Topology
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.frozen import frozen
from ckpt_tools.model.part import Part
from ckpt_tools.model.selection import Selection

Signature = Callable[[Part], "str | None"]
"""The tensor signature of a part, "" when it has none or cannot be read, None when the file says that it is no replica (``remove_redundancy``)."""
Differences = Callable[[Part, Part], "Sequence[str]"]
"""The names of tensors whose bytes differ between two parts."""
Evidence = Callable[[int, Part], "Iterable[tuple[str, str]]"]
"""(what it is, signature) of files that rank itself wrote in the place of the given part, nearest first."""


@frozen
class Load:
    """One file chosen for one rank."""

    part: Part
    substituted: bool
    reason: str = ""


class Groups:
    """Replica groups of the ranks, per role, in the order of docs/design.md section 5."""

    def __init__(self, topology: Topology, selection: Selection) -> None:
        self.topology, self.selection = topology, selection
        self.strategy = {rank: group for group in topology.strategy for rank in group}
        self._cells: dict[tuple[str, ...], dict[tuple[int, ...], list[int]]] = {}

    def _peers(self, rank: int, axes: tuple[str, ...]) -> Sequence[int]:
        """Ranks with the coordinates of ``rank`` on ``axes``; the grid is laid out once per set of axes."""
        cells = self._cells.get(axes)
        if cells is None:
            cells = self._cells[axes] = {}
            for r in range(self.topology.world_size):
                at = self.topology.coordinates(r)
                cells.setdefault(tuple(at.get(a, 0) for a in axes), []).append(r)
        at = self.topology.coordinates(rank)
        return cells[tuple(at.get(a, 0) for a in axes)]

    def of(self, rank: int, piece: Piece) -> tuple[Sequence[int], str] | None:
        """(the ranks that hold the same state as ``rank`` in ``piece``, who says so); None when nobody does."""
        selection, sizes = self.selection, self.topology.sizes
        if piece.sharded:
            return None
        for role, who in ((piece.role, f"--replica-groups {piece.role}"), ("", "--replica-groups")):
            if role in selection.replica_groups:
                members = next((g for g in selection.replica_groups[role] if rank in g), None)
                return (members, who) if members else None
        over, who = piece.replicated_over, "parallel sizes"
        if over:
            who = f"the layout replicates it over {' and '.join(over)}"
        if selection.sizes:  # given by flag, also for a layout that does not know its own
            return self._peers(rank, self.topology.apart(over or ("dp", "cp"))), who
        if rank in self.strategy:
            return self.strategy[rank], f"the strategy files in {selection.strategy_dir}"
        if over:
            return (
                self._peers(rank, self.topology.apart(over)) if sizes else range(self.topology.world_size)
            ), who
        if selection.replicas_all:
            return range(self.topology.world_size), "--replicas all"
        return None


def substitute(rank: int, parts: Sequence[Part], piece_of: Callable[[str], Piece], group: tuple[Sequence[int], str] | None, topology: Topology,
                selection: Selection, signature: Signature, evidence: Evidence, found: list[Finding]) -> Load | None:  # fmt: skip
    """The first part that nothing contradicts, with its proof; contradicted ones become findings and are never used."""
    who = group[1] if group else ""
    for part in parts:
        where = topology.coordinates(rank) if part.coords else {}
        elsewhere = [f"{a}={at}" for a, at in part.coords if where.get(a, at) != at]
        if elsewhere:
            text = f"{part.path.rpartition('/')[2]} cannot stand in for rank {rank}: it holds {' '.join(elsewhere)}"
            found.append(finding("replica-mismatch", text, path=part.path, severity=Severity.WARNING))
            continue
        theirs = signature(part)
        if theirs is None:
            text = f"{part.path.rpartition('/')[2]} cannot stand in for rank {rank}: it was saved with remove_redundancy and lacks what other ranks hold"
            found.append(finding("replica-mismatch", text, path=part.path, severity=Severity.WARNING))
            continue
        shown = next(((label, mine) for label, mine in evidence(rank, part) if mine), None)
        whose = f"rank {part.rank}'s file" if part.rank is not None else "the file"
        if shown and theirs and shown[1] != theirs:
            text = f"{whose} cannot stand in for rank {rank}: its tensors differ from those of {shown[0]}"
            found.append(finding("replica-mismatch", text, path=part.path, severity=Severity.WARNING))
            continue
        if shown and theirs:
            return Load(part, True, f"{who}; its tensors have the names, types and shapes of {shown[0]}")
        by_layout = (
            bool(piece_of(part.piece).replicated_over)
            and not selection.replica_groups
            and not topology.strategy
        )
        if not by_layout:
            text = f"{whose} stands in for rank {rank} on the word of {who} alone"
            if selection.strict:
                found.append(finding("replica-unproven", text, path=part.path, severity=Severity.WARNING))
                continue
            found.append(finding("replica-unproven", text, path=part.path))
        return Load(
            part, True, f"{who}; nothing in the files proves or contradicts it" if not by_layout else who
        )
    return None


def proven(
    load: Load, others: Sequence[Part], differences: Differences, selection: Selection, found: list[Finding]
) -> Load | None:
    """The load with the proof that another good member of the group holds the same bytes; None when one holds others, so that nobody knows which is right."""
    name = load.part.path.rpartition("/")[2]
    if not others:
        text = f"{name} is the only good member of its group: there is nothing to compare it with"
        found.append(
            finding(
                "replica-unproven",
                text,
                path=load.part.path,
                severity=Severity.WARNING if selection.strict else None,
            )
        )
        return None if selection.strict else load
    differ = differences(load.part, others[0])
    if not differ:
        return replace(
            load, reason=f"{load.reason}; its tensors are bit for bit those of {_whose(others[0])}"
        )
    names = ", ".join(differ[:5]) + (f" and {len(differ) - 5} more" if len(differ) > 5 else "")
    found.append(
        finding(
            "replica-mismatch",
            f"{_whose(load.part)} and {_whose(others[0])} should hold the same state, but differ in {names}",
            path=load.part.path,
        )
    )
    return None


def _whose(p: Part) -> str:
    return f"rank {p.rank}'s file" if p.rank is not None else "/".join(p.path.split("/")[-2:])
