"""What stands where a view is to be: nothing, a view of ours (the same one, another one), or somebody's
files.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import Any

from ckpt_tools.errors import UsageError
from ckpt_tools.settings import checked_json

MARKER = ".ckpt-view.json"
SCHEMA = "ckpt-tools/view/v1"


def holds(directory: str, stamp: str, links: Mapping[str, str], texts: Mapping[str, bytes]) -> bool:
    """Whether the very view is there already. Raises UsageError for anything that is not a view, or holds
    more than one.
    """
    try:
        if os.path.islink(directory):
            raise UsageError(f"--view {directory} is a symbolic link", "name the directory itself")
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        raise UsageError(f"--view {directory} is a file", "name a directory that is not there yet") from None
    try:
        try:
            note = ours(fd, directory)
            if note is None or note.get("content") != stamp:
                return False
            return all(os.readlink(name, dir_fd=fd) == path for name, path in links.items()) and all(
                _read(n, fd, len(b)) == b for n, b in texts.items()
            )
        except OSError:
            return False  # something is gone from it
        except UsageError:
            if _same(fd, directory):
                raise
            return False  # another builder has replaced it while we looked, and is removing it
    finally:
        os.close(fd)


def _same(fd: int, directory: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(directory))
    except OSError:
        return False


def _read(name: str, fd: int, most: int = checked_json.MOST) -> bytes:
    """The bytes of a file in a directory; no more than one above ``most``. A pipe is an empty file: nobody
    waits for one who writes to it.
    """
    with open(
        os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd), "rb"
    ) as f:
        return f.read(most + 1) if stat.S_ISREG(os.fstat(f.fileno()).st_mode) else b""


def ours(fd: int, directory: str) -> Mapping[str, object] | None:
    """The note in a view of ours; None for an empty directory. Raises UsageError for anything else, so that
    no file of anybody is lost.
    """
    names = os.listdir(fd)
    if not names:
        return None
    try:
        note: Any = checked_json.parsed(_read(MARKER, fd))
        schema, files = note["schema"], {MARKER, *note["files"]}
    except (FileNotFoundError, IsADirectoryError, ValueError, KeyError, TypeError):
        schema = ""
    if schema != SCHEMA:
        raise UsageError(
            f"--view {directory} is not empty, and no view that ckpt has built",
            "name a directory that is not there yet",
        )
    for above, _, inside, at in os.fwalk(dir_fd=fd):  # links to directories are not followed
        for name in inside:
            path = os.path.normpath(f"{above}/{name}")
            if path not in files and not name.startswith(".nfs") and not _is_link(name, at):
                raise UsageError(
                    f"{directory}/{path} was not put there by ckpt, so the view {directory} is not replaced",
                    "move it, and let the job save elsewhere",
                )
    return dict(note)


def _is_link(name: str, at: int) -> bool:
    try:
        return stat.S_ISLNK(os.lstat(name, dir_fd=at).st_mode)
    except FileNotFoundError:
        return True  # gone already
