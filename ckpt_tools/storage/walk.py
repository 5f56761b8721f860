"""A tree of directories in order, each listed once: one call at a time where the file system answers at once,
many at a time where every call waits for a network.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from time import perf_counter

from ckpt_tools.storage.listing import EntryFilter, Inspect, T, all_of, below, entries_of, stat
from ckpt_tools.storage.retry import status
from ckpt_tools.storage.urls import is_url

SLOW = 0.0002
"""Seconds of a call from which on it waits for something else than this machine: a cached stat takes a
hundredth of it.
"""
THREADS = 16
"""Calls under way at a time where they are slow; what a metadata server sees of one such process."""
_CALLS = 7
_FILES = 5
_BLOCK = 64  # entries that come with one call, roughly


class Gauge:
    """How long calls take: the median of the last few, because a busy machine makes single ones slow, and a
    slow file system all.
    """

    def __init__(self) -> None:
        self._took: deque[float] = deque(maxlen=_CALLS)

    def add(self, seconds: float) -> None:
        self._took.append(seconds)

    @property
    def slow(self) -> bool:
        return len(self._took) == _CALLS and sorted(self._took)[_CALLS // 2] >= SLOW


def walk(
    root: str, inspect: Inspect[T], threads: int = THREADS, keep: EntryFilter = all_of
) -> Iterator[tuple[str, T | OSError]]:
    """Every directory at and below ``root`` with what ``inspect`` makes of its sorted entries, parents first,
    in the order of names; a directory that cannot be listed comes with its OSError. Of entries that ``keep``
    leaves out nothing is seen.

    Links to directories are followed, each real directory once, so loops end. Up to ``threads`` calls are
    under way at a time once calls prove slow; then ``inspect`` is called ahead of its turn and in other
    threads, and the entries whose stat it needs know it already.
    """
    if is_url(root):
        from ckpt_tools.storage.stores.mounts import list_below

        if (refused := list_below(root)) is not None:
            yield root, refused
            return
        threads = 1  # all of it is in memory now
    seen: set[tuple[int, int]] = set()
    stack, gauge = [(root, True)], Gauge()
    while stack:
        path, linked = stack.pop()
        try:
            started = perf_counter()
            st = status(path)
            gauge.add(perf_counter() - started)
            if (st.st_dev, st.st_ino) in seen:
                continue
            started = perf_counter()
            entries = entries_of(path, keep)
            gauge.add((perf_counter() - started) / (1 + len(entries) // _BLOCK))
        except OSError as e:
            yield path, e
            continue
        contents = inspect(path, entries)
        if threads > 1:
            for entry in islice(contents.to_stat(), _FILES):
                started = perf_counter()
                stat(entry)
                gauge.add(perf_counter() - started)
            if gauge.slow:
                # here, because most trees are small or near
                from ckpt_tools.storage.threaded_walk import Listed, ThreadedWalk

                stack.append((path, linked))
                listed = {path: Listed(st, entries, contents)}
                yield from ThreadedWalk(inspect, threads, keep).walk(stack, seen, listed)
                return
        seen.add((st.st_dev, st.st_ino))
        yield path, contents
        stack.extend(reversed(below(entries)))
