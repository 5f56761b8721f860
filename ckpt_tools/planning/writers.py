"""Whether the writer that a file names, and the grid of ranks it stood in, fit the place where it lies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import NamedTuple

from ckpt_tools.layouts import COORDS
from ckpt_tools.layouts.common.rank_grid import Topology
from ckpt_tools.layouts.common.saved_by import owner, saved_sizes
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Report

Rows = Sequence[tuple[Part, Report]]
DEFAULT = Topology(1).order
ORDERS = tuple(
    dict.fromkeys((DEFAULT, "tp-cp-ep-pp-dp", *("-".join(axes) for axes in permutations(DEFAULT.split("-")))))
)
"""Megatron-LM's default order, that of --use-tp-pp-dp-mapping, and all others."""
_MOST = 512
"""Files at most that an order is worked out from."""


class Placed(NamedTuple):
    """A file in a parallel grid: who wrote it, where it lies, and the sizes of that grid as it says."""

    part: Part
    rank: int
    coords: tuple[tuple[str, int], ...]
    sizes: tuple[tuple[str, int], ...]

    def stands(self, order: str) -> tuple[tuple[str, int | None], ...]:
        """Return the coordinates of that rank when ranks are laid out in this order."""
        known = dict(self.sizes)
        there = Topology(known.pop("world"), known, order).coordinates(self.rank)
        return tuple((axis, there.get(axis)) for axis, _ in self.coords)

    def fits(self, order: str) -> bool:
        """Return True if that rank belongs where the file lies."""
        return self.stands(order) == self.coords


def find_placed(rows: Rows) -> Iterator[Placed]:
    """Yield files that tell their writer and a sensible grid. Without stages "pp" in a name is an expert."""
    for part, report in rows:
        rank, sizes = owner(report.metadata).get("rank"), saved_sizes([report])
        world = sizes.get("world", 0)
        if rank is None or rank >= world or not part.coords or "tp" not in sizes:
            continue
        if world % count_of_one_model(sizes) == 0:
            experts = counts_experts(sizes) and "ep" not in dict(part.coords)
            names = {"pp": "ep"} if experts else {}
            at = [(names.get(axis, axis), n) for axis, n in part.coords if axis in COORDS]
            grid = [(axis, n) for axis, n in sizes.items() if axis != "dp"]
            yield Placed(part, rank, tuple(at), tuple(grid))


def counts_experts(sizes: Mapping[str, int]) -> bool:
    """Return True if what a name gives as the pipeline stage is that of the experts: there are no stages."""
    return sizes.get("pp", 1) == 1 and sizes.get("ep", 1) > 1


def rank_order(rows: Sequence[Placed]) -> str:
    """Return the order that explains most files of a run; Megatron-LM's own goes first where several do."""
    some = rows[:_MOST]
    if all(row.fits(DEFAULT) for row in some):
        return DEFAULT
    return max(ORDERS, key=lambda order: (sum(row.fits(order) for row in some), -ORDERS.index(order)))


def count_of_one_model(sizes: Mapping[str, int]) -> int:
    """Return how many ranks hold one copy of the model."""
    return sizes.get("tp", 1) * sizes.get("pp", 1) * sizes.get("cp", 1)
