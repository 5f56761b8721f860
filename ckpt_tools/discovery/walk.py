"""Roots in, parts out: a scandir per directory, a stat per file at most. And links that tell more."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from operator import attrgetter
from shlex import quote

from ckpt_tools import formats
from ckpt_tools.discovery import names as naming
from ckpt_tools.discovery.exclude import Excluded, leave_out_state
from ckpt_tools.discovery.found import (
    BareFile,
    DirectoryNames,
    Discovery,
    NamedFile,
    add_directory,
    add_unlisted,
    inspect_names,
    is_directory_alike,
    map_controls,
    stat_of,
)
from ckpt_tools.discovery.seals import find_seals
from ckpt_tools.errors import CannotLook
from ckpt_tools.findings import finding
from ckpt_tools.layouts import BUILT_IN, Layouts
from ckpt_tools.layouts.common.lost_files import warn_of_stale_index
from ckpt_tools.storage.listing import Entries, EntryFilter, Links, is_within, list_entries, walk
from ckpt_tools.storage.retry import ABSENT, exists, is_directory, status
from ckpt_tools.storage.urls import is_url, real_path, to_absolute

Hear = Callable[[str], object]
Inspect = Callable[[str, Entries], DirectoryNames]


@contextmanager
def without_collector() -> Iterator[None]:
    """Switch off the garbage collector during a scan: it costs half the time, and frees nothing."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@without_collector()
def discover(
    root: str,
    layouts: Layouts = BUILT_IN,
    *,
    listing: bool = False,
    excluded: Excluded | None = None,
    hear: Hear | None = None,
) -> Discovery:
    """Return everything below ``root`` (a directory, one file, or a prefix of sibling directories), but for
    ``excluded`` paths; for a ``listing`` also parts that an index lists. ``hear`` is called with each
    directory. Raise CannotLook if there is nothing at the root.
    """
    found = Discovery(excluded=excluded or Excluded())
    inspect = partial(inspect_names, layouts, layouts.templates(listing))
    tops = roots(root)
    trees = [is_tree(top) for top in tops]
    if tops[0] == to_absolute(root):
        found.tree, found.alone = trees[0], not trees[0]
    for top, tree in zip(tops, trees, strict=True):
        if tree:
            _list_below(top, inspect, found, hear)
        else:
            _add_file(top, inspect, found)
    run_top = tops[0] if len(tops) == 1 and trees[0] else os.path.dirname(tops[0])
    (files, stale), found.named = naming.drop_stale_indexes(found.named), []
    for path, whole in stale.items():
        f = warn_of_stale_index(path, whole)
        found.lone.append(finding(f.code, f.message, path=path, severity=f.severity, hint=f.hint))
    found.bare += map(stat_of, stale)
    part_files, others = naming.settle_names(files, run_top)
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
    found.lone += naming.find_lone_numbers(part_files, run_top)
    found.parts = naming.name_parts(part_files, run_top)
    return found


def _list_below(top: str, inspect: Inspect, found: Discovery, hear: Hear | None) -> None:
    """Add a directory and all below it to ``found``; a file behind links has the name that tells most."""
    links = Links(top, real_path(top))
    found.links.append(links)

    def walk_from(path: str, keep: EntryFilter) -> Iterator[tuple[str, DirectoryNames | OSError]]:
        def keep_and_note(entries: Entries) -> Entries:
            """Drop excluded entries and .ckpt, noting them in ``found``, then what ``keep`` drops."""
            return keep(leave_out_state(found.excluded.keep(top, entries), found.states))

        for directory, entries in walk(path, keep_and_note):
            yield directory, entries if isinstance(entries, OSError) else inspect(directory, entries)

    for path, listed in walk_from(top, links.keep):
        if hear is not None:
            hear(path)
        if not isinstance(listed, OSError):
            add_directory(found, listed)
        elif path == top:
            raise CannotLook(f"cannot list {path}: {listed.strerror}")
        else:
            add_unlisted(found, path, listed)
    if links.ambiguous():
        follow_links(links, lambda link: walk_from(link, links.follow), found)
    for path, error in sorted(links.unseen.items()):
        add_unlisted(found, path, error)


