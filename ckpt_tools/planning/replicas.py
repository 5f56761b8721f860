"""Which ranks hold the same state, and what says so. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ckpt_tools.layouts import Piece
from ckpt_tools.layouts.common.rank_grid import Topology
from ckpt_tools.model.selection import Selection


class Group(NamedTuple):
    """Ranks that hold the same state of one role, and who says so."""

    ranks: Sequence[int]
    source: str


class Groups:
    """Replica groups of the ranks, per role, in the order of docs/design.md section 5."""

    def __init__(self, topology: Topology, selection: Selection) -> None:
        self.topology, self.selection = topology, selection
        self._strategy = {rank: group for group in topology.strategy for rank in group}
        self._cells: dict[tuple[str, ...], dict[tuple[int, ...], list[int]]] = {}

    def of(self, rank: int, piece: Piece) -> Group | None:
        """The ranks that hold the same state as ``rank`` in ``piece``; None when nobody says so."""
        if piece.sharded:
            return None
        groups = self.selection.replica_groups
        role = next((role for role in (piece.role, "") if role in groups), None)
        if role is not None:
            members = next((group for group in groups[role] if rank in group), ())
            return Group(members, f"--replica-groups {role}".rstrip()) if members else None
        if self.selection.sizes:  # given by flag, also for a layout that does not know its own
            over = piece.replicated_over or ("dp", "cp")
            return Group(self._peers(rank, over), _layout_says(piece) or "parallel sizes")
        if rank in self._strategy:
            return Group(self._strategy[rank], f"the strategy files in {self.selection.strategy_dir}")
        everyone = range(self.topology.world_size)
        if piece.replicated_over:
            alike = self._peers(rank, piece.replicated_over) if self.topology.sizes else everyone
            return Group(alike, _layout_says(piece))
        return Group(everyone, "--replicas all") if self.selection.replicas_all else None

    def _peers(self, rank: int, replicated_over: tuple[str, ...]) -> Sequence[int]:
        """Ranks at the place of ``rank`` on all other axes; the grid is laid out once per set of axes."""
        axes = self.topology.apart(replicated_over)
        cells = self._cells.get(axes)
        if cells is None:
            cells = self._cells[axes] = {}
            for r in range(self.topology.world_size):
                cells.setdefault(self._place(r, axes), []).append(r)
        return cells[self._place(rank, axes)]

    def _place(self, rank: int, axes: tuple[str, ...]) -> tuple[int, ...]:
        at = self.topology.coordinates(rank)
        return tuple(at.get(axis, 0) for axis in axes)


def _layout_says(piece: Piece) -> str:
    """The layout as the one who says so; "" where it says nothing."""
    axes = piece.replicated_over
    return f"equal at every {' and '.join(axes)}" if axes else ""
