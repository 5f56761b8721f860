"""What the caller named as ROOT: a directory, one file, or the common prefix of several."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from operator import attrgetter
from shlex import quote

from ckpt_tools import formats
from ckpt_tools.errors import CannotLook
from ckpt_tools.storage.listing import entries_of
from ckpt_tools.storage.retry import ABSENT, is_directory, status, there
from ckpt_tools.storage.urls import absolute, is_url

_NAMES = 10_000
"""Entries of a directory that are compared with the name of a root that is not there, at most."""


def roots(root: str) -> list[str]:
    """Return ``root`` itself, or the sibling directories it is a prefix of (``output/ckpt`` for
    ``output/ckpt_0``), or what its files have in common. Raises CannotLook when there is neither.
    """
    path = absolute(root)
    try:
        status(path)
        return [path]
    except ABSENT:
        pass
    except OSError as e:
        raise CannotLook(f"cannot look at {root}: {e.strerror}") from e
    parent, name = os.path.split(path)
    try:
        beside = entries_of(parent)
        if is_url(root) and name in map(attrgetter("name"), beside):
            text = f"{root} is in one list of its store, and not in another"
            raise CannotLook(text, "run it again, and see what docs/stores.md says of its store")
        found = [e.path for e in beside if _is_numbered(name, e.name) and is_directory(e)]
        found = found or [path + s for s in formats.names.index_suffixes if there(path + s)]
    except ABSENT:
        found = []
    except OSError as e:
        raise CannotLook(f"cannot look for {root}: {e.filename or parent}: {e.strerror}") from e
    if not found:
        raise CannotLook(f"{root} does not exist", _instead(root, path), rule="tree/could-not-look")
    return found


def _instead(root: str, path: str) -> str:
    """What to do about a root that is not there: the name that was probably meant, or what is missing."""
    if is_url(path):
        return "check the bucket and the name"
    from difflib import get_close_matches  # only after a mistake: it costs start-up time

    parent, name = os.path.split(path)
    with suppress(OSError):
        names = [e.name for e in entries_of(parent)][:_NAMES]
        if close := get_close_matches(name, names, 1, 0.6):
            return f"did you mean {quote(root.rstrip('/')[: -len(name)] + close[0])}?"
        if not names:
            return f"{parent} is empty: check that its file system is mounted"
        return "check its spelling and that its file system is mounted"
    while parent not in ("", "/") and not there(os.path.dirname(parent)):
        parent = os.path.dirname(parent)
    return f"{parent} is not a directory either: check the spelling and that its file system is mounted"


def _is_numbered(name: str, sibling: str) -> bool:
    return re.fullmatch(re.escape(name) + r"_?\d+", sibling) is not None


def absent(root: str) -> bool:
    """Return True if there certainly is nothing at ``root``, nor any directory or file that it is a prefix
    of, in a directory that is there and could be listed.
    """
    path = absolute(root)
    parent, name = os.path.split(path)
    indexes = tuple(name + suffix for suffix in formats.names.index_suffixes)
    try:
        if there(path):
            return False
        names = [e.name for e in entries_of(parent)]
        return not any(n == name or n in indexes or _is_numbered(name, n) for n in names)
    except OSError:
        return False


def is_tree(top: str) -> bool:
    """Return True if it is a directory. Raises CannotLook."""
    try:
        return is_directory(top)
    except OSError as e:
        raise CannotLook(f"cannot look at {top}: {e.strerror}") from e


def require_file(url: str) -> None:
    """Raises OSError where something lies below what looks like a file of a store, or what answers is no
    store: a login page answers as if there were a file of each name.
    """
    from ckpt_tools.storage.stores.mounts import tree_of

    tree, key = tree_of(url)
    tree.store.confirm_nothing(key)
