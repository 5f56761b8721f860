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
from ckpt_tools.discovery.linked import follow_links
from ckpt_tools.discovery.names import drop_stale_indexes, find_lone_numbers, name_parts, settle_names
from ckpt_tools.discovery.roots import is_tree, roots
from ckpt_tools.discovery.seals import seals_about
from ckpt_tools.errors import CannotLook
from ckpt_tools.findings import finding
from ckpt_tools.layouts import BUILT_IN, Layouts
from ckpt_tools.layouts.common.lost_files import stale_index
from ckpt_tools.storage.links import Links
from ckpt_tools.storage.listing import THREADS, Entries, EntryFilter, entries_of, walk
from ckpt_tools.storage.urls import absolute, real_path

Hear = Callable[[str], object]


@contextmanager
def no_collector() -> Iterator[None]:
    """A million small values without cycles: passes over them cost half the time and free nothing."""
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
    hear: Hear | None = None,
) -> Discovery:
    """Return everything below ``root`` (a directory, one file, or a prefix of sibling directories), but what
    is ``excluded``; for a ``listing`` also parts that an index describes. ``threads`` ask a slow file system
    at a time, ``hear`` is told of each directory. Raises CannotLook when there is nothing to look at.
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
    files, stale = drop_stale_indexes(files)
    for flaw in (stale_index(path, whole) for path, whole in stale.items()):
        found.lone.append(
            finding(flaw.code, flaw.message, path=flaw.path, severity=flaw.severity, hint=flaw.hint)
        )
    found.bare += (BareFile(path, *stat_of(path)) for path in stale)
    kept, others = settle_names(files, above)
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
    found.lone += find_lone_numbers(kept, above)
    found.parts = name_parts(kept, above)
    return found


def _below(
    top: str, names: NameReader, found: Discovery, files: list[NamedFile], *, threads: int, hear: Hear | None
) -> list[NamedFile]:
    """Those of a directory added to the files; those behind links by the names that tell most."""
    links, listing = Links(top, real_path(top)), Listing(found, files)
    found.links.append(links)

    def listed(path: str, keep: EntryFilter) -> Iterator[tuple[str, DirectoryNames | OSError]]:
        def kept(entries: Entries) -> Entries:
            return keep(without_state(found.excluded.keep(top, entries), found.states))

        return walk(path, names.inspect, threads, kept)

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
        files = follow_links(links, lambda link: listed(link, links.follow), found, files)
    for path, why in sorted(links.unseen.items()):
        listing.add_unlisted(path, why)
    return files


def _add_file(top: str, names: NameReader, listing: Listing) -> None:
    """One file, with the indexes that may explain it."""
    home, name = os.path.split(top)
    seals = list(seals_about(top))  # a directory has its seals in it
    try:
        beside = entries_of(home)
    except OSError as e:
        raise CannotLook(f"cannot list {home}, the directory of {top}: {e.strerror}") from e
    here = names.inspect(home, [e for e in beside if e.name == name])
    here.controls = controls_in(beside)
    listing.add(here, alone=True)
    listing.found.seals += seals
    indexes = listing.found.indexes
    described = (e for e in beside if formats.names.may_be_index(e.name) and not is_directory_alike(e))
    indexes += (e.path for e in described if e.path not in indexes)
    for _ in range(0 if formats.names.known(name) else 4):
        home = os.path.dirname(home)  # a name that says nothing: its index may lie in that of the whole save
        with suppress(OSError):  # what lies above was not asked about, and may be somebody else's
            above = (e for e in entries_of(home) if formats.names.may_be_index(e.name))
            indexes += (e.path for e in above if e.is_file())
