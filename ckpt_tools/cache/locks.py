"""The locks beside the cache of verdicts: one process at a time reads a file, the others wait for it."""

from __future__ import annotations

import fcntl
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from ckpt_tools.storage.urls import is_url, real_path

_LOCKS = 64
"""Lock files of each kind: files that share one wait for each other in vain, but none is left over."""


def inside(path: str, root: str) -> bool:
    """Return True if ``path`` lies in the tree at ``root``, or beside it where that is a prefix."""
    path, real = real_path(path), real_path(root)
    if is_url(root):
        return f"{path}/".startswith(f"{real}/")
    return path == real or path.startswith(real if not os.path.lexists(root) else real.rstrip("/") + "/")


@contextmanager
def turn(home: str | None, path: str, deep: bool, kind: str = "") -> Iterator[Callable[[], bool]]:
    """A function that says whether it is our turn to read ``path``; ask again until it is. Never hold two
    turns of one ``kind``. A turn ends with its process, however that ends.

    Deep looks have locks of their own, so that a look at a header never waits for somebody who reads a whole
    file. Where nothing can be locked, and without a ``home``, it is always our turn.
    """
    fd, flags = None, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    name = f"{kind}{'deep' if deep else 'quick'}-{zlib.crc32(os.fsencode(path)) % _LOCKS:02d}.lock"
    with suppress(OSError):
        fd = None if home is None else os.open(os.path.join(home, name), flags, 0o600)
    if fd is None:
        yield lambda: True
        return

    def is_ours() -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:  # else it is a file system without locks
            return not isinstance(e, BlockingIOError)
        return True

    try:
        yield is_ours
    finally:
        os.close(fd)
