"""Stats and file types of paths and URLs; "not there" is kept apart from "could not look"."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable

from ckpt_tools.storage.stalls import retry_call
from ckpt_tools.storage.urls import is_url

ABSENT = (FileNotFoundError, NotADirectoryError)
"""The only errors that prove that no file has the name."""
_NAME_MAX = 255  # bytes of one name on every Linux file system


def status(path: str) -> os.stat_result:
    """Return ``os.stat`` of a path, or its equivalent for a URL. Raise OSError."""
    return _stat(os.stat, path)


def lstat(path: str) -> os.stat_result:
    """Return ``os.lstat`` of a path; for a URL ``status``, since a store has no links. Raise OSError."""
    return _stat(os.lstat, path)


def _stat(call: Callable[[str], os.stat_result], path: str) -> os.stat_result:
    """Return ``call(path)``, or the stat of a URL's object or directory. Raise OSError."""
    if is_url(path):
        from ckpt_tools.storage.stores.mounts import tree_of

        tree, key = tree_of(path)
        return tree.stat(key)
    try:
        return retry_call(call, path)
    except ValueError as e:  # the path holds a NUL or a lone surrogate: texts in files may
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from e


def refresh(paths: Iterable[str]) -> dict[str, OSError]:
    """Ask stores anew about URLs, so that the next ``status`` is current; return the errors by URL."""
    urls = [path for path in paths if is_url(path)]
    if not urls:
        return {}
    from ckpt_tools.storage.stores.mounts import refresh_objects

    return refresh_objects(urls)


def exists(path: str) -> bool:
    """Return True if the name exists, also as a broken link. Raise OSError if that cannot be seen."""
    try:
        lstat(path)
    except ABSENT:
        return False
    except OSError as e:
        names = path.split("/") if e.errno == errno.ENAMETOOLONG else ()
        if any(len(os.fsencode(name)) > _NAME_MAX for name in names):
            return False  # no directory can hold such a name
        raise
    return True


def is_file(path: str | os.DirEntry[str]) -> bool:
    """Return True if the path is a regular file, or a link to one. Raise OSError if that cannot be seen."""
    return _leads_to(path, stat.S_ISREG, "is_file")


def is_link(path: str | os.DirEntry[str]) -> bool:
    """Return True if the path is a symbolic link; False also if that cannot be seen."""
    try:
        return stat.S_ISLNK(lstat(os.fspath(path)).st_mode)
    except OSError:
        return False


def is_directory(path: str | os.DirEntry[str]) -> bool:
    """Return True if the path is a directory, or a link to one. Raise OSError if that cannot be seen."""
    if _leads_to(path, stat.S_ISDIR, "is_dir"):
        return True
    if not isinstance(path, str) or not is_url(path):
        return False
    from ckpt_tools.storage.stores.mounts import tree_of

    tree, key = tree_of(path)
    return tree.is_directory(key)  # a key of an object may be a directory of further keys too


def _leads_to(path: str | os.DirEntry[str], kind: Callable[[int], bool], method: str) -> bool:
    """Return True if the mode satisfies ``kind``; a directory entry is asked by its own ``method``."""
    try:
        return kind(status(path).st_mode) if isinstance(path, str) else retry_call(getattr(path, method))
    except ABSENT:
        return False
    except OSError as e:
        if e.errno == errno.ELOOP:
            return False
        raise
