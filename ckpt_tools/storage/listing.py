"""Directories in order: their entries, sorted by name, and what lies below them.

Links to directories below a root: somebody may change them after a decision, so their targets are used
under their own names if possible.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Protocol, TypeVar, cast

from msgspec import Struct, field

from ckpt_tools.storage.attempts import patiently
from ckpt_tools.storage.retry import is_directory, status
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


class Links(Struct):
    """``inside`` maps links to the directories below ``root`` that they lead to, spelled as ``root`` is;
    ``outside`` those that lead elsewhere. ``followed`` are those that say more than the names of what they
    lead to, ``unseen`` those of which nobody can say where they lead; ``met`` those that ``follow`` met.
    ``above`` are those to a directory that the root lies in, such as /: they are loops, and nobody follows
    them. ``real`` is the root after every link.
    """

    root: str
    real: str
    inside: dict[str, str] = field(default_factory=dict)  # of several threads: adding is one step
    outside: dict[str, str] = field(default_factory=dict)
    followed: set[str] = field(default_factory=set)
    unseen: dict[str, OSError] = field(default_factory=dict)
    met: list[str] = field(default_factory=list)
    above: set[str] = field(default_factory=set)

    def keep(self, entries: list[os.DirEntry[str]]) -> list[os.DirEntry[str]]:
        """The entries of one directory without the links to directories that lie below the root anyway."""
        gone = {e.path for e in entries if self._is_link(e) and e.path not in self.outside}
        return [e for e in entries if e.path not in gone] if gone else entries

    def follow(self, entries: list[os.DirEntry[str]]) -> list[os.DirEntry[str]]:
        """The entries of one directory behind a link, without the links that lead back or above it."""
        links = [e.path for e in entries if self._is_link(e)]
        gone = {path for path in links if path in self.unseen or self._leads_up(path)}
        self.met += [path for path in links if path not in gone]
        return [e for e in entries if e.path not in gone] if gone else entries

    def ambiguous(self) -> list[str]:
        """The links whose names may have gone unused, since each directory is listed once: those to one
        below the root, and of those that lead elsewhere the ones that lead to the same as,
        below or above another.
        """
        times = Counter(self.outside.values())
        shared = {real for real, n in times.items() if n > 1}
        for real in times:
            above = [here for here in _parents(real) if here in times]
            shared.update((real, *above) if above else ())
        return sorted((*self.inside, *(link for link, real in self.outside.items() if real in shared)))

    def resolved(self, path: str) -> str:
        """The path without a link to a directory below the root."""
        for here in (path, *_parents(path)):
            if len(here) <= len(self.root):
                break
            to = self.outside.get(here) or self.inside.get(here)
            if to is not None:
                return to + path[len(here) :]
        return path

    def _is_link(self, entry: os.DirEntry[str]) -> bool:
        """Whether the entry is a link to a directory; from then on it is known where it leads."""
        try:
            if not (patiently(entry.is_symlink) and is_directory(entry)):
                return False
        except OSError:
            return False  # who goes there learns why it cannot be seen
        try:
            real = patiently(os.path.realpath, entry.path, strict=True)
        except OSError as e:
            self.unseen[entry.path] = e
            return True
        if within(real, self.real):
            self.inside[entry.path] = self.root + real[len(self.real) :]
        elif within(self.real, real):
            self.above.add(entry.path)
        else:
            self.outside[entry.path] = real
        return True

    def _leads_up(self, link: str) -> bool:
        """Whether a link leads to a directory on the way to it, or above one."""
        if link in self.above:
            return True
        to = self.resolved(link)
        way = (self.resolved(here) for here in _parents(link) if len(here) > len(self.root))
        return any(within(here, to) for here in (*way, self.root, self.real))


def within(path: str, directory: str) -> bool:
    """Whether the path is the directory or lies below it, by their names."""
    return path == directory or path.startswith(f"{directory.rstrip('/')}/")


def _parents(path: str) -> Iterator[str]:
    """The directories that the path names on the way to it, the nearest first."""
    while (above := os.path.dirname(path)) != path:
        yield above
        path = above
