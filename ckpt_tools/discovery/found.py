"""The results of listing a root: its parts, and all other entries that tell something about them."""

from __future__ import annotations

import errno
import os
import stat
from typing import NamedTuple

from msgspec import Struct, field

from ckpt_tools.discovery.exclude import Excluded, is_set_aside
from ckpt_tools.findings import adapt_hint, finding
from ckpt_tools.layouts import Layout, NameFields, Place, Places
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Part, Unseen
from ckpt_tools.storage.listing import Links, list_entries
from ckpt_tools.storage.retry import ABSENT, is_directory, is_link, lstat, status
from ckpt_tools.storage.stalls import retry_call
from ckpt_tools.storage.urls import real_path

_TEXTS = (".json", ".yaml", ".yml", ".txt", ".model", ".jinja")
"""Endings of files that describe a model, and of training loops' notes beside it."""
_MOST_TEXTS = 10_000


class NamedFile(NamedTuple):
    """A file whose name some layout knows; ``places`` are all pieces that its directory may have."""

    place: Place
    name: NameFields
    size: int
    mtime_ns: int
    findings: tuple[Finding, ...]
    places: Places

    @property
    def path(self) -> str:
        return self.places.directory + self.name.whole


class BareFile(NamedTuple):
    """A file of no layout, known by its ending. If it cannot be read, ``size`` is -1; ``findings`` tell."""

    path: str
    size: int
    mtime_ns: int
    findings: tuple[Finding, ...]


class Discovery(Struct):
    """The results of listing a root, by kind of entry."""

    named: list[NamedFile] = field(default_factory=list)  # some layout knows them: parts, once all are listed
    parts: list[Part] = field(default_factory=list)
    bare: list[BareFile] = field(default_factory=list)  # files that are known by their ending alone
    # (name, directory) -> path of a file that some layout calls its tracker or a record
    trackers: dict[tuple[str, str], str] = field(default_factory=dict)
    unfinished: list[str] = field(default_factory=list)  # temporary files of interrupted saves
    indexes: list[str] = field(default_factory=list)  # files that may describe others
    unseen: list[Unseen] = field(default_factory=list)  # could not be listed, or vanished
    seals: list[BareFile] = field(default_factory=list)
    unneeded: list[str] = field(default_factory=list)  # files without state
    copies: list[str] = field(default_factory=list)  # unrecognised files with names of copies
    dangling: list[str] = field(default_factory=list)  # links to nothing that no layout places
    texts: list[str] = field(default_factory=list)  # small, and nothing recognises them
    links: list[Links] = field(default_factory=list)  # links to directories
    lone: list[Finding] = field(default_factory=list)  # numbers without their first, indexes without shards
    unrecognised: int = 0
    strange: dict[str, None] = field(default_factory=dict)  # directories of unrecognised files
    empty: list[str] = field(default_factory=list)  # directories in which nothing was seen
    placed: dict[str, Layout] = field(default_factory=dict)  # trackers that another layout's names fit, too
    excluded: Excluded = field(default_factory=Excluded)
    states: set[str] = field(default_factory=set)  # ``.ckpt``
    tree: bool = False  # ROOT is a directory
    alone: bool = False  # ROOT is one file

    def add_unrecognised(self, directory: str, name: str) -> None:
        """Count a file that nothing recognises; keep its path if its name is that of a copy or of a text."""
        self.unrecognised += 1
        self.strange[directory] = None
        if is_set_aside(name):
            self.copies.append(f"{directory}/{name}")
        if name.endswith(_TEXTS) and len(self.texts) < _MOST_TEXTS:
            self.texts.append(f"{directory}/{name}")

    def leaves_out(self, directory: str) -> bool:
        """Return True if the user has excluded anything below a directory."""
        return any(path.startswith(f"{directory}/") for path in self.excluded.paths)

    def resolved(self, path: str) -> str:
        """Return a path with links to directories below ROOT replaced by their targets."""
        for links in self.links:
            path = links.resolved(path)
        return path


def stat_of(path: str | os.DirEntry[str]) -> BareFile:
    """Return the size and time of a file that should be a checkpoint. The time of another entry of this name,
    or of a dangling link, is when it was made: the target had been saved by then.
    """
    at = os.fspath(path)
    try:
        st = status(path) if isinstance(path, str) else retry_call(path.stat)
    except OSError as e:
        code = "dangling-link" if isinstance(e, ABSENT) and is_link(path) else "unreadable"
        code = "symlink-loop" if e.errno == errno.ELOOP else code
        subject = os.path.basename(at) if code == "unreadable" else f"it leads to {real_path(at)}"
        reason = adapt_hint(finding(code, f"{subject}: {e.strerror}"), at)
        return BareFile(at, -1, 0 if code == "unreadable" else _read_mtime(at), (reason,))
    if stat.S_ISREG(st.st_mode):
        return BareFile(at, st.st_size, st.st_mtime_ns, ())
    kind = "a directory" if stat.S_ISDIR(st.st_mode) else "a special file"
    text = f"there is {kind} where a checkpoint file belongs"
    return BareFile(at, -1, _read_mtime(at), (finding("not-a-file", text),))


def _read_mtime(path: str) -> int:
    """Return when an entry, not the target of a link, was changed, in nanoseconds; 0 if nobody can tell."""
    try:
        return lstat(path).st_mtime_ns
    except OSError:
        return 0


def surely_directory(e: os.DirEntry[str]) -> bool:
    """Return True if an entry surely is a directory; a doubtful one is walked into, and the walk says why."""
    try:
        return is_directory(e)
    except OSError:
        return False


def has_entries(e: os.DirEntry[str]) -> bool:
    """Return True if an entry is a directory that may have entries: an empty one took a file's place."""
    try:
        return surely_directory(e) and bool(list_entries(e.path))
    except OSError:
        return True  # the walk says why it cannot be listed
