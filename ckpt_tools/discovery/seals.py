"""The seals that may name one file (its own, and those of the directories that it lies in), and the files
that the seal of a directory names.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from ckpt_tools.discovery.exclude import STATE
from ckpt_tools.discovery.file_stat import stat_of, surely_directory
from ckpt_tools.discovery.found import BareFile
from ckpt_tools.errors import CannotLook
from ckpt_tools.formats.seals.document import FRAGMENTS, NAME, beside, is_apart, is_fragment
from ckpt_tools.layouts.common.under_way import TEMPORARY
from ckpt_tools.storage.listing import Entries, Names, entries_of, walk
from ckpt_tools.storage.retry import ABSENT, is_file, is_link, lstat
from ckpt_tools.storage.signed import query_of
from ckpt_tools.storage.urls import is_url, joined

if TYPE_CHECKING:
    from ckpt_tools.storage.stores.store import Object
    from ckpt_tools.storage.stores.tree import Tree

_ABOVE = 4
"""Directories above a file that may be the checkpoint's own."""
_SEALS = NAME.removesuffix("json")
"""How all of their names there begin but that of its own."""
_WEB = ("https://", "http://")


def seals_about(path: str) -> Iterator[BareFile]:
    """Yield the seals of a file, the nearest first; none of a presigned URL. Raises CannotLook."""
    if path.startswith(_WEB):
        return iter(()) if query_of(path) else _one_by_one(path)
    return _in_store(path) if is_url(path) else _one_by_one(path)


def _one_by_one(path: str) -> Iterator[BareFile]:
    home, name = os.path.split(path)
    at = [f"{home}/{beside(name)}"]
    for _ in range(_ABOVE):
        at += [f"{home}/{NAME}", *_fragments(f"{home}/{FRAGMENTS}")]
        home = os.path.dirname(home)
    for seal in at:
        try:
            lstat(seal)
            yield BareFile(seal, *stat_of(seal))
        except ABSENT:  # nearly always
            continue
        except OSError as e:
            # where others may not list, S3 says so of what is not there
            if not (isinstance(e, PermissionError) and path.startswith(_WEB)):
                raise _hidden(seal, e) from e


def _fragments(directory: str) -> list[str]:
    try:
        return [e.path for e in entries_of(directory) if is_fragment(e.name)]
    except ABSENT:  # or a link that leads nowhere lies there, or what is no directory
        return [] if is_url(directory) else [directory]
    except OSError as e:
        if directory.startswith(_WEB):  # which cannot list
            return []
        raise _hidden(directory, e) from e


def _in_store(url: str) -> Iterator[BareFile]:
    """Those in a store, by a list for each directory, the highest first. One that must not be listed hides
    what lies in it, but for the own seal of the file.
    """
    from ckpt_tools.storage.stores.mounts import tree_of  # only for stores

    tree, key = tree_of(url)
    home, _, name = key.rpartition("/")
    above = [home]
    while above[-1] and len(above) < _ABOVE:
        above.append(above[-1].rpartition("/")[0])
    own = joined(home, beside(name)) if home else beside(name)
    found: list[Object] = []
    try:
        for directory in reversed(above[1:]):
            with suppress(*ABSENT, PermissionError):
                try:
                    found = [*_seals_in(tree, directory), *found]
                except OSError as e:
                    if e.errno != errno.EOPNOTSUPP:  # such as what holds the repositories of a hub
                        raise
        tree.entries(home)  # which is listed anyway: indexes lie there
        beside_it = [of for of in tree.named(home, beside(name)) if of.key == own]
        found = [*beside_it, *_seals_in(tree, home), *found]
    except OSError as e:
        raise _hidden(f"the seals of {url}", e) from e
    for of in found:
        yield BareFile(joined(tree.store.url, of.key), of.size, of.mtime_ns, ())


def _seals_in(tree: Tree, directory: str) -> Iterator[Object]:
    """The seal of a directory, and its fragments."""
    for of in tree.named(directory, _SEALS):
        home, _, name = of.key.rpartition("/")
        if name == NAME if home == directory else is_fragment(name) and home.endswith(FRAGMENTS):
            yield of


def _hidden(what: str, e: OSError) -> CannotLook:
    return CannotLook(f"cannot look for {what}: {e.strerror}")


class Sealable(Names):
    """The entries of one directory. Raises OSError."""

    def __init__(self, path: str, entries: Entries) -> None:
        """``files`` are the regular ones, without seals, signatures and what is being written."""
        super().__init__(path, entries)
        named = [e for e in entries if not is_apart(e.name) and not TEMPORARY.search(e.name)]
        of_seal = path.rpartition("/")[2] == FRAGMENTS
        self.files = [] if of_seal else [f"{path}/{e.name}" for e in named if is_file(e)]
        self.has_seal = any(e.name == NAME for e in entries)


def directories(home: str) -> Iterator[tuple[str, Sealable | OSError]]:
    """Yield every directory at and below ``home``, parents first, and none behind links."""

    def keep(entries: Entries) -> Entries:
        return [e for e in entries if e.name != STATE and not (surely_directory(e) and is_link(e))]

    return walk(home, Sealable, keep=keep)
