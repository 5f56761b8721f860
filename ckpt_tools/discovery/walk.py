"""Roots in, parts out: one scandir per directory, at most one stat per file, no file opened."""

from __future__ import annotations

import errno
import gc
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial

from ckpt_tools import formats
from ckpt_tools.discovery.exclude import Hidden
from ckpt_tools.discovery.names import Row, lone_numbers, name_parts, settled
from ckpt_tools.errors import CannotLook
from ckpt_tools.findings import finding
from ckpt_tools.layouts import Layout, Piece, Places, Told, active, places_of, read_name
from ckpt_tools.layouts.common.copies import copy
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Part, Unseen
from ckpt_tools.storage.links import Links, within
from ckpt_tools.storage.listing import EntryFilter, entries_of
from ckpt_tools.storage.retry import ABSENT, is_directory, patiently, there
from ckpt_tools.storage.walk import THREADS, walk

_TEMPORARY = re.compile(r"\.tmp\w*$|^\.tmp|\.tmp$|\.dirty(\.\w+)?$|\.part(ial)?$|\.tempstate\d+$")
_LINKED = 10_000
"""Files at most behind a link without a number in its name that are listed by that name as well."""
_DIGIT = re.compile(r"\d")
_NAMES = 100_000
"""Names remembered at most: a bound on memory, not on what is found."""
_GRAPH = "-graph.meta"  # MindSpore's graph protobuf: known, and no checkpoint


@lru_cache(8)
def _trackers(layouts: tuple[Layout, ...]) -> frozenset[str]:
    return frozenset(name for layout in layouts for name in (layout.tracker, *layout.records) if name)


@dataclass
class Discovery:
    """What directory listings show. ``bare`` are files that only a format's suffix recognises, as (path, size, mtime_ns, findings);
    ``trackers`` maps (name, directory) to the path of a file that some layout calls its tracker or one of its records; ``unfinished`` are paths of temporary files of interrupted saves,
    ``indexes`` those of files that may describe others,
    ``unneeded`` those of files that hold no state, ``copies`` those of unrecognised files whose names call them copies, ``links`` what leads to directories, ``lone`` says which numbered directories lack their first, ``strange`` the directories of files that nothing recognises,
    ``unseen`` what could not be listed, and what vanished meanwhile. ``tree``: ROOT is a directory; ``alone``: it is one file.
    """

    parts: list[Part] = field(default_factory=list)
    bare: list[tuple[str, int, int, tuple[Finding, ...]]] = field(default_factory=list)
    trackers: dict[tuple[str, str], str] = field(default_factory=dict)
    unfinished: list[str] = field(default_factory=list)
    indexes: list[str] = field(default_factory=list)
    unseen: list[Unseen] = field(default_factory=list)
    unneeded: list[str] = field(default_factory=list)
    copies: list[str] = field(default_factory=list)
    links: list[Links] = field(default_factory=list)
    lone: list[Finding] = field(default_factory=list)
    unrecognised: int = 0
    strange: dict[str, None] = field(default_factory=dict)
    hidden: Hidden = field(default_factory=Hidden)
    tree: bool = False
    alone: bool = False

    def resolved(self, path: str) -> str:
        """The path without a link to a directory below ROOT."""
        for links in self.links:
            path = links.resolved(path)
        return path


def roots(root: str) -> list[str]:
    """``root`` itself, or the sibling directories it is a prefix of (``output/ckpt`` for ``output/ckpt_0``). Raises CannotLook when there is neither."""
    path = os.path.abspath(root)
    try:
        patiently(os.stat, path)
        return [path]
    except ABSENT:
        pass
    except OSError as e:
        raise CannotLook(f"cannot look at {root}: {e.strerror}") from e
    parent, name = os.path.split(path)
    try:
        siblings = [e for e in entries_of(parent) if re.fullmatch(re.escape(name) + r"_?\d+", e.name)]
        found = [e.path for e in siblings if is_directory(e)]
        # TensorFlow's users name a checkpoint by what its files have in common
        found = found or [path + s for s in formats.names.index_suffixes if there(path + s)]
    except ABSENT:
        found = []
    except OSError as e:
        raise CannotLook(f"cannot look for {root}: {e.filename or parent}: {e.strerror}") from e
    if not found:
        raise CannotLook(f"{root} does not exist", "check the path and that its file system is mounted")
    return found


def absent(root: str) -> bool:
    """Whether there certainly is nothing at ``root``, nor any directory or file that it is a prefix of, in a directory that is there and could be listed."""
    path = os.path.abspath(root)
    parent, name = os.path.split(path)
    indexes = tuple(name + suffix for suffix in formats.names.index_suffixes)
    try:
        if there(path):
            return False
        return not any(
            e.name in indexes or re.fullmatch(re.escape(name) + r"_?\d+", e.name) for e in entries_of(parent)
        )
    except OSError:
        return False


