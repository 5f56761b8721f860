"""The saves of a run before and after one of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from ckpt_tools.model.checkpoint import Checkpoint

_EACH_WAY = 2
"""How many saves before it, and after it, a checkpoint is compared with."""


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
        at = bisect_left(self._keys, (c.order, c.mtime_ns))
        before = (self._rows[i] for i in range(at - 1, -1, -1))
        after = (self._rows[i] for i in range(at, len(self._rows)))
        return [o for way in (before, after) for o in _first(way, c)]


def _first(way: Iterator[Checkpoint], c: Checkpoint) -> Iterator[Checkpoint]:
    found = 0
    for o in way:
        if (o.layout, o.run, o.kind) == (c.layout, c.run, c.kind) and o.key != c.key:
            yield o
            found += 1
            if found == _EACH_WAY:
                return
