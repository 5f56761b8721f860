"""What has a name: "not there" told from "could not look"."""

from __future__ import annotations

import errno
import os
import random
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ParamSpec, TypeVar

from ckpt_tools.storage.stalls import watched
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
    from ckpt_tools.storage.stores.refresh import refresh_objects

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


P = ParamSpec("P")
T = TypeVar("T")

TRANSIENT = frozenset({errno.ESTALE, errno.EINTR, errno.ETIMEDOUT, errno.ECONNRESET})
"""What a network file system answers while a server restarts or a handle is renewed, and what an answer of a
store that broke off is: the next one may be whole.
"""
PAUSES = (0.001, 0.01, 0.05)
"""Seconds before each further attempt: long enough for a handle to be renewed, too short to be felt."""
OF_A_STORE = (0.1, 0.4, 1.6)
"""The same of a request. What the store refused, or what never reached it, the library repeats itself
(RetryConfig of obstore: ten times, with growing and random pauses).
"""
pause: Callable[[float], None] = time.sleep


def wait_for_another(e: OSError, pauses: Iterator[float]) -> None:
    """Wait before the next attempt after one of ``TRANSIENT``; else, and in the end, raise the error."""
    seconds = next(pauses, None) if e.errno in TRANSIENT else None
    if seconds is None:
        raise e
    pause(seconds * random.uniform(0.5, 1.5))  # noqa: S311 - not to be in step with others


def ask_again(ask: Callable[[], T], each: Sequence[float] = OF_A_STORE) -> T:
    """What a request answers, made again while its answer breaks off. Raises OSError."""
    pauses = iter(each)
    while True:
        try:
            return ask()
        except OSError as e:
            wait_for_another(e, pauses)


def patiently(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """``call(*args)``, made up to three times more while it fails with one of ``TRANSIENT``."""
    return ask_again(lambda: watched(call, *args, **kwargs), PAUSES)
