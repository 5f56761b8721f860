"""The seals that may name one file (its own, and those of the directories above it), and the files that the
seal of a directory names; and small files that are read whole: trackers, notes and keys.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from ckpt_tools.discovery.exclude import STATE
from ckpt_tools.discovery.found import BareFile, stat_of, surely_directory
from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.findings import finding
from ckpt_tools.formats import names
from ckpt_tools.formats.seals.document import FRAGMENTS, NAME, is_apart, is_fragment, name_seal
from ckpt_tools.layouts.common.templates import TEMPORARY
from ckpt_tools.model.finding import Finding, Notes, Severity
from ckpt_tools.storage import ShortRead, opened, trust
from ckpt_tools.storage.listing import Entries, list_entries, walk
from ckpt_tools.storage.retry import ABSENT, exists, is_file, is_link, lstat
from ckpt_tools.storage.signed import find_query
from ckpt_tools.storage.trust import OURS, Trust
from ckpt_tools.storage.urls import is_url, join

if TYPE_CHECKING:
    from ckpt_tools.storage.stores.store import Object
    from ckpt_tools.storage.stores.tree import Tree

_ABOVE = 4
"""How many directories above a file may be the checkpoint's own."""
_SEALS = NAME.removesuffix("json")
"""How the names of all seals of a directory begin, in a list of a store."""
_WEB = ("https://", "http://")


def find_seals(path: str) -> Iterator[BareFile]:
    """Yield the seals of a file, the nearest first; none for a presigned URL. Raise CannotLook."""
    if path.startswith(_WEB):
        return iter(()) if find_query(path) else _ask_each(path)
    return _list_in_store(path) if is_url(path) else _ask_each(path)


def _ask_each(path: str) -> Iterator[BareFile]:
    """Yield the seals of a file by asking for each possible name, the nearest first."""
    home, name = os.path.split(path)
    possible = [f"{home}/{name_seal(name)}"]
    for _ in range(_ABOVE):
        possible += [f"{home}/{NAME}", *_list_fragments(f"{home}/{FRAGMENTS}")]
        home = os.path.dirname(home)
    for seal in possible:
        try:
            lstat(seal)
            yield stat_of(seal)
        except ABSENT:  # nearly always
            continue
        except OSError as e:
            # where others may not list, S3 says so of what is not there
            if not (isinstance(e, PermissionError) and path.startswith(_WEB)):
                raise _make_error(seal, e) from e


def _list_fragments(directory: str) -> list[str]:
    """Return the fragments of seals in a directory; the path itself if it is no directory on a disk."""
    try:
        return [e.path for e in list_entries(directory) if is_fragment(e.name)]
    except ABSENT:  # or a link that leads nowhere lies there, or what is no directory
        return [] if is_url(directory) else [directory]
    except OSError as e:
        if directory.startswith(_WEB):  # which cannot list
            return []
        raise _make_error(directory, e) from e


def _list_in_store(url: str) -> Iterator[BareFile]:
    """Yield an object's seals, nearest first; those above only if they may be listed. Raise CannotLook."""
    from ckpt_tools.storage.stores.mounts import tree_of  # only for stores

    tree, key = tree_of(url)
    home, _, name = key.rpartition("/")
    above = [home]
    while above[-1] and len(above) < _ABOVE:
        above.append(above[-1].rpartition("/")[0])
    own = join(home, name_seal(name)) if home else name_seal(name)
    found: list[Object] = []
    try:
        for directory in reversed(above[1:]):
            with suppress(*ABSENT, PermissionError):
                try:
                    found = [*_list_seals(tree, directory), *found]
                except OSError as e:
                    if e.errno != errno.EOPNOTSUPP:  # such as the root of a hub's repositories
                        raise
        tree.entries(home)  # this directory is listed anyway: indexes lie in it
        own_seals = [item for item in tree.named(home, name_seal(name)) if item.key == own]
        found = [*own_seals, *_list_seals(tree, home), *found]
    except OSError as e:
        raise _make_error(f"the seals of {url}", e) from e
    for item in found:
        yield BareFile(join(tree.store.url, item.key), item.size, item.mtime_ns, ())


def _list_seals(tree: Tree, directory: str) -> Iterator[Object]:
    """Yield the objects that are a directory's own seal or a fragment of it, as the store lists them."""
    for item in tree.named(directory, _SEALS):
        home, _, name = item.key.rpartition("/")
        if name == NAME if home == directory else is_fragment(name) and home.endswith(FRAGMENTS):
            yield item


def _make_error(what: str, e: OSError) -> CannotLook:
    return CannotLook(f"cannot look for {what}: {e.strerror}")


class Sealable:
    """The ``files`` of one directory to seal: no seals, signatures or files being written. Raise OSError."""

    def __init__(self, path: str, entries: Entries) -> None:
        candidates = [e for e in entries if not is_apart(e.name) and not TEMPORARY.search(e.name)]
        has_fragments = path.rpartition("/")[2] == FRAGMENTS
        self.files = [] if has_fragments else [f"{path}/{e.name}" for e in candidates if is_file(e)]
        self.has_seal = any(e.name == NAME for e in entries)


