"""Links to directories below a root: somebody may change them after a decision, so their targets are used
under their own names if possible.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

from msgspec import Struct, field

from ckpt_tools.storage.retry import is_directory, patiently


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
