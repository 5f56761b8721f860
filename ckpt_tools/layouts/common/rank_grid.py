"""Where each rank stands in the two grids of a job: of the dense layers, and of the experts. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from msgspec import Struct, field

from ckpt_tools.layouts import COORDS
from ckpt_tools.model.plan import Known

ALONE = "a single file without a rank"
"""Where a number of ranks comes from that nobody has told."""
_DENSE = {"tp": "tp", "cp": "cp", "dp": "dp", "pp": "pp"}
"""Axes of the grid of the dense layers, and what the coordinates on them are called."""
_EXPERTS = {"tp": "etp", "ep": "ep", "dp": "edp"}
"""The same for the experts; their pipeline stages are those of the dense layers."""


_Axis = tuple[str, int, int]
"""Name, stride (how many ranks lie between neighbours on it) and size: unpacked for every rank of a job."""


class Topology(Struct, frozen=True, dict=True):
    """How many ranks there are and how they are arranged.

    ``sizes`` are parallel sizes, ``order`` the fastest-varying axis first. ``strategy`` holds the groups of
    ranks with the same state that files of the framework tell (``--strategy-dir``), () without such files.
    """

    world_size: int
    sizes: Mapping[str, int] = field(default_factory=dict)
    order: str = "tp-cp-ep-dp-pp"
    provenance: Mapping[str, Known] = field(default_factory=dict)
    strategy: tuple[tuple[int, ...], ...] = ()

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank stands in both grids.

        These are tp, cp, dp and pp for the dense layers, and etp, ep and edp for the experts. Both grids
        cover all ranks, with the axes in the same order (Megatron-LM core/parallel_state.py,
        RankGenerator): tp·cp·dp·pp, and etp·ep·edp·pp, where etp is tp unless given and context parallelism
        splits nothing.
        """
        return {name: rank // stride % size for name, stride, size in self._axes}

    @cached_property
    def _axes(self) -> tuple[_Axis, ...]:
        """Every axis of both grids."""
        size = {axis: max(1, self.sizes.get(axis, 1)) for axis in COORDS}
        etp = max(1, self.sizes.get("etp", size["tp"]))
        replicas = max(1, self.world_size // (size["tp"] * size["cp"] * size["pp"]))
        of_experts = max(1, self.world_size // (etp * size["ep"] * size["pp"]))
        dense = {**size, "ep": 1, "dp": replicas}
        experts = {**size, "tp": etp, "cp": 1, "dp": of_experts}
        return (*self._laid_out(dense, _DENSE), *self._laid_out(experts, _EXPERTS))

    def _laid_out(self, sizes: Mapping[str, int], names: Mapping[str, str]) -> Iterator[_Axis]:
        """The axes of one grid that have a name, each after those that vary faster."""
        given = self.order.split("-")
        stride = 1
        for axis in (*given, *(a for a in COORDS if a not in given)):
            if axis in names:
                yield names[axis], stride, sizes[axis]
            stride *= sizes[axis]

    def apart(self, replicated_over: tuple[str, ...]) -> tuple[str, ...]:
        """Axes along which ranks hold different state, if they hold the same along ``replicated_over``."""
        dense = tuple(axis for axis in COORDS if axis not in (*replicated_over, "ep"))
        tp, etp = self.sizes.get("tp", 1), self.sizes.get("etp", 0)
        have_experts = self.sizes.get("ep", 1) > 1 or etp not in (0, tp)
        return (*dense, "ep", "etp") if have_experts else dense
