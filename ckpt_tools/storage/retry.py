"""What has a name: "not there" told from "could not look"."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable

from ckpt_tools.storage.attempts import patiently
from ckpt_tools.storage.urls import is_url

ABSENT = (FileNotFoundError, NotADirectoryError)
"""The only errors that say that nothing of this name is there."""
_NAME_MAX = 255  # bytes of one name on every Linux file system


def status(path: str) -> os.stat_result:
    """As ``os.stat`` for a path, and the same for what a URL names. Raises OSError."""
    return _in_store(path) if is_url(path) else _of_name(os.stat, path)


def lstat(path: str) -> os.stat_result:
    """As ``os.lstat``; a store has no links."""
    return _in_store(path) if is_url(path) else _of_name(os.lstat, path)


def _of_name(call: Callable[[str], os.stat_result], path: str) -> os.stat_result:
    try:
        return patiently(call, path)
    except ValueError as e:  # a text in a file may hold a NUL, or half of a pair of surrogates
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from e


def _in_store(url: str) -> os.stat_result:
    from ckpt_tools.storage.stores.mounts import tree_of

    tree, key = tree_of(url)
    return tree.stat(key)


def refresh(paths: Iterable[str]) -> dict[str, OSError]:
    """See that what is asked about these next is as it is now, in a store too; what could not be asked there,
    and why.
    """
    urls = [path for path in paths if is_url(path)]
    if not urls:
        return {}
    from ckpt_tools.storage.stores.mounts import refresh_objects

    return refresh_objects(urls)


def there(path: str) -> bool:
    """Whether anything has this name, also a link that leads nowhere. Raises OSError if nobody can see."""
    try:
        lstat(path)
    except ABSENT:
        return False
    except OSError as e:
        if e.errno == errno.ENAMETOOLONG and any(
            len(os.fsencode(name)) > _NAME_MAX for name in path.split("/")
        ):
            return False  # no directory can hold such a name
        raise
    return True


def is_file(path: str | os.DirEntry[str]) -> bool:
    """Whether a regular file has this name, or a link there leads to one. Raises OSError."""
    return _leads_to(path, stat.S_ISREG, "is_file")


def is_link(path: str | os.DirEntry[str]) -> bool:
    """Whether it surely is a symbolic link."""
    try:
        return stat.S_ISLNK(lstat(os.fspath(path)).st_mode)
    except OSError:
        return False


def is_directory(path: str | os.DirEntry[str]) -> bool:
    """Whether a directory has this name, or a link there leads to one. Raises OSError if nobody can see."""
    if _leads_to(path, stat.S_ISDIR, "is_dir"):
        return True
    if not isinstance(path, str) or not is_url(path):
        return False
    from ckpt_tools.storage.stores.mounts import tree_of

    tree, key = tree_of(path)
    return tree.is_directory(key)  # other keys lie below the one of an object


def _leads_to(path: str | os.DirEntry[str], kind: Callable[[int], bool], asked: str) -> bool:
    """``asked`` is the question that a directory entry may answer without a call."""
    try:
        return kind(status(path).st_mode) if isinstance(path, str) else patiently(getattr(path, asked))
    except ABSENT:
        return False
    except OSError as e:
        if e.errno == errno.ELOOP:
            return False
        raise