def _add_file(top: str, inspect: Inspect, found: Discovery) -> None:
    """Add one file, with the indexes that may explain it."""
    home, name = os.path.split(top)
    seals = list(find_seals(top))  # a directory has its seals in it
    try:
        beside = list_entries(home)
    except OSError as e:
        raise CannotLook(f"cannot list {home}, the directory of {top}: {e.strerror}") from e
    here = inspect(home, [e for e in beside if e.name == name])
    here.controls = map_controls(beside)
    add_directory(found, here, alone=True)
    found.seals += seals
    indexes = found.indexes
    candidates = (e for e in beside if formats.names.may_be_index(e.name) and not is_directory_alike(e))
    indexes += (e.path for e in candidates if e.path not in indexes)
    for _ in range(0 if formats.names.known(name) else 4):
        home = os.path.dirname(home)  # the name says nothing: its index may lie in the save's own directory
        with suppress(OSError):  # nobody asked about the directories above, which may be somebody else's
            above = (e for e in list_entries(home) if formats.names.may_be_index(e.name))
            indexes += (e.path for e in above if e.is_file())


_LINKED = 10_000
"""The most files that are listed again by the path of a link, if the link's name has no number."""
_DIGIT = re.compile(r"\d")

Walk = Callable[[str], Iterator[tuple[str, "DirectoryNames | OSError"]]]
"""Yields the directories at and below a link, as ``storage.listing.walk`` does."""


def follow_links(links: Links, walk: Walk, found: Discovery) -> None:
    """Name files, and entries beside them, by a link's path if that tells more."""
    todo, done = links.ambiguous(), set[str]()
    homes: dict[str, list[NamedFile]] = {}
    for file in found.named:
        homes.setdefault(links.resolved(os.path.dirname(file.path)), []).append(file)
    while todo:
        link = todo.pop(0)
        done.add(link)
        target = links.resolved(link)
        count = sum(len(files) for home, files in homes.items() if is_within(home, target))
        if count > _LINKED and not _DIGIT.search(os.path.basename(link)):
            continue
        links.met.clear()
        behind, way, named = Discovery(), dict[str, str](), dict[str, list[NamedFile]]()
        for path, here in walk(link):  # links inside it are followed as well
            if isinstance(here, OSError):
                add_unlisted(behind, path, here)
                continue
            home = links.resolved(path)
            way[home] = path
            behind.named = named.setdefault(home, [])
            add_directory(behind, here)
        found.unseen += behind.unseen
        renamed = _choose_renamed(named, homes, target)
        if renamed:
            links.followed.add(link)
            homes.update((home, named[home]) for home in renamed)
            _replace_paths(found, behind, links, renamed)
            # each directory was listed once: another way to it, below this link, may tell more
            known = done.union(way.values(), todo)
            todo += sorted({*links.met} - known)
    found.named = [file for files in homes.values() for file in files]


def _choose_renamed(
    new_files: dict[str, list[NamedFile]], old_files: dict[str, list[NamedFile]], target: str
) -> set[str]:
    """Return the directories whose names tell more in ``new_files``, through a link to ``target``."""
    rates = {home: (_rate(files), _rate(old_files.get(home, ()))) for home, files in new_files.items()}
    more = {home for home, (new, old) in rates.items() if new > old}
    equal = {h for h, (new, old) in rates.items() if new == old and (not any(old) or is_within(h, target))}
    return more | equal if more else more  # what lies behind one link stays together


def _rate(files: Iterable[NamedFile]) -> tuple[bool, int]:
    """Return how much the best of the names tells: if a layout is sure, and how many numbers it has."""
    best = (False, 0)
    for file in files:
        at: NamedFile | None = file
        while at is not None and not (at.place.sure or at.place.piece.claim.needs_no_other):
            at = naming.read_next_piece(at)  # of two frameworks that write this name, one may be sure of it
        place, name = (at or file).place, (at or file).name
        of_place = place.step, place.epoch, place.generation, place.rank
        fields = (*of_place, *place.coords, name.step, name.epoch, name.rank)
        best = max(best, (at is not None, sum(value is not None for value in fields)))
    return best


