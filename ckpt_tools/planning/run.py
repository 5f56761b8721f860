"""What is known of a run while its checkpoints are judged, and which of them are near another one."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from heapq import merge
from itertools import islice

from msgspec import Struct

from ckpt_tools.discovery.completeness import Expected
from ckpt_tools.layouts.common.rank_grid import Topology
from ckpt_tools.model.checkpoint import Checkpoint

_EACH_WAY = 2
"""How many saves before it, and after it, a checkpoint is compared with."""


class Neighbours:
    """The checkpoints of each kind of a ``key``, in the order of their times."""

    def __init__(self, checkpoints: Sequence[Checkpoint], key: Callable[[Checkpoint], object]) -> None:
        rows = defaultdict[object, list[tuple[int, int, Checkpoint]]](list)
        for i, c in enumerate(checkpoints):
            rows[key(c)].append((c.mtime_ns, i, c))
        self._rising = {k: sorted(of) for k, of in rows.items()}
        self._falling = {k: sorted(of, key=lambda row: (-row[0], row[1])) for k, of in rows.items()}

    def around(self, c: Checkpoint, key: object) -> Iterator[Checkpoint]:
        """Those of a key, the nearest to ``c`` in time first, equally near ones in the order given."""
        rising, falling = self._rising.get(key, []), self._falling.get(key, [])
        at = bisect_left(rising, (c.mtime_ns,))
        sides = islice(rising, at, None), islice(falling, len(rising) - at, None)
        yield from (o for _, _, o in merge(*sides, key=lambda row: (abs(row[0] - c.mtime_ns), row[1])))


class Siblings:
    """The finished checkpoints of one run in their order."""

    def __init__(self, checkpoints: Sequence[Checkpoint]) -> None:
        finished = [c for c in checkpoints if not c.unfinished]
        self._rows = sorted(finished, key=lambda c: (c.order, c.mtime_ns))
        self._keys = [(c.order, c.mtime_ns) for c in self._rows]

    def beside(self, c: Checkpoint) -> list[Checkpoint]:
        """The saves of its run next to it, of the same kind: some may be damaged, too, but hardly all."""

        def is_alike(o: Checkpoint) -> bool:
            return (o.layout, o.run, o.kind) == (c.layout, c.run, c.kind) and o.key != c.key

        at = bisect_left(self._keys, (c.order, c.mtime_ns))
        before = (self._rows[i] for i in range(at - 1, -1, -1))
        after = (self._rows[i] for i in range(at, len(self._rows)))
        return [o for way in (before, after) for o in islice(filter(is_alike, way), _EACH_WAY)]


class Run(Struct, frozen=True, dict=True):
    """``checkpoints`` are all its finished ones, ``candidates`` those that no filter hides, ``unfinished``
    saves that never finished. ``saved`` is how many ranks wrote the files, where anything tells.
    """

    checkpoints: Sequence[Checkpoint]
    candidates: Sequence[Checkpoint]
    unfinished: Sequence[Checkpoint]
    expected: Expected
    topology: Topology
    saved: int | None

    @cached_property
    def beside(self) -> Siblings:
        """The candidates in their order, to find those before and after each."""
        return Siblings(self.candidates)


class Candidate(Struct, frozen=True):
    """A checkpoint under judgement: as its files' names show it, and ``whole``, with what its indexes add."""

    named: Checkpoint
    whole: Checkpoint
