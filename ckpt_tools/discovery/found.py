"""What the listings of a root show: its parts, and everything else that says something about them."""

from __future__ import annotations

import errno
import os
import stat
from typing import NamedTuple

from msgspec import Struct, field

from ckpt_tools.discovery.exclude import Excluded, is_set_aside
from ckpt_tools.findings import finding, of_file
from ckpt_tools.layouts import Layout, NameFields, Place, Places
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Part, Unseen
from ckpt_tools.storage.attempts import patiently
from ckpt_tools.storage.listing import Links, entries_of
from ckpt_tools.storage.retry import ABSENT, is_directory, is_link, lstat, status
from ckpt_tools.storage.urls import real_path

# fmt: off
PACKED = (
    ".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".lz4", ".lzma", ".z", ".zip", ".7z",
    ".gpg", ".pgp", ".age", ".aes", ".enc", ".crypt",
)
# fmt: on
"""Endings of files that were packed, compressed or encrypted."""


_TEXTS = (".json", ".yaml", ".yml", ".txt", ".model", ".jinja")
"""Endings of what describes a model, and of what training loops note beside it."""
_MOST_TEXTS = 10_000


class NamedFile(NamedTuple):
    """A file whose name some layout knows; ``places`` are all pieces at home in its directory."""

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
    """A file that only a format's suffix recognises."""

    path: str
    size: int
    mtime_ns: int
    findings: tuple[Finding, ...]


class Discovery(Struct):
    """What directory listings show. ``bare`` are files that only a format's suffix recognises; ``trackers``
    maps (name, directory) to the path of a file that some layout calls its tracker or one of its records, and
    ``placed`` are the layouts of those that have the name of a file of another layout. Paths are those of
    temporary files of interrupted saves (``unfinished``), files that may describe others (``indexes``) or
    hold no state (``unneeded``), unrecognised files whose names call them ``copies``, links that lead nowhere
    that no layout places (``dangling``), ``texts`` that nothing recognises, and the directories ``.ckpt``
    (``states``). ``links`` is what leads to directories, ``lone`` says which numbered directories lack their
    first, and which indexes their shards, ``strange`` are the directories of files that nothing recognises,
    ``empty`` those in which nothing was seen, ``unseen`` is what could not be listed, and what vanished
    meanwhile. ``tree``: ROOT is a directory; ``alone``: it is one file.
    """

    parts: list[Part] = field(default_factory=list)
    bare: list[BareFile] = field(default_factory=list)
    trackers: dict[tuple[str, str], str] = field(default_factory=dict)
    unfinished: list[str] = field(default_factory=list)
    indexes: list[str] = field(default_factory=list)
    unseen: list[Unseen] = field(default_factory=list)
    seals: list[BareFile] = field(default_factory=list)
    unneeded: list[str] = field(default_factory=list)
    copies: list[str] = field(default_factory=list)
    dangling: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    links: list[Links] = field(default_factory=list)
    lone: list[Finding] = field(default_factory=list)
    unrecognised: int = 0
    strange: dict[str, None] = field(default_factory=dict)
    empty: list[str] = field(default_factory=list)
    placed: dict[str, Layout] = field(default_factory=dict)
    excluded: Excluded = field(default_factory=Excluded)
    states: set[str] = field(default_factory=set)  # of several threads: adding is one step
    tree: bool = False
    alone: bool = False

    def add_unrecognised(self, directory: str, name: str) -> None:
        """Count a file that nothing recognises; a copy by its name may be one of what is known."""
        self.unrecognised += 1
        self.strange[directory] = None
        if is_set_aside(name):
            self.copies.append(f"{directory}/{name}")
        if name.endswith(_TEXTS) and len(self.texts) < _MOST_TEXTS:
            self.texts.append(f"{directory}/{name}")

    def leaves_out(self, directory: str) -> bool:
        """Whether the caller has left out anything below it."""
        return any(path.startswith(f"{directory}/") for path in self.excluded.paths)

    def resolved(self, path: str) -> str:
        """The path without a link to a directory below ROOT."""
        for links in self.links:
            path = links.resolved(path)
        return path


class FileStat(NamedTuple):
    """``size`` is -1 when there is no such file to read; ``findings`` say why."""

    size: int
    mtime_ns: int
    findings: tuple[Finding, ...]


def stat_of(path: str | os.DirEntry[str]) -> FileStat:
    """Return the size and time of a file that should be a checkpoint. Of what has its name otherwise, and of
    a link, the time is when it was made: what it led to was saved by then.
    """
    try:
        st = status(path) if isinstance(path, str) else patiently(path.stat)
    except OSError as e:
        code = "dangling-link" if isinstance(e, ABSENT) and is_link(path) else "unreadable"
        code = "symlink-loop" if e.errno == errno.ELOOP else code
        of = os.path.basename(path) if code == "unreadable" else f"it leads to {real_path(os.fspath(path))}"
        why = of_file(finding(code, f"{of}: {e.strerror}"), os.fspath(path))
        return FileStat(-1, 0 if code == "unreadable" else _made_ns(path), (why,))
    if stat.S_ISREG(st.st_mode):
        return FileStat(st.st_size, st.st_mtime_ns, ())
    kind = "a directory" if stat.S_ISDIR(st.st_mode) else "a special file"
    text = f"there is {kind} where a checkpoint file belongs"
    return FileStat(-1, _made_ns(path), (finding("not-a-file", text),))


def _made_ns(path: str | os.DirEntry[str]) -> int:
    try:
        return lstat(os.fspath(path)).st_mtime_ns
    except OSError:
        return 0


def surely_directory(e: os.DirEntry[str]) -> bool:
    """Return True if it surely is a directory; what cannot be told is walked into, and the walk says why."""
    try:
        return is_directory(e)
    except OSError:
        return False


def holds_something(e: os.DirEntry[str]) -> bool:
    """Return True if it is a directory with entries, or may have some: some frameworks save into a directory
    named like a file; an empty one took a file's place.
    """
    try:
        return surely_directory(e) and bool(entries_of(e.path))
    except OSError:
        return True  # the walk says why it cannot be listed
