"""Roots in, parts out: one scandir per directory, at most one stat per file, no file opened."""

from __future__ import annotations

import errno
import gc
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache

from ckpt_tools import formats
from ckpt_tools.codes import finding
from ckpt_tools.errors import CannotLook
from ckpt_tools.layouts import Layout, Piece, Places, Told, active, places_of, read_name
from ckpt_tools.listing import THREADS, walk
from ckpt_tools.model import Finding, Part
from ckpt_tools.naming import Row, name_parts, settled

_TEMPORARY = re.compile(r"\.tmp\w*$|^\.tmp|\.tmp$|\.dirty(\.\w+)?$|\.part(ial)?$|\.tempstate\d+$")
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
    ``unneeded`` those of files that hold no state.
    """

    parts: list[Part] = field(default_factory=list)
    bare: list[tuple[str, int, int, tuple[Finding, ...]]] = field(default_factory=list)
    trackers: dict[tuple[str, str], str] = field(default_factory=dict)
    unfinished: list[str] = field(default_factory=list)
    indexes: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    unneeded: list[str] = field(default_factory=list)
    unrecognised: int = 0


def roots(root: str) -> list[str]:
    """``root`` itself, or the sibling directories it is a prefix of (``output/ckpt`` for ``output/ckpt_0``). Raises CannotLook when there is neither."""
    path = os.path.abspath(root)
    try:
        os.stat(path)
        return [path]
    except (FileNotFoundError, NotADirectoryError):
        parent, name = os.path.split(path)
        try:
            with os.scandir(parent) as it:
                siblings = sorted(e.path for e in it if re.fullmatch(re.escape(name) + r"_?\d+", e.name) and e.is_dir())
        except OSError:
            siblings = []
        if siblings:
            return siblings
        if indexes := [path + s for s in formats.names.index_suffixes if os.path.exists(path + s)]:
            return indexes  # TensorFlow's users name a checkpoint by what its files have in common
        raise CannotLook(f"{root} does not exist", "check the path and that its file system is mounted") from None
    except OSError as e:
        raise CannotLook(f"cannot look at {root}: {e.strerror}") from e


def stat_of(path: str | os.DirEntry[str]) -> tuple[int, int, tuple[Finding, ...]]:
    """(size, mtime_ns, findings) of a file that should be a checkpoint; size -1 when there is no such file to read."""
    try:
        st = os.stat(path) if isinstance(path, str) else path.stat()
    except OSError as e:
        linked = os.path.islink(path)
        code = "symlink-loop" if e.errno == errno.ELOOP else "dangling-link" if linked and isinstance(e, FileNotFoundError) else "unreadable"
        return -1, 0, (finding(code, f"{os.path.basename(path)}: {e.strerror}"),)
    if not stat.S_ISREG(st.st_mode):
        kind = "a directory" if stat.S_ISDIR(st.st_mode) else "a special file"
        return -1, st.st_mtime_ns, (finding("not-a-file", f"there is {kind} where a checkpoint file belongs"),)
    return st.st_size, st.st_mtime_ns, ()


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

    def _learn(self, name: str, pieces: list[Piece], known: dict[str, tuple[Told | None, bool, bool]]) -> tuple[Told | None, bool, bool]:
        """What the name tells, whether it may be that of an index, and whether it says so little that the entry counts as well."""
        told = read_name(name, pieces)
        doubtful = name.endswith(".meta") or (told is not None and (pieces[told[0]].weak or pieces[told[0]].described))
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

    def asked(self) -> Iterator[os.DirEntry[str]]:
        """The entries whose size and time will be asked for."""
        yield from (e for e, _ in self.mine)
        yield from (e for e in self.others if formats.names.known(e.name) and not _is_tracker(e.name))


@no_collector()
def discover(root: str, listing: bool = False, threads: int = THREADS) -> Discovery:
    """Everything below ``root`` (a directory, one file, or a prefix of sibling directories). Raises CannotLook when there is nothing to look at.

    For a ``listing`` the parts include the files that an index describes; who reads the indexes finds those there.
    ``threads`` ask a file system at a time whose every answer takes long.
    """
    found, rows, names = Discovery(), list[Row](), _Names(listing)
    tops = roots(root)
    for top in tops:
        if os.path.isdir(top):
            for path, here in walk(top, names.look, threads):
                if not isinstance(here, OSError):
                    _take(here, found, rows)
                elif path == top:
                    raise CannotLook(f"cannot list {path}: {here.strerror}")
                else:
                    found.findings.append(finding("unreadable", f"cannot list the directory: {here.strerror}", path=path))
        else:
            with os.scandir(os.path.dirname(top)) as it:
                beside = list(it)
            _take(names.look(os.path.dirname(top), [e for e in beside if e.name == os.path.basename(top)]), found, rows, alone=True)
            found.indexes += (
                e.path for e in beside if formats.names.may_be_index(e.name) and e.path not in found.indexes
            )  # they may explain the file
            if not formats.names.known(
                os.path.basename(top)
            ):  # a name that says nothing: its index may lie higher, as that of Orbax' data files does
                above = os.path.dirname(top)
                for _ in range(2):
                    above = os.path.dirname(above)
                    with suppress(OSError), os.scandir(above) as it:
                        found.indexes += (e.path for e in it if formats.names.may_be_index(e.name) and e.is_file())
    above = tops[0] if len(tops) == 1 and os.path.isdir(tops[0]) else os.path.dirname(tops[0])
    kept, others = settled(rows)
    for _, _, path, size, mtime_ns, findings, _ in others:
        if formats.names.known(path.rpartition("/")[2]):
            found.bare.append((path, size, mtime_ns, findings))
        else:
            found.unrecognised += 1
    found.parts = list(name_parts(kept, above))
    return found


def _take(here: _Here, found: Discovery, rows: list[Row], alone: bool = False) -> None:
    """Ask for sizes and times, and add one directory to what was found."""
    places = here.places
    found.indexes += here.indexes
    found.unneeded += here.unneeded
    for e, told in here.mine:
        try:
            st = e.stat()
            if stat.S_IFMT(st.st_mode) == stat.S_IFREG:  # nearly all: this is the inner loop
                rows.append((places[told[0]], told, e.path, st.st_size, st.st_mtime_ns, (), places))
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


def _is_directory(e: os.DirEntry[str]) -> bool:
    try:
        return e.is_dir()
    except OSError:
        return False


def _holds_something(e: os.DirEntry[str]) -> bool:
    """Whether ``e`` is a directory with entries: some frameworks save into a directory named like a file; an empty one took a file's place."""
    try:
        return e.is_dir() and any(True for _ in _names(e.path))
    except OSError:
        return False


def _names(path: str) -> Iterator[str]:
    with os.scandir(path) as it:
        yield from (e.name for e in it)