def walk_up(home: str) -> Iterator[tuple[str, Sealable | OSError]]:
    """Yield every directory at and below ``home`` with its entries, parents first; links are not followed."""

    def keep(entries: Entries) -> Entries:
        return [e for e in entries if e.name != STATE and not (surely_directory(e) and is_link(e))]

    return ((path, e if isinstance(e, OSError) else Sealable(path, e)) for path, e in walk(home, keep))


TRACKER_LIMIT = 4096
"""A tracker holds a number or a word; more than this is garbage and is not read."""
_LINE, _SMALL = 256, 64
"""Bytes of a small text of one line, and how many of a directory are read, at most."""
_KEYS = (16, 24, 32)
"""Bytes of a key of AES."""
DVC = ".dvc"
"""Ending of the file that DVC puts in the place of a file it keeps elsewhere."""


def read_tracker(path: str, limit: int = TRACKER_LIMIT) -> bytes | Finding:
    """Return the bytes of a tracker file, or why they cannot be read."""
    try:
        with opened(path, certain=True) as source:
            if not stat.S_ISREG(source.stat.st_mode):
                return finding("bad-tracker", "it is not a file, but a pipe or a device", path=path)
            if source.size > limit:
                return finding("bad-tracker", f"{source.size} bytes are no tracker", path=path)
            data = source.read(0, source.size)
            if source.changed():  # two digits of a number that is being written are a number as well
                return finding("unreadable", "it was written while it was read", path=path)
            return data
    except (OSError, ShortRead) as e:
        if getattr(e, "errno", 0) == errno.ENXIO:  # its kind is known, here as below: no "unreadable"
            return finding("bad-tracker", "it is not a file, but a socket or a device", path=path)
        if isinstance(e, IsADirectoryError) or (isinstance(e, FileNotFoundError) and is_link(path)):
            return finding("bad-tracker", e.strerror or str(e), path=path)
        return finding("unreadable", getattr(e, "strerror", None) or str(e), path=path)


def read_texts(directory: str) -> dict[str, bytes]:
    """Return name -> bytes of small files of a directory with one line: a tracker may be among them."""
    try:
        entries = [e for e in list_entries(directory) if e.is_file()][:_SMALL]
    except OSError:
        return {}
    read = ((e.name, read_tracker(e.path, _LINE)) for e in entries)
    return {name: data for name, data in read if isinstance(data, bytes) and data.strip().count(b"\n") == 0}


def read_note(path: str, limit: int = TRACKER_LIMIT) -> bytes | Finding | None:
    """Return the bytes of a small file, or why they cannot be read; None if there is no such file."""
    try:
        return read_tracker(path, limit) if is_file(path) else None
    except OSError as e:
        return finding("unreadable", e.strerror or str(e), path=path)


def find_gone(path: str, named_by: str, text: str) -> Finding | None:
    """Return ``dangling-tracker`` if a path in a tracker is not there, ``unreadable`` if nobody can see."""
    try:
        return None if exists(path) else finding("dangling-tracker", text, path=named_by)
    except OSError as e:
        return finding("unreadable", e.strerror or str(e), path=path)


NOTES = Notes(read_note, find_gone)
"""For the hooks of layouts and formats, which open no files."""


def find_unfetched(paths: Iterable[str]) -> Iterator[Finding]:
    """Yield a finding for each ``.dvc`` file whose own file nobody has fetched. Raise CannotLook."""
    for path in paths:
        whole = path.removesuffix(DVC)
        if whole != path and names.state(os.path.basename(path)) and stands_for_nothing_here(whole):
            why = f"it stands for {os.path.basename(whole)!r}, which is not there"
            yield finding("pointer-not-data", why, path=path, severity=Severity.WARNING, hint="dvc pull")


def stands_for_nothing_here(whole: str) -> bool:
    """Return True if the file in whose place a ``.dvc`` file lies is not there. Raise CannotLook."""
    try:
        return not exists(whole)
    except OSError as e:
        raise CannotLook(f"{whole}: {e.strerror}; nobody knows whether it is there") from e


def find_unread(paths: Iterable[str]) -> dict[str, str]:
    """Return path -> reason for each of the trackers that cannot be read."""
    contents = {path: read_tracker(path) for path in paths}
    return {at: d.message for at, d in contents.items() if isinstance(d, Finding) and d.code == "unreadable"}


def read_key(path: str, trusted: Trust = OURS) -> bytes:
    """Return the key in a private file, without an editor's line end; a UsageError never shows the key."""
    try:
        with trust.label("CKPT_KEY_FILE"):
            data = trust.read(path, TRACKER_LIMIT, trusted, private=True)
    except (OSError, ValueError) as e:  # ValueError: a NUL in the name
        text = f"the key file {path!r} cannot be read: {getattr(e, 'strerror', None) or e}"
        raise UsageError(text, "set CKPT_KEY_FILE=FILE") from None
    key = data if len(data) in _KEYS else data.rstrip(b"\r\n")
    if len(key) not in _KEYS:
        text = f"the key file {path!r} holds {len(data)} bytes, a key has 16, 24 or 32"
        raise UsageError(text, 'write the key alone into it: printf %s "$KEY" > FILE')
    return key
