"""A tree of directories in order, each listed once: one call at a time where the file system answers at once,
many at a time where every call waits for a network.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import islice
from time import perf_counter
from typing import Generic

from ckpt_tools.storage.listing import Entries, EntryFilter, Inspect, T, all_of, below, entries_of, stat
from ckpt_tools.storage.retry import status
from ckpt_tools.storage.threads import Threads
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
AHEAD = 4
"""Directories for each thread that are listed before their turn, at most."""
_CHUNK = 32  # files that one thread asks about in a row


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
                stack.append((path, linked))
                yield from _walk_ahead(stack, seen, inspect, threads, keep)
                return
        seen.add((st.st_dev, st.st_ino))
        yield path, contents
        stack.extend(reversed(below(entries)))


class _Node(Generic[T]):
    """One directory, and what threads find out of it before its turn: ``asked`` is done once it is listed,
    ``stats`` once its files were asked about.
    """

    def __init__(self, path: str, linked: bool) -> None:
        self.path, self.linked = path, linked
        self.asked: Future[None] | None = None
        self.stats = list[Future[None]]()
        self.identity = (0, 0)
        self.contents: T | None = None
        self.below = list[_Node[T]]()

    def list_entries(self, pool: Threads, inspect: Inspect[T], keep: EntryFilter) -> None:
        """Raises OSError."""
        st = status(self.path)
        entries = entries_of(self.path, keep)
        self.identity, self.contents = (st.st_dev, st.st_ino), inspect(self.path, entries)
        self.below = [_Node(path, linked) for path, linked in below(entries)]
        to_stat = list(self.contents.to_stat())
        chunks = (to_stat[at : at + _CHUNK] for at in range(0, len(to_stat), _CHUNK))
        self.stats = [pool.submit(_stat_all, chunk) for chunk in chunks]


def _stat_all(entries: Entries) -> None:
    for entry in entries:
        stat(entry)


def _walk_ahead(
    stack: list[tuple[str, bool]],
    seen: set[tuple[int, int]],
    inspect: Inspect[T],
    threads: int,
    keep: EntryFilter,
) -> Iterator[tuple[str, T | OSError]]:
    """The rest of a walk, whose next directory is the last of ``stack``: threads list what comes next."""
    nodes = [_Node[T](path, linked) for path, linked in stack]
    pool = Threads(threads)
    try:
        while nodes:
            for node in islice(_next_of(nodes), AHEAD * threads):
                node.asked = node.asked or pool.submit(node.list_entries, pool, inspect, keep)
            node = nodes.pop()
            try:
                assert node.asked is not None  # noqa: S101 - for the type checker: it was the next
                node.asked.result()
            except OSError as e:
                yield node.path, e
                continue
            if node.identity not in seen and node.contents is not None:
                for done in node.stats:
                    done.result()
                seen.add(node.identity)
                yield node.path, node.contents
                nodes.extend(reversed(node.below))
    finally:
        pool.close(wait=False)


def _next_of(nodes: list[_Node[T]]) -> Iterator[_Node[T]]:
    """The directories in their order, as far as they are known. What lies behind a link may be listed
    already, or lead here: first its turn must come.
    """
    left = list(nodes)
    while left:
        yield (node := left.pop())
        if not node.linked:
            left.extend(reversed(node.below))
