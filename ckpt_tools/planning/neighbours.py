"""Checkpoints near another one in time, found without going through all of them for each."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from itertools import islice
from operator import itemgetter

from ckpt_tools.model.checkpoint import Checkpoint

_EACH_WAY = 2
"""How many saves before it, and after it, a checkpoint is compared with."""
Row = tuple[int, Checkpoint]
"""A checkpoint and its place among all."""


class Neighbours:
    """The checkpoints of each kind of a ``key``, in the order of their times."""

    def __init__(self, checkpoints: Sequence[Checkpoint], key: Callable[[Checkpoint], object]) -> None:
        self._at: dict[object, dict[int, list[Row]]] = {}
        for i, c in enumerate(checkpoints):
            self._at.setdefault(key(c), {}).setdefault(c.mtime_ns, []).append((i, c))
        self._times = {k: sorted(at) for k, at in self._at.items()}

    def around(self, c: Checkpoint, key: object) -> Iterator[Checkpoint]:
        """Those of a key, the nearest to ``c`` in time first.

        Of those that are equally near in the order in which they were given.
        """
        times, at = self._times.get(key, []), self._at.get(key, {})
        after = bisect_left(times, c.mtime_ns)
        before = after - 1
        while before >= 0 or after < len(times):
            left = c.mtime_ns - times[before] if before >= 0 else None
            right = times[after] - c.mtime_ns if after < len(times) else None
            sides: list[list[Row]] = []
            if left is not None and (right is None or left <= right):
                sides.append(at[times[before]])
                before -= 1
            if right is not None and (left is None or right <= left):
                sides.append(at[times[after]])
                after += 1
            yield from (o for _, o in merge(*sides, key=itemgetter(0)))


class Siblings:
    """The finished checkpoints of one run in their order."""

    def __init__(self, checkpoints: Sequence[Checkpoint]) -> None:
        finished = [c for c in checkpoints if not c.unfinished]
        self._rows = sorted(finished, key=lambda c: (c.order, c.mtime_ns))
        self._keys = [(c.order, c.mtime_ns) for c in self._rows]

    def beside(self, c: Checkpoint) -> list[Checkpoint]:
        """The saves of its run next to it, of the same kind: of these some are damaged, too, but hardly
        all.
        """

        def is_alike(o: Checkpoint) -> bool:
            return (o.layout, o.run, o.kind) == (c.layout, c.run, c.kind) and o.key != c.key

        at = bisect_left(self._keys, (c.order, c.mtime_ns))
        before = (self._rows[i] for i in range(at - 1, -1, -1))
        after = (self._rows[i] for i in range(at, len(self._rows)))
        return [o for way in (before, after) for o in islice(filter(is_alike, way), _EACH_WAY)]