def _replace_paths(found: Discovery, behind: Discovery, links: Links, renamed: set[str]) -> None:
    """Replace entries in ``renamed`` directories by those of ``behind``, whose paths lead through a link."""

    def is_moved(path: str) -> bool:
        return links.resolved(os.path.dirname(path)) in renamed

    for old, new in ((found.bare, behind.bare), (found.seals, behind.seals)):
        old[:] = [*(f for f in old if not is_moved(f.path)), *(f for f in new if is_moved(f.path))]
    found.indexes += filter(is_moved, behind.indexes)
    found.trackers |= {key: path for key, path in behind.trackers.items() if is_moved(path)}


_NAMES = 10_000
"""The most entries of a directory that are compared with the name of a missing root."""


def roots(root: str) -> list[str]:
    """Return ``root`` itself, or the sibling directories it is a prefix of (``output/ckpt`` for
    ``output/ckpt_0``), or the common prefix of its files. Raise CannotLook if there is neither.
    """
    path = to_absolute(root)
    try:
        status(path)
        return [path]
    except OSError as e:
        if not isinstance(e, ABSENT):
            raise CannotLook(f"cannot look at {root}: {e.strerror}") from e
    parent, name = os.path.split(path)
    try:
        beside = list_entries(parent)
        if is_url(root) and name in map(attrgetter("name"), beside):
            text = f"{root} is in one list of its store, and not in another"
            raise CannotLook(text, "run it again, and see what docs/stores.md says of its store")
        found = [e.path for e in beside if _is_numbered(name, e.name) and is_directory(e)]
        found = found or [path + s for s in formats.names.index_suffixes if exists(path + s)]
    except ABSENT:
        found = []
    except OSError as e:
        raise CannotLook(f"cannot look for {root}: {e.filename or parent}: {e.strerror}") from e
    if not found:
        raise CannotLook(f"{root} does not exist", _suggest_root(root, path), rule="tree/could-not-look")
    return found


def _suggest_root(root: str, path: str) -> str:
    """Return a hint about a root that is not there: the name that was probably meant, or what is missing."""
    if is_url(path):
        return "check the bucket and the name"
    from difflib import get_close_matches  # only after a mistake: it costs start-up time

    parent, name = os.path.split(path)
    with suppress(OSError):
        names = [e.name for e in list_entries(parent)][:_NAMES]
        if close := get_close_matches(name, names, 1, 0.6):
            return f"did you mean {quote(root.rstrip('/')[: -len(name)] + close[0])}?"
        if not names:
            return f"{parent} is empty: check that its file system is mounted"
    return "check its spelling and that its file system is mounted"


def _is_numbered(name: str, sibling: str) -> bool:
    """Return True if a sibling has this name and a number behind it (``ckpt_0`` or ``ckpt0``)."""
    return re.fullmatch(re.escape(name) + r"_?\d+", sibling) is not None


def is_absent(root: str) -> bool:
    """Return True if its directory can be listed, without ``root`` or an entry that it is a prefix of."""
    path = to_absolute(root)
    parent, name = os.path.split(path)
    indexes = tuple(name + suffix for suffix in formats.names.index_suffixes)
    try:
        if exists(path):
            return False
        names = [e.name for e in list_entries(parent)]
        return not any(n == name or n in indexes or _is_numbered(name, n) for n in names)
    except OSError:
        return False


def is_tree(top: str) -> bool:
    """Return True if a path is a directory. Raise CannotLook."""
    try:
        return is_directory(top)
    except OSError as e:
        raise CannotLook(f"cannot look at {top}: {e.strerror}") from e


def require_file(url: str) -> None:
    """Raise OSError if something lies below a store's path that looks like a file's, or no store answers."""
    from ckpt_tools.storage.stores.mounts import tree_of

    tree, key = tree_of(url)
    # a login page answers as if there were a file of each name
    tree.store.confirm_nothing(key)