def stat_of(path: str | os.DirEntry[str]) -> tuple[int, int, tuple[Finding, ...]]:
    """(size, mtime_ns, findings) of a file that should be a checkpoint; size -1 when there is no such file to read."""
    try:
        st = patiently(os.stat, path) if isinstance(path, str) else patiently(path.stat)
    except OSError as e:
        code = (
            "symlink-loop"
            if e.errno == errno.ELOOP
            else "dangling-link"
            if isinstance(e, ABSENT) and _is_link(path)
            else "unreadable"
        )
        return -1, 0, (finding(code, f"{os.path.basename(path)}: {e.strerror}"),)
    if not stat.S_ISREG(st.st_mode):
        kind = "a directory" if stat.S_ISDIR(st.st_mode) else "a special file"
        return (
            -1,
            st.st_mtime_ns,
            (finding("not-a-file", f"there is {kind} where a checkpoint file belongs"),),
        )
    return st.st_size, st.st_mtime_ns, ()


def _is_link(path: str | os.DirEntry[str]) -> bool:
    """Whether it surely is a symbolic link."""
    try:
        return stat.S_ISLNK(patiently(os.lstat, path).st_mode)
    except OSError:
        return False


@contextmanager
def no_collector() -> Iterator[None]:
    """A million small values without cycles: the garbage collector's passes over them cost half the time and free nothing."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class _Names:
    """What names tell, each read once: a million files have few distinct ones. ``listing`` as in ``discover``."""

    def __init__(self, listing: bool) -> None:
        self.listing = listing
        self._known: dict[int, dict[str, tuple[Told | None, bool, bool]]] = {}

    def look(self, path: str, entries: list[os.DirEntry[str]]) -> _Here:
        """What the names in a directory tell; no file is asked about."""
        places = places_of(path, self.listing)
        here, pieces = _Here(path, places), places.pieces
        known, beside = self._known.setdefault(id(pieces), {}), set[str]()
        for e in entries:
            name = e.name
            told, index, doubtful = known.get(name) or self._learn(name, pieces, known)
            if doubtful and name.endswith(".meta"):
                beside = beside or {other.name for other in entries}
                if f"{name[:-5]}.index" in beside:
                    here.unneeded.append(e.path)  # TensorFlow 1's graph beside its bundle
                    continue
            if index:
                here.indexes.append(e.path)
            if told is None or (doubtful and _no_file(e, pieces[told[0]])):
                here.others.append(e)
            else:
                here.mine.append((e, told))
        return here

    def _learn(
        self, name: str, pieces: list[Piece], known: dict[str, tuple[Told | None, bool, bool]]
    ) -> tuple[Told | None, bool, bool]:
        """What the name tells, whether it may be that of an index, and whether it says so little that the entry counts as well."""
        told = read_name(name, pieces)
        doubtful = name.endswith(".meta") or (
            told is not None and (pieces[told[0]].weak or pieces[told[0]].described)
        )
        row = told, formats.names.may_be_index(name), doubtful
        if len(known) < _NAMES:
            known[name] = row
        return row


class _Here:
    """The entries of one directory, sorted by what their names tell: ``mine`` are those that some layout knows."""

    __slots__ = ("indexes", "mine", "others", "path", "places", "unneeded")

    def __init__(self, path: str, places: Places) -> None:
        self.path, self.places = path, places
        self.mine: list[tuple[os.DirEntry[str], Told]] = []
        self.others: list[os.DirEntry[str]] = []
        self.indexes: list[str] = []
        self.unneeded: list[str] = []

    def to_stat(self) -> Iterator[os.DirEntry[str]]:
        """The entries whose size and time will be asked for."""
        yield from (e for e, _ in self.mine)
        yield from (e for e in self.others if formats.names.known(e.name) and not _is_tracker(e.name))


@no_collector()
def discover(
    root: str, listing: bool = False, threads: int = THREADS, hidden: Hidden | None = None
) -> Discovery:
    """Everything below ``root`` (a directory, one file, or a prefix of sibling directories). Raises CannotLook when there is nothing to look at.

    For a ``listing`` the parts include the files that an index describes; who reads the indexes finds those there.
    ``threads`` ask a file system at a time whose every answer takes long. Of entries that are ``hidden`` nothing is seen.
    """
    hidden = hidden or Hidden()
    found, rows, names = Discovery(hidden=hidden), list[Row](), _Names(listing)
    tops = roots(root)
    trees = [_is_tree(top) for top in tops]
    if tops[0] == os.path.abspath(root):
        found.tree, found.alone = trees[0], not trees[0]
    for top, tree in zip(tops, trees, strict=True):
        if not tree:
            _alone(top, names, found, rows)
            continue
        links = Links(top)
        found.links.append(links)
        keep = partial(_kept, partial(hidden.keep, top), links)
        for path, here in walk(top, names.look, threads, keep):
            if not isinstance(here, OSError):
                _take(here, found, rows)
            elif path == top:
                raise CannotLook(f"cannot list {path}: {here.strerror}")
            else:
                _unlisted(path, here, found)
        keep = partial(_followed, partial(hidden.keep, top), links)
        _follow(links, partial(walk, inspect=names.look, threads=threads, keep=keep), found, rows)
        for path, why in sorted(links.unseen.items()):
            _unlisted(path, why, found)
    above = tops[0] if len(tops) == 1 and trees[0] else os.path.dirname(tops[0])
    kept, others = settled(rows)
    del rows
    for _, _, path, size, mtime_ns, findings, _ in others:
        if formats.names.known(path.rpartition("/")[2]):
            found.bare.append((path, size, mtime_ns, findings))
        else:
            found.unrecognised += 1
            found.strange[os.path.dirname(path)] = None
    found.lone += lone_numbers(kept, above)
    found.parts = list(name_parts(kept, above))
    return found


def _kept(hidden: EntryFilter, links: Links, entries: list[os.DirEntry[str]]) -> list[os.DirEntry[str]]:
    return links.keep(hidden(entries))


def _followed(hidden: EntryFilter, links: Links, entries: list[os.DirEntry[str]]) -> list[os.DirEntry[str]]:
    return links.follow(hidden(entries))


Listed = Callable[[str], Iterator[tuple[str, "_Here | OSError"]]]


@dataclass
class _Behind:
    """What the names behind a link tell, links inside it followed as well: for each real directory the
    ``way`` there and the ``rows`` of its files.
    """

    way: dict[str, str] = field(default_factory=dict)
    rows: dict[str, list[Row]] = field(default_factory=dict)
    seen: Discovery = field(default_factory=Discovery)

    def add(self, link: str, links: Links, listed: Listed) -> None:
        for path, here in listed(link):
            if isinstance(here, OSError):
                _unlisted(path, here, self.seen)
                continue
            home = links.resolved(path)
            self.way[home] = path
            _take(here, self.seen, self.rows.setdefault(home, []))

    def telling(self, to: str, known: dict[str, list[Row]]) -> set[str]:
        """The directories that go by the path of a link to ``to``: those of which that tells more, and with
        them the others of what it leads to; but what lies elsewhere and is known by a name as good keeps that
        (``previous -> ../step-10`` in a checkpoint).
        """
        tells = {home: (_telling(rows), _telling(known.get(home, ()))) for home, rows in self.rows.items()}
        if not any(new > old for new, old in tells.values()):
            return set()
        alike = {home for home, (new, old) in tells.items() if new == old and (not old or within(home, to))}
        return alike | {home for home, (new, old) in tells.items() if new > old}


def _follow(links: Links, listed: Listed, found: Discovery, rows: list[Row]) -> None:
    """Links whose own names tell more (a step, a rank) than those of what they lead to: its files then go by
    the path of the link.
    """
    todo = dict.fromkeys(links.ambiguous())
    if not todo:
        return
    homes: dict[str, list[Row]] = {}
    for row in rows:
        homes.setdefault(links.resolved(os.path.dirname(row[2])), []).append(row)
    done = set[str]()
    while todo:
        link = next(iter(todo))
        del todo[link]
        done.add(link)
        to = links.resolved(link)
        files = sum(len(some) for home, some in homes.items() if within(home, to))
        if files > _LINKED and not _DIGIT.search(os.path.basename(link)):
            continue
        links.met.clear()
        behind = _Behind()
        behind.add(link, links, listed)
        found.unseen += behind.seen.unseen
        taken = behind.telling(to, homes)
        if taken:
            links.followed.add(link)
            homes.update((home, behind.rows[home]) for home in taken)
            _renamed(found, behind.seen, taken, links)
            # each directory was listed once: another way to it, below this link, may tell more
            known = done.union(behind.way.values())
            todo.update(dict.fromkeys(path for path in sorted(links.met) if path not in known))
    rows[:] = [row for some in homes.values() for row in some]


def _renamed(found: Discovery, seen: Discovery, taken: set[str], links: Links) -> None:
    """What was found beside the files of directories that go by another path now goes by that."""

    def moved(path: str) -> bool:
        return links.resolved(os.path.dirname(path)) in taken

    found.bare = [b for b in found.bare if not moved(b[0])] + [b for b in seen.bare if moved(b[0])]
    found.indexes += (path for path in seen.indexes if moved(path))
    found.trackers |= {key: path for key, path in seen.trackers.items() if moved(path)}


def _telling(rows: Iterable[Row]) -> int:
    """How much the names of files tell of which save they are and whose."""
    known = (
        (row[0].step, row[0].epoch, row[0].generation, row[0].rank, *row[0].coords, *row[1][4:6], row[1][1])
        for row in rows
        if row[0].sure
    )
    return max((1 + sum(value is not None for value in values) for values in known), default=0)


def _is_tree(top: str) -> bool:
    try:
        return is_directory(top)
    except OSError as e:
        raise CannotLook(f"cannot look at {top}: {e.strerror}") from e


def _unlisted(path: str, why: OSError, found: Discovery) -> None:
    """A directory that could not be listed, or an entry of which nobody can say whether it is one."""
    if isinstance(why, NotADirectoryError):
        return  # a file after all: its directory has it
    if isinstance(why, FileNotFoundError):
        found.unseen.append(Unseen(path, "it vanished while its directory was listed", mtime_ns=0))
        return
    try:
        mtime_ns = patiently(os.stat, path).st_mtime_ns
    except OSError:
        mtime_ns = None
    found.unseen.append(Unseen(path, f"cannot list the directory: {why.strerror}", mtime_ns=mtime_ns))


def _alone(top: str, names: _Names, found: Discovery, rows: list[Row]) -> None:
    """One file, with the indexes that may explain it."""
    home, name = os.path.split(top)
    try:
        beside = entries_of(home)
    except OSError as e:
        raise CannotLook(f"cannot list {home}, the directory of {top}: {e.strerror}") from e
    _take(names.look(home, [e for e in beside if e.name == name]), found, rows, alone=True)
    found.indexes += (
        e.path for e in beside if formats.names.may_be_index(e.name) and e.path not in found.indexes
    )
    if formats.names.known(name):
        return
    for _ in range(
        2
    ):  # a name that says nothing: its index may lie higher, as that of Orbax' data files does
        home = os.path.dirname(home)
        with suppress(OSError):  # what lies above was not asked about, and may be somebody else's
            found.indexes += (
                e.path for e in entries_of(home) if formats.names.may_be_index(e.name) and e.is_file()
            )


def _take(here: _Here, found: Discovery, rows: list[Row], alone: bool = False) -> None:
    """Ask for sizes and times, and add one directory to what was found."""
    places = here.places
    found.indexes += here.indexes
    found.unneeded += here.unneeded
    for e, told in here.mine:
        try:
            st = patiently(e.stat)
            if stat.S_IFMT(st.st_mode) == stat.S_IFREG:  # nearly all: this is the inner loop
                rows.append((places[told[0]], told, e.path, st.st_size, st.st_mtime_ns, (), places))
                continue
        except ABSENT:
            if not _is_link(e):
                step = places[told[0]].step if told[4] is None else told[4]
                found.unseen.append(Unseen(e.path, "it vanished while its directory was listed", step, 0))
                continue
        except OSError:
            pass
        size, mtime_ns, findings = stat_of(e)
        if size < 0 and _holds_something(e):
            here.others.append(e)
        else:
            rows.append((places[told[0]], told, e.path, size, mtime_ns, findings, places))
    for e in here.others:
        _other(here.path, e, found, alone)


def _no_file(e: os.DirEntry[str], piece: Piece) -> bool:
    """Whether an entry is not what a name of little meaning makes it: some frameworks save into a directory called x.ckpt; data that is only described has any name."""
    if piece.described and (_TEMPORARY.search(e.name) or _is_tracker(e.name) or e.name.endswith(_GRAPH)):
        return True
    return (piece.weak or piece.described) and _is_directory(e)


def _is_tracker(name: str) -> bool:
    return name in _trackers(active())


def _other(path: str, e: os.DirEntry[str], found: Discovery, alone: bool) -> None:
    """A file that no layout knows: a tracker, a leftover, a file recognised by suffix, or nothing of ours."""
    name = e.name
    if _is_tracker(name):
        found.trackers[name, path] = e.path
    elif formats.names.known(name) or alone:
        size, mtime_ns, findings = stat_of(e)
        if size >= 0 or not _holds_something(e):
            found.bare.append((e.path, size, mtime_ns, findings))
    elif _is_directory(e) or name.endswith(_GRAPH):
        pass
    elif _TEMPORARY.search(name):
        found.unfinished.append(e.path)
    else:
        found.unrecognised += 1
        found.strange[path] = None
        if copy(name):
            found.copies.append(e.path)


def _is_directory(e: os.DirEntry[str]) -> bool:
    """Whether ``e`` surely is a directory; what cannot be told is walked into, and the walk says why."""
    try:
        return is_directory(e)
    except OSError:
        return False


def _holds_something(e: os.DirEntry[str]) -> bool:
    """Whether ``e`` is a directory with entries: some frameworks save into a directory named like a file; an empty one took a file's place.

    One that cannot be listed may hold something; the walk says why it cannot.
    """
    if not _is_directory(e):
        return False
    try:
        return bool(entries_of(e.path))
    except OSError:
        return True
