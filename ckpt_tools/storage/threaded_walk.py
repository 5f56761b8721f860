"""The walk of a tree where every call waits: threads work ahead of the one who asks, nearest first, and hold
a bounded number of entries.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextvars import copy_context
from heapq import heappop, heappush
from threading import Condition, Thread
from typing import Generic

from msgspec import Struct

from ckpt_tools.storage.listing import Entries, EntryFilter, Inspect, T, all_of, below, entries_of, stat
from ckpt_tools.storage.retry import status

HELD = 20_000
"""Entries at most that were listed and wait for their turn."""
_CHUNK = 32  # files that one thread asks about in a row


class Listed(Struct, Generic[T], frozen=True):
    """What is known of one directory: its own stat, its entries, and what ``inspect`` made of them."""

    stat: os.stat_result
    entries: Entries
    contents: T


class _Node(Generic[T]):
    """One directory. ``key`` is its place in the order; ``left`` counts the chunks of files that are still
    asked about; ``gone``: nobody will take it.
    """

    __slots__ = (
        "below",
        "contents",
        "entries",
        "error",
        "gone",
        "identity",
        "key",
        "left",
        "linked",
        "listed",
        "path",
    )

    def __init__(self, key: tuple[int, ...], path: str, linked: bool) -> None:
        self.key, self.path, self.linked = key, path, linked
        self.listed = self.gone = False
        self.left = self.entries = 0
        self.identity = (0, 0)
        self.error: BaseException | None = None
        self.contents: T | None = None
        self.below: list[_Node[T]] = []


class ThreadedWalk(Generic[T]):
    """``inspect``, ``threads`` and ``keep`` as in ``walk``."""

    def __init__(self, inspect: Inspect[T], threads: int, keep: EntryFilter = all_of) -> None:
        self.inspect, self.threads, self.keep = inspect, threads, keep
        self.jobs: list[tuple[tuple[int, ...], _Node[T], Entries | None]] = []
        self.turn = Condition()
        self.held = 0
        self.next: _Node[T] | None = None  # the one that is waited for: it is worked on however much is held
        self.over = False

    def walk(
        self, stack: list[tuple[str, bool]], seen: set[tuple[int, int]], known: Mapping[str, Listed[T]]
    ) -> Iterator[tuple[str, T | OSError]]:
        """The rest of a walk: ``stack`` are (path, whether it is a link), the next one last, ``known`` what
        was listed of them.
        """
        nodes = [
            _Node[T]((i,), path, linked)
            for i, (path, linked) in zip(range(len(stack), 0, -1), stack, strict=True)
        ]
        for node in nodes:
            if node.path in known:
                self._listed(node, known[node.path])
            else:
                heappush(self.jobs, (node.key, node, None))
        # Daemons: one that hangs in a call to a dead file system must not keep the process from ending.
        workers = [
            Thread(target=copy_context().run, args=(self._work,), daemon=True, name=f"ckpt-list-{i}")
            for i in range(self.threads)
        ]
        for worker in workers:
            worker.start()
        try:
            yield from self._in_order(nodes, seen)
        finally:
            with self.turn:
                self.over = True
                self.turn.notify_all()

    def _in_order(
        self, nodes: list[_Node[T]], seen: set[tuple[int, int]]
    ) -> Iterator[tuple[str, T | OSError]]:
        """The directories at and below the nodes, the last one first."""
        while nodes:
            node = nodes.pop()
            self._wait(node)
            if isinstance(node.error, OSError):
                yield node.path, node.error
            elif node.error is not None:
                raise node.error
            elif node.identity in seen:
                self._drop(node)
            elif node.contents is not None:
                seen.add(node.identity)
                if node.linked:
                    with self.turn:
                        self._ask(node.below)
                yield node.path, node.contents
                nodes.extend(reversed(node.below))

    def _wait(self, node: _Node[T]) -> None:
        with self.turn:
            self.next = node
            self.turn.notify_all()
            while not node.listed or node.left:
                self.turn.wait()
            self.held -= node.entries
            node.entries = 0

    def _drop(self, node: _Node[T]) -> None:
        """A directory that was reached before by another way, and all that was listed below it meanwhile."""
        with self.turn:
            left = [node]
            while left:
                one = left.pop()
                one.gone = True
                self.held -= one.entries
                one.entries = 0
                left += one.below

    # ---- the threads

    def _ready(self) -> bool:
        return bool(self.jobs) and (
            self.held < HELD or (nearest := self.jobs[0][1]) is self.next or nearest.gone
        )

    def _work(self) -> None:
        while True:
            with self.turn:
                while not self.over and not self._ready():
                    self.turn.wait()
                if self.over:
                    return
                _, node, to_stat = heappop(self.jobs)
                if node.gone:
                    continue
            if to_stat is None:
                self._list(node)
            else:
                for entry in to_stat:
                    stat(entry)
                with self.turn:
                    node.left -= 1
                    if not node.left:
                        self.turn.notify_all()

    def _list(self, node: _Node[T]) -> None:
        try:
            st = status(node.path)
            entries = entries_of(node.path, self.keep)
            self._listed(node, Listed(st, entries, self.inspect(node.path, entries)))
        except BaseException as e:  # the one who waits for it raises it
            with self.turn:
                node.error, node.listed = e, True
                self.turn.notify_all()

    def _listed(self, node: _Node[T], listed: Listed[T]) -> None:
        to_stat, under = list(listed.contents.to_stat()), below(listed.entries)
        with self.turn:
            if node.gone:
                return
            node.identity, node.contents = (listed.stat.st_dev, listed.stat.st_ino), listed.contents
            for at in range(0, len(to_stat), _CHUNK):
                heappush(self.jobs, ((*node.key, -1, at), node, to_stat[at : at + _CHUNK]))
                node.left += 1
            node.below = [_Node[T]((*node.key, i), path, linked) for i, (path, linked) in enumerate(under)]
            node.entries = len(listed.entries)
            self.held += node.entries
            node.listed = True
            # what lies behind a link may be listed already, or lead here: first its turn must come
            self._ask(() if node.linked else node.below)

    def _ask(self, nodes: Sequence[_Node[T]]) -> None:
        for node in nodes:
            heappush(self.jobs, (node.key, node, None))
        self.turn.notify_all()
