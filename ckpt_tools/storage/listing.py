"""Directories in order: their entries, sorted by name, and what lies below them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Protocol, TypeVar, cast

from ckpt_tools.storage.retry import is_directory, patiently, status
from ckpt_tools.storage.threads import Threads
from ckpt_tools.storage.urls import is_url

Entries = list[os.DirEntry[str]]
EntryFilter = Callable[[Entries], Entries]
"""The entries of a directory that are looked at."""


class Inspected(Protocol):
    """What a walk's caller makes of a directory; ``to_stat`` are the entries whose stat it will use."""

    def to_stat(self) -> Iterable[os.DirEntry[str]]: ...


T = TypeVar("T", bound=Inspected)
Inspect = Callable[[str, Entries], T]


class Names(Entries):
    """The entries of a directory of which only the names count."""

    def __init__(self, _path: str, entries: Entries) -> None:
        super().__init__(entries)

    def to_stat(self) -> tuple[()]:
        return ()


def entries_of(path: str, keep: EntryFilter = list) -> Entries:
    """A directory's entries, sorted by name. Raises OSError."""
    return keep(_in_store(path) if is_url(path) else patiently(_listed, path))


def names_of(path: str) -> list[str]:
    """The names in a directory, in any order. Raises OSError."""
    return [e.name for e in _in_store(path)] if is_url(path) else patiently(os.listdir, path or ".")


def _in_store(url: str) -> Entries:
    from ckpt_tools.storage.stores.mounts import tree_of

    tree, key = tree_of(url)
    return cast("Entries", tree.entries(key))  # they answer what those of the system do


def _listed(path: str) -> Entries:
    with os.scandir(path) as it:
        return sorted(it, key=lambda e: e.name)


def stat(entry: os.DirEntry[str]) -> None:
    """Ask for what the entry then remembers; an error is raised again to whoever asks next."""
    with suppress(OSError):
        patiently(entry.stat)


def below(entries: Entries) -> list[str]:
    """The directories among entries, and what may be one: who goes there learns why it cannot be seen."""
    out = []
    for entry in entries:
        try:
            if is_directory(entry):
                out.append(entry.path)
        except OSError:
            out.append(entry.path)
    return out


# ---- a tree of directories, each listed once

THREADS = 16
"""Calls under way at a time; what a metadata server sees of one such process."""
_CHUNK = 32
"""Files that one thread asks about in a row."""


def walk(
    root: str, inspect: Inspect[T], threads: int = THREADS, keep: EntryFilter = list
) -> Iterator[tuple[str, T | OSError]]:
    """Every directory at and below ``root`` with what ``inspect`` makes of its sorted entries, parents first,
    in the order of names; a directory that cannot be listed comes with its OSError. Of entries that ``keep``
    leaves out nothing is seen.

    Links to directories are followed, each real directory once, so loops end. In a large directory up to
    ``threads`` calls ask for the stats that will be used: on a network each takes a while.
    """
    if is_url(root):
        from ckpt_tools.storage.stores.mounts import tree_of

        try:
            tree, key = tree_of(root)
            tree.list_below(key)
        except OSError as e:
            yield root, e
            return
        threads = 1  # all of it is in memory now
    seen, stack, pool = set[tuple[int, int]](), [root], Threads(threads)
    try:
        while stack:
            path = stack.pop()
            try:
                st = status(path)
                if (st.st_dev, st.st_ino) in seen:
                    continue
                entries = entries_of(path, keep)
            except OSError as e:
                yield path, e
                continue
            seen.add((st.st_dev, st.st_ino))
            contents = inspect(path, entries)
            asked = list(contents.to_stat()) if threads > 1 and len(entries) > _CHUNK else []
            for done in [pool.submit(_stat_all, asked[i : i + _CHUNK]) for i in range(0, len(asked), _CHUNK)]:
                done.result()
            yield path, contents
            stack.extend(reversed(below(entries)))
    finally:
        pool.close(wait=False)


def _stat_all(entries: Entries) -> None:
    for entry in entries:
        stat(entry)
