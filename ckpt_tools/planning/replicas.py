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
        """Return the ranks that hold the same state as ``rank`` in ``piece``; None when nobody says so."""
        if piece.readers.sharded:
            return None
        groups, over = self.selection.replica_groups, piece.readers.replicated_over
        by_layout = f"equal at every {' and '.join(over)}" if over else ""
        role = piece.role if piece.role in groups else ""
        if role in groups:
            members = next((group for group in groups[role] if rank in group), ())
            return Group(members, f"--replica-groups {role}".rstrip()) if members else None
        if self.selection.sizes:  # given by flag, also for a layout that does not know its own
            return Group(self._peers(rank, over or ("dp", "cp")), by_layout or "parallel sizes")
        if rank in self._strategy:
            return Group(self._strategy[rank], f"the strategy files in {self.selection.strategy_dir}")
        everyone = range(self.topology.world_size)
        if over:
            return Group(self._peers(rank, over) if self.topology.sizes else everyone, by_layout)
        return Group(everyone, "--replica-groups all") if self.selection.replicas_all else None

    def _peers(self, rank: int, over: tuple[str, ...]) -> Sequence[int]:
        """Return the ranks at the place of ``rank`` on all other axes; the grid is laid out once per set."""
        axes = self.topology.apart(over)

        def place(r: int) -> tuple[int, ...]:
            at = self.topology.coordinates(r)
            return tuple(at.get(axis, 0) for axis in axes)

        if axes not in self._cells:
            cells = self._cells[axes] = {}
            for r in range(self.topology.world_size):
                cells.setdefault(place(r), []).append(r)
        return self._cells[axes][place(rank)]
