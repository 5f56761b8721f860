"""Checkpoints near another one in time, found without going through all of them for each."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from operator import itemgetter

from ckpt_tools.model.checkpoint import Checkpoint

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
