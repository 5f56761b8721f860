"""Small files beside checkpoints: trackers, and keys."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator

from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.findings import finding
from ckpt_tools.formats import names
from ckpt_tools.model.finding import Finding, Notes, Severity
from ckpt_tools.storage import ShortRead, opened, trust
from ckpt_tools.storage.listing import entries_of
from ckpt_tools.storage.retry import is_file, is_link, there
from ckpt_tools.storage.trust import OURS, Trust

TRACKER_LIMIT = 4096
"""A tracker holds a number or a word; more than this is garbage and is not read."""
_LINE = 256
_KEYS = (16, 24, 32)
"""Bytes of a key of AES."""
DVC = ".dvc"
"""What a file that DVC keeps elsewhere is called after its own name."""


def read_tracker(path: str, limit: int = TRACKER_LIMIT) -> bytes | Finding:
    """The bytes of a tracker file, or why they cannot be had."""
    try:
        with opened(path, certain=True) as source:
            if not stat.S_ISREG(source.stat.st_mode):
                return finding("bad-tracker", "it is not a file, but a pipe or a device", path=path)
            if source.size > limit:
                return finding("bad-tracker", f"{source.size} bytes are no tracker", path=path)
            data = source.read(0, source.size)
            if source.changed():  # the first two digits of three are a number as well
                return finding("unreadable", "it was written while it was read", path=path)
            return data
    except (OSError, ShortRead) as e:
        if getattr(e, "errno", 0) == errno.ENXIO:  # what it is was seen, here as below
            return finding("bad-tracker", "it is not a file, but a socket or a device", path=path)
        if isinstance(e, IsADirectoryError) or (isinstance(e, FileNotFoundError) and is_link(path)):
            return finding("bad-tracker", e.strerror or str(e), path=path)
        return finding("unreadable", getattr(e, "strerror", None) or str(e), path=path)


def small_texts(directory: str, most: int = 64) -> dict[str, bytes]:
    """Return small files of a directory that hold one line, by their names: a tracker may be among them."""
    try:
        entries = [e for e in entries_of(directory) if e.is_file()][:most]
    except OSError:
        return {}
    read = ((e.name, read_tracker(e.path, _LINE)) for e in entries)
    return {name: data for name, data in read if isinstance(data, bytes) and data.strip().count(b"\n") == 0}


def read_note(path: str, limit: int = TRACKER_LIMIT) -> bytes | Finding | None:
    """Return the same of a file that need not be there: None when it is not."""
    try:
        return read_tracker(path, limit) if is_file(path) else None
    except OSError as e:
        return finding("unreadable", e.strerror or str(e), path=path)


def gone(path: str, named_by: str, text: str) -> Finding | None:
    """Return ``dangling-tracker`` if what a tracker names is not there, ``unreadable`` if nobody can see."""
    try:
        return None if there(path) else finding("dangling-tracker", text, path=named_by)
    except OSError as e:
        return finding("unreadable", e.strerror or str(e), path=path)


NOTES = Notes(read_note, gone)
"""For the hooks of layouts and formats, which open no files."""


def unfetched(paths: Iterable[str]) -> Iterator[Finding]:
    """Yield the ``.dvc`` files that stand for what nobody has fetched. Raises CannotLook."""
    for path in paths:
        whole = path.removesuffix(DVC)
        if whole != path and names.state(os.path.basename(path)) and stands_for_nothing_here(whole):
            why = f"it stands for {os.path.basename(whole)!r}, which is not there"
            yield finding("pointer-not-data", why, path=path, severity=Severity.WARNING, hint="dvc pull")


def stands_for_nothing_here(whole: str) -> bool:
    """Return True if what a ``.dvc`` file stands for is not there. Raises CannotLook."""
    try:
        return not there(whole)
    except OSError as e:
        raise CannotLook(f"{whole}: {e.strerror}; nobody knows whether it is there") from e


def unread(paths: Iterable[str]) -> dict[str, str]:
    """Return those of the trackers that cannot be read, and why."""
    said = {path: read_tracker(path) for path in paths}
    return {at: d.message for at, d in said.items() if isinstance(d, Finding) and d.code == "unreadable"}


def read_key(path: str, trusted: Trust = OURS) -> bytes:
    """Return the key in a file that nobody else can read; the line end that editors add is not part of it.
    Raises UsageError, which never shows the key.
    """
    try:
        with trust.named("CKPT_KEY_FILE"):
            data = trust.read(path, TRACKER_LIMIT, trusted, private=True)
    except (OSError, ValueError) as e:  # ValueError: a NUL in the name
        raise UsageError(
            f"the key file {path!r} cannot be read: {getattr(e, 'strerror', None) or e}",
            "set CKPT_KEY_FILE=FILE",
        ) from None
    key = data if len(data) in _KEYS else data.rstrip(b"\r\n")
    if len(key) not in _KEYS:
        raise UsageError(
            f"the key file {path!r} holds {len(data)} bytes, a key has 16, 24 or 32",
            'write the key alone into it: printf %s "$KEY" > FILE',
        )
    return key
