"""Directories in order: their entries, sorted by name, and what lies below them. Somebody may change a link
after a decision: targets of links are used under their own names if possible.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import cast

from msgspec import Struct, field

from ckpt_tools.storage.retry import is_directory, status
from ckpt_tools.storage.stalls import do_each, retry_call
from ckpt_tools.storage.urls import is_url

Entries = list[os.DirEntry[str]]
EntryFilter = Callable[[Entries], Entries]
"""Returns the entries of a directory that a caller looks at."""


def list_entries(path: str, keep: EntryFilter = list) -> Entries:
    """Return the entries of a directory that ``keep`` leaves, sorted by name. Raise OSError."""
    if not is_url(path):
        return keep(retry_call(_list_directory, path))
    from ckpt_tools.storage.stores.mounts import tree_of

    tree, key = tree_of(path)
    return keep(cast("Entries", tree.entries(key)))  # they have the methods of os.DirEntry


def list_names(path: str) -> list[str]:
    """Return the names in a directory, sorted. Raise OSError."""
    return [e.name for e in list_entries(path or ".")]


def _list_directory(path: str) -> Entries:
    with os.scandir(path) as it:
        return sorted(it, key=lambda e: e.name)


# ---- a tree of directories, each listed once

THREADS = 16
"""Stat calls at a time: the load of one process on a metadata server."""
_CHUNK = 32  # entries that one thread stats in a row


def walk(root: str, keep: EntryFilter = list) -> Iterator[tuple[str, Entries | OSError]]:
    """Yield each directory at and below ``root`` with its entries, parents first, in order of names; one that
    cannot be listed comes with its OSError. Entries that ``keep`` drops are neither given nor entered. Links
    to directories are followed, each real directory once, so loops end.
    """
    if is_url(root):
        from ckpt_tools.storage.stores.mounts import tree_of

        try:
            tree, key = tree_of(root)
            tree.list_below(key)
        except OSError as e:
            yield root, e
            return
    seen, stack = set[tuple[int, int]](), [root]
    while stack:
        path = stack.pop()
        try:
            st = status(path)
            if (st.st_dev, st.st_ino) in seen:
                continue
            entries = list_entries(path, keep)
        except OSError as e:
            yield path, e
            continue
        seen.add((st.st_dev, st.st_ino))
        yield path, entries
        for entry in reversed(entries):
            try:
                below = is_directory(entry)
            except OSError:  # of an unknown type: listing it raises the reason
                below = True
            if below:
                stack.append(entry.path)


def stat_ahead(entries: Iterable[os.DirEntry[str]]) -> None:
    """Make entries of a large directory keep their stat, many at a time: on a network each takes a while. An
    error is ignored: the next ``entry.stat()`` raises it again.
    """

    def stat_some(some: Entries) -> None:
        for entry in some:
            with suppress(OSError):
                retry_call(entry.stat)

    due = list(entries)
    if len(due) > _CHUNK and not is_url(due[0].path):  # a store's are in memory
        do_each(stat_some, [due[i : i + _CHUNK] for i in range(0, len(due), _CHUNK)], THREADS)


class Links(Struct):
    """The links to directories below ``root``, whose real path is ``real``. ``inside`` maps links to their
    targets below ``root``, spelled as ``root`` is, ``outside`` the other links to their real targets.
    ``followed`` are links whose names say more than their targets' names, ``met`` the links that ``follow``
    left in. ``unseen`` maps links without a known target to the error. ``above`` are links to a directory
    that the root lies in, such as /: loops, which nobody follows.
    """

    root: str
    real: str
    inside: dict[str, str] = field(default_factory=dict)  # threads share it: adding is one step
    outside: dict[str, str] = field(default_factory=dict)
    followed: set[str] = field(default_factory=set)
    unseen: dict[str, OSError] = field(default_factory=dict)
    met: list[str] = field(default_factory=list)
    above: set[str] = field(default_factory=set)

    def keep(self, entries: list[os.DirEntry[str]]) -> list[os.DirEntry[str]]:
        """Return the entries without links to directories, unless the link is one of ``outside``."""
        gone = {e.path for e in entries if self._is_link(e) and e.path not in self.outside}
        return [e for e in entries if e.path not in gone] if gone else entries

    def follow(self, entries: list[os.DirEntry[str]]) -> list[os.DirEntry[str]]:
        """Return a directory's entries behind a link, without ``unseen`` links and loops. Extends ``met``."""
        links = [e.path for e in entries if self._is_link(e)]
        gone = {path for path in links if path in self.unseen or self._leads_up(path)}
        self.met += [path for path in links if path not in gone]
        return [e for e in entries if e.path not in gone] if gone else entries

    def ambiguous(self) -> list[str]:
        """Return the links whose names a walk may not have used, since it lists each directory once: all of
        ``inside``, and links of ``outside`` whose target equals, contains or lies in another link's target.
        """
        times = Counter(self.outside.values())
        shared = {real for real, n in times.items() if n > 1}
        for real in times:
            above = [here for here in _parents(real) if here in times]
            shared.update((real, *above) if above else ())
        return sorted((*self.inside, *(link for link, real in self.outside.items() if real in shared)))

    def resolved(self, path: str) -> str:
        """Return the path with the deepest link of ``outside`` or ``inside`` in it replaced by its target."""
        for here in (path, *_parents(path)):
            if len(here) <= len(self.root):
                break
            to = self.outside.get(here) or self.inside.get(here)
            if to is not None:
                return to + path[len(here) :]
        return path

    def _is_link(self, entry: os.DirEntry[str]) -> bool:
        """Return True if the entry is a link to a directory; adds it to the field for its kind of target."""
        try:
            if not (retry_call(entry.is_symlink) and is_directory(entry)):
                return False
        except OSError:
            return False  # the walk lists it, and raises the reason
        try:
            real = retry_call(os.path.realpath, entry.path, strict=True)
        except OSError as e:
            self.unseen[entry.path] = e
            return True
        if is_within(real, self.real):
            self.inside[entry.path] = self.root + real[len(self.real) :]
        elif is_within(self.real, real):
            self.above.add(entry.path)
        else:
            self.outside[entry.path] = real
        return True

    def _leads_up(self, link: str) -> bool:
        """Return True if a link leads to a directory on its own path, or to one above such a directory."""
        if link in self.above:
            return True
        to = self.resolved(link)
        way = (self.resolved(here) for here in _parents(link) if len(here) > len(self.root))
        return any(is_within(here, to) for here in (*way, self.root, self.real))


def is_within(path: str, directory: str) -> bool:
    """Return True if the path is the directory or lies below it, by their names alone."""
    return path == directory or path.startswith(f"{directory.rstrip('/')}/")


def _parents(path: str) -> Iterator[str]:
    """Yield the directories above a path, the nearest first."""
    while (above := os.path.dirname(path)) != path:
        yield above
        path = above
