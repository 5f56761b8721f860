"""Where each rank stands in the grids of Megatron-LM: one of the dense layers, one of the experts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import cached_property

from ckpt_tools.layouts import COORDS
from ckpt_tools.model.frozen import frozen
from ckpt_tools.model.plan import Known


@frozen
class Topology:
    """How many ranks there are and how they are arranged: ``sizes`` are parallel sizes, ``order`` the fastest-varying axis first.

    ``strategy`` holds the groups of ranks with the same state that MindSpore's strategy files tell, () without such files.
    """

    world_size: int
    sizes: Mapping[str, int] = field(default_factory=dict)
    order: str = "tp-cp-ep-dp-pp"
    provenance: Mapping[str, Known] = field(default_factory=dict)
    strategy: tuple[tuple[int, ...], ...] = ()

    def coordinates(self, rank: int) -> dict[str, int]:
        """Coordinates of a rank: tp, cp, dp and pp in the grid of the dense layers, etp, ep and edp in that of the experts.

        Both grids cover all ranks, with the axes in the same order (Megatron-LM core/parallel_state.py, RankGenerator): tp·cp·dp·pp, and
        etp·ep·edp·pp, where etp is tp unless given and context parallelism splits nothing.
        """
        return {axis: rank // stride % size for axis, stride, size in self._axes}

    @cached_property
    def _axes(self) -> tuple[tuple[str, int, int], ...]:
        """(axis, how many ranks lie between neighbours on it, its size) for every axis of both grids."""
        size = {a: max(1, self.sizes.get(a, 1)) for a in COORDS}
        etp = max(1, self.sizes.get("etp", size["tp"]))
        dense = {**size, "ep": 1, "dp": max(1, self.world_size // (size["tp"] * size["cp"] * size["pp"]))}
        experts = {
            **size,
            "tp": etp,
            "cp": 1,
            "dp": max(1, self.world_size // (etp * size["ep"] * size["pp"])),
        }
        order = self.order.split("-")
        order += [a for a in COORDS if a not in order]
        out = []
        for grid, named in (
            (dense, {"tp": "tp", "cp": "cp", "dp": "dp", "pp": "pp"}),
            (experts, {"tp": "etp", "ep": "ep", "dp": "edp"}),
        ):
            stride = 1
            for axis in order:
                if axis in named:
                    out.append((named[axis], stride, grid[axis]))
                stride *= grid[axis]
        return tuple(out)

    def apart(self, replicated_over: tuple[str, ...]) -> tuple[str, ...]:
        """The axes along which ranks hold different state, when they hold the same along ``replicated_over``."""
        size = self.sizes.get
        experts = size("ep", 1) > 1 or size("etp", 0) not in (0, size("tp", 1))
        return (
            *(a for a in COORDS if a not in (*replicated_over, "ep")),
            *(("ep", "etp") if experts else ()),
        )
