"""What is known of a run while its checkpoints are judged, and which of them are near another one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cached_property
from heapq import merge
from itertools import islice
from operator import attrgetter

from msgspec import Struct

from ckpt_tools.discovery.completeness import Expected
from ckpt_tools.layouts.common.saved_by import Topology
from ckpt_tools.model.checkpoint import Checkpoint, Order

_EACH_WAY = 2
"""How many saves before it, and after it, a checkpoint is compared with."""


class Siblings:
    """The finished checkpoints of one run in their order."""

    def __init__(self, checkpoints: Sequence[Checkpoint]) -> None:
        finished = [c for c in checkpoints if not c.unfinished]
        self._rows = sorted(finished, key=lambda c: (c.order, c.mtime_ns))
        self._keys = [(c.order, c.mtime_ns) for c in self._rows]

    def find_beside(self, c: Checkpoint) -> list[Checkpoint]:
        """The saves of its run next to it, of the same kind: some may be damaged, too, but hardly all."""

        def is_alike(o: Checkpoint) -> bool:
            return (o.layout, o.run, o.kind) == (c.layout, c.run, c.kind) and o.key != c.key

        at = bisect_left(self._keys, (c.order, c.mtime_ns))
        before = (self._rows[i] for i in range(at - 1, -1, -1))
        after = (self._rows[i] for i in range(at, len(self._rows)))
        return [o for way in (before, after) for o in islice(filter(is_alike, way), _EACH_WAY)]


class Run(Struct, frozen=True, dict=True):
    """The finished ``checkpoints`` of a run, those no filter hides, and how many ranks ``saved`` them."""

    checkpoints: Sequence[Checkpoint]
    candidates: Sequence[Checkpoint]
    expected: Expected
    topology: Topology
    saved: int | None

    @cached_property
    def beside(self) -> Siblings:
        """The candidates in their order, to find those before and after each."""
        return Siblings(self.candidates)

    @cached_property
    def _by_time(self) -> list[Checkpoint]:
        return sorted(self.checkpoints, key=attrgetter("mtime_ns"))

    @cached_property
    def first(self) -> dict[tuple[str, str], Order]:
        """The order of the first save of each layout and run."""
        return {(o.layout, o.run): o.order for o in sorted(self.checkpoints, key=lambda o: o.order)[::-1]}

    def find_nearest(self, c: Checkpoint) -> Iterator[Checkpoint]:
        """Yield its other finished checkpoints, the nearest in time first."""
        at = bisect_left(self._by_time, c.mtime_ns, key=attrgetter("mtime_ns"))
        sides = reversed(self._by_time[:at]), self._by_time[at:]
        near = merge(*sides, key=lambda o: abs(o.mtime_ns - c.mtime_ns))
        yield from (o for o in near if o.key != c.key)
