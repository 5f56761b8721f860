"""Directories in order, each listed once; one call at a time where the file system answers at once, many at a time where every call waits for a network."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from time import perf_counter
from typing import Protocol, TypeVar

from ckpt_tools.storage.retry import is_directory, patiently

SLOW = 0.0002
"""Seconds of a call from which on it waits for something else than this machine: a cached stat takes a hundredth of it."""
THREADS = 16
"""Calls under way at a time where they are slow; what a metadata server sees of one such process."""
_CALLS = 7
_FILES = 5
_BLOCK = 64  # entries that come with one call, roughly


class Asking(Protocol):
    """What the caller makes of one directory's entries; ``asked()`` are those whose stat it will use."""

    def asked(self) -> Iterable[os.DirEntry[str]]: ...


T = TypeVar("T", bound=Asking)
Look = Callable[[str, "list[os.DirEntry[str]]"], T]


class Gauge:
    """How long calls take: the median of the last few, because a busy machine makes single ones slow, and a slow file system all."""

    def __init__(self) -> None:
        self._took: deque[float] = deque(maxlen=_CALLS)

    def add(self, seconds: float) -> None:
        self._took.append(seconds)

    @property
    def slow(self) -> bool:
        return len(self._took) == _CALLS and sorted(self._took)[_CALLS // 2] >= SLOW


def stat(entry: os.DirEntry[str]) -> None:
    """Ask for what the entry then remembers; an error is raised again to whoever asks next."""
    with suppress(OSError):
        patiently(entry.stat)


def _listed(path: str) -> list[os.DirEntry[str]]:
    with os.scandir(path) as it:
        return sorted(it, key=lambda e: e.name)


Keep = Callable[["list[os.DirEntry[str]]"], "list[os.DirEntry[str]]"]
"""The entries of a directory that are looked at."""


def all_of(entries: list[os.DirEntry[str]]) -> list[os.DirEntry[str]]:
    return entries


def entries_of(path: str, keep: Keep = all_of) -> list[os.DirEntry[str]]:
    """A directory's entries, sorted by name. Raises OSError."""
    return keep(patiently(_listed, path))


def below(entries: list[os.DirEntry[str]]) -> list[tuple[str, bool]]:
    """(path, whether it is a link) of the directories among entries, and of what may be one: who goes there learns why it cannot be seen."""
    out = []
    for entry in entries:
        try:
            if is_directory(entry):
                out.append((entry.path, entry.is_symlink()))
        except OSError:
            out.append((entry.path, True))
    return out


def walk(
    root: str, look: Look[T], threads: int = THREADS, keep: Keep = all_of
) -> Iterator[tuple[str, T | OSError]]:
    """Every directory at and below ``root`` with what ``look`` makes of its sorted entries, parents first, in the order of names; a directory that cannot be listed
    comes with its OSError. Of entries that ``keep`` leaves out nothing is seen.

    Links to directories are followed, each real directory once, so loops end. Up to ``threads`` calls are under way at a time once calls prove slow; then ``look`` is called
    ahead of its turn and in other threads, and the entries that it asks about know their stat already.
    """
    seen: set[tuple[int, int]] = set()
    stack, gauge = [(root, True)], Gauge()
    while stack:
        path, linked = stack.pop()
        try:
            started = perf_counter()
            st = patiently(os.stat, path)
            gauge.add(perf_counter() - started)
            if (st.st_dev, st.st_ino) in seen:
                continue
            started = perf_counter()
            entries = entries_of(path, keep)
            gauge.add((perf_counter() - started) / (1 + len(entries) // _BLOCK))
        except OSError as e:
            yield path, e
            continue
        told = look(path, entries)
        if threads > 1:
            for entry in islice(told.asked(), _FILES):
                started = perf_counter()
                stat(entry)
                gauge.add(perf_counter() - started)
            if gauge.slow:
                from ckpt_tools.storage.threaded_walk import (
                    Ahead,
                )  # here, because most trees are small or near

                stack.append((path, linked))
                yield from Ahead(look, threads, keep).walk(stack, seen, {path: (st, entries, told)})
                return
        seen.add((st.st_dev, st.st_ino))
        yield path, told
        stack.extend(reversed(below(entries)))
