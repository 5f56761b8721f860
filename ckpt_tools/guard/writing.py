"""Writes a seal whole or not at all, whatever happens meanwhile."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from ckpt_tools.errors import UsageError, explain_refusal
from ckpt_tools.formats.seals import document
from ckpt_tools.formats.seals.document import FRAGMENTS
from ckpt_tools.storage.urls import READ_ONLY, is_url
from ckpt_tools.storage.writes import finish_aside, write_all

if TYPE_CHECKING:
    from ckpt_tools.storage.stores.store import Object

_ABANDONED = 60
"""Seconds without a write after which a temporary file is abandoned: writing takes milliseconds. A slower
writer is told that the seal could not be written.
"""
SEAL_ELSEWHERE = "keep seals on this machine with CKPT_SEAL_DIR=DIR, or seal what is to be uploaded before"
DELETE_ELSEWHERE = "delete files in the repository with its own tools"


def require_writable(roots: Sequence[str], instead: str) -> None:
    """Raise UsageError if a root lies in a store that is only read; ``instead`` says what can be done."""
    for root in roots:
        if is_url(root) and root.partition("://")[0] in READ_ONLY:
            raise UsageError(f"{root}: nothing is written to {root.partition('://')[0]}://", instead)


def write_seal(path: str, data: bytes, *, away: bool) -> None:
    """Write a file aside, sync it, rename it to ``path``, and sync its directory. In a store it is one
    request, which replaces the object that was listed and no other one. Raises CannotLook, with the old file
    in its place.

    With ``away`` the seal lies apart from its checkpoint, and its directories are made. A checkpoint's own
    directory is not: one that is deleted meanwhile would come back with nothing but a seal in it.
    """
    need = "the right to write objects" if is_url(path) else "a directory that you may write, and room in it"
    hint = f"run it again: it needs {need}; or keep seals elsewhere with CKPT_SEAL_DIR=DIR"
    with explain_refusal(f"the seal {path} could not be written", hint):
        if not is_url(path):
            home, name = os.path.split(path)
            with open_home(home, make=True, away=away) as directory_fd:
                _write_file(directory_fd, name, data)
            return
        from ckpt_tools.storage.stores.mounts import object_of, store_of

        listed: Object | None = None
        with suppress(FileNotFoundError):
            listed = object_of(path)
        store, key = store_of(path)
        store.put(key, data, listed)


@contextmanager
def open_home(home: str, *, make: bool = False, away: bool = False) -> Iterator[int]:
    """Yield a descriptor of the directory of a seal; ``make`` creates the directory of fragments, ``away``
    any other. The directory of fragments may be no link, which could lead anywhere. Raises OSError.
    """
    above, name = os.path.split(home)
    is_fragments = name == FRAGMENTS
    if away:
        os.makedirs(above if is_fragments else home, exist_ok=True)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    with ExitStack() as files:
        fd = os.open(above if is_fragments else home, flags)
        files.callback(os.close, fd)
        if is_fragments:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=fd)
                    os.fsync(fd)
            fd = os.open(name, flags | os.O_NOFOLLOW, dir_fd=fd)
            files.callback(os.close, fd)
        yield fd


def remove_abandoned(home: str) -> None:
    """Remove temporary files that killed processes left; a store has none, as it writes objects whole."""
    if is_url(home):
        return
    with suppress(OSError), open_home(home) as fd:
        for name in filter(document.is_aside, os.listdir(fd)):
            with suppress(FileNotFoundError):  # another process was faster, or has renamed it
                if time.time() - os.stat(name, dir_fd=fd, follow_symlinks=False).st_mtime > _ABANDONED:
                    os.unlink(name, dir_fd=fd)


def _write_file(directory_fd: int, name: str, data: bytes) -> None:
    """Write a file that has no name until it is whole (open(2), O_TMPFILE); or under a temporary name if the
    file system has no such files, or ``name`` exists. Raises OSError.

    A framework may prune a checkpoint while its seal is written, and shutil.rmtree fails on a name that it
    has listed and that is gone: a temporary file, renamed at that moment, would end the training.
    """
    with suppress(AttributeError, OSError):  # the flag is Linux's, and NFS does not have it
        fd = os.open(".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o666, dir_fd=directory_fd)
        try:
            write_all(fd, data)
            os.fsync(fd)
            os.link(f"/proc/self/fd/{fd}", name, dst_dir_fd=directory_fd, follow_symlinks=True)
            os.fsync(directory_fd)
            return
        finally:
            os.close(fd)
    aside = document.name_aside(name)
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=directory_fd)
    with finish_aside(fd, data, aside, name, directory_fd):  # raises what is wrong
        pass
