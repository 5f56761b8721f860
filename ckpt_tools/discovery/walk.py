"""Roots in, parts out: one scandir per directory, at most one stat per file, no file opened."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from ckpt_tools import formats
from ckpt_tools.discovery.directory import (
    DirectoryNames,
    Listing,
    NameReader,
    controls_in,
    is_directory_alike,
)
from ckpt_tools.discovery.exclude import Excluded, without_state
from ckpt_tools.discovery.file_stat import stat_of
from ckpt_tools.discovery.found import BareFile, Discovery, NamedFile
from ckpt_tools.discovery.names import lone_numbers, name_parts, settled, without_stale
from ckpt_tools.discovery.roots import is_tree, roots
from ckpt_tools.errors import CannotLook
from ckpt_tools.layouts import BUILT_IN, Layouts
from ckpt_tools.layouts.common.lost_files import stale_index
from ckpt_tools.storage.links import Links
from ckpt_tools.storage.listing import Entries, EntryFilter, entries_of
from ckpt_tools.storage.urls import absolute, real_path
from ckpt_tools.storage.walk import THREADS, walk


@contextmanager
def no_collector() -> Iterator[None]:
    """A million small values without cycles: the garbage collector's passes over them cost half the time and
    free nothing.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@no_collector()
def discover(
    root: str,
    layouts: Layouts = BUILT_IN,
    *,
    listing: bool = False,
    threads: int = THREADS,
    excluded: Excluded | None = None,
    hear: Callable[[str], object] | None = None,
) -> Discovery:
    """Everything below ``root`` (a directory, one file, or a prefix of sibling directories). Raises
    CannotLook when there is nothing to look at.

    For a ``listing`` the parts include the files that an index describes; who reads the indexes finds those
    there. ``threads`` ask a file system at a time whose every answer takes long. Of entries that are
    ``excluded`` nothing is seen. ``hear`` is told of each directory.
    """
    found, files = Discovery(excluded=excluded or Excluded()), list[NamedFile]()
    names = NameReader(layouts, listing)
    tops = roots(root)
    trees = [is_tree(top) for top in tops]
    if tops[0] == absolute(root):
        found.tree, found.alone = trees[0], not trees[0]
    for top, tree in zip(tops, trees, strict=True):
        if tree:
            files = _below(top, names, found, files, threads=threads, hear=hear)
        else:
            _add_file(top, names, Listing(found, files))
    above = tops[0] if len(tops) == 1 and trees[0] else os.path.dirname(tops[0])
    files, stale = without_stale(files)
    found.lone += (stale_index(path, whole) for path, whole in stale.items())
    found.bare += (BareFile(path, *stat_of(path)) for path in stale)
    kept, others = settled(files, above)
    del files
    for file in others:
        directory, name = os.path.split(file.path)
        if name in layouts.note_names:
            found.trackers[name, directory] = file.path
            found.placed[file.path] = file.place.layout
        elif found.alone or formats.names.known(name):
            found.bare.append(BareFile(file.path, file.size, file.mtime_ns, file.findings))
        else:
            found.add_unrecognised(directory, name)
    found.lone += lone_numbers(kept, above)
    found.parts = name_parts(kept, above)
    return found


def _below(
    top: str,
    names: NameReader,
    found: Discovery,
    files: list[NamedFile],
    *,
    threads: int,
    hear: Callable[[str], object] | None,
) -> list[NamedFile]:
    """Those of a directory added to the files; those behind links by the names that tell most."""
    links, listing = Links(top, real_path(top)), Listing(found, files)
    found.links.append(links)

    def listed(
        path: str, keep: Callable[[Entries], Entries]
    ) -> Iterator[tuple[str, DirectoryNames | OSError]]:
        return walk(path, names.inspect, threads, _looked_at(found, top, keep))

    for path, here in listed(top, links.keep):
        if hear is not None:
            hear(path)
        if not isinstance(here, OSError):
            listing.add(here)
        elif path == top:
            raise CannotLook(f"cannot list {path}: {here.strerror}")
        else:
            listing.add_unlisted(path, here)
    if links.ambiguous():
        from ckpt_tools.discovery.linked import follow_links  # only where links lead to directories

        files = follow_links(links, lambda link: listed(link, links.follow), found, files)
    for path, why in sorted(links.unseen.items()):
        listing.add_unlisted(path, why)
    return files


def _looked_at(found: Discovery, top: str, keep: EntryFilter) -> EntryFilter:
    excluded, states = found.excluded, found.states
    return lambda entries: keep(without_state(excluded.keep(top, entries), states))


def _add_file(top: str, names: NameReader, listing: Listing) -> None:
    """One file, with the indexes that may explain it."""
    from ckpt_tools.discovery.seals_about import seals_about  # a directory has its seals in it

    home, name = os.path.split(top)
    seals = list(seals_about(top))
    try:
        beside = entries_of(home)
    except OSError as e:
        raise CannotLook(f"cannot list {home}, the directory of {top}: {e.strerror}") from e
    here = names.inspect(home, [e for e in beside if e.name == name])
    here.controls = controls_in(beside)
    listing.add(here, alone=True)
    indexes = listing.found.indexes
    described = (e for e in beside if formats.names.may_be_index(e.name) and not is_directory_alike(e))
    indexes += (e.path for e in described if e.path not in indexes)
    listing.found.seals += seals
    if formats.names.known(name):
        return
    for _ in range(4):  # a name that says nothing: its index may lie higher, in that of the whole save
        home = os.path.dirname(home)
        with suppress(OSError):  # what lies above was not asked about, and may be somebody else's
            indexes += (
                e.path for e in entries_of(home) if formats.names.may_be_index(e.name) and e.is_file()
            )
