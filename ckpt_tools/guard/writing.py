"""A seal put in its place: whole or not at all, whatever happens meanwhile."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from ckpt_tools.errors import CannotLook, UsageError, explain_refusal
from ckpt_tools.formats.seals import document
from ckpt_tools.formats.seals.document import FRAGMENTS
from ckpt_tools.storage.urls import READ_ONLY, is_url
from ckpt_tools.storage.writes import write_all, written_aside

if TYPE_CHECKING:
    from ckpt_tools.storage.stores.store import Object

_DEAD = 60
"""Seconds after which nobody still writes a file that is as old: it takes milliseconds. Who does all the same
is told that his seal could not be written.
"""
SEAL_ELSEWHERE = "keep seals on this machine with CKPT_SEAL_DIR=DIR, or seal what is to be uploaded before"
DELETE_ELSEWHERE = "delete files in the repository with its own tools"


def require_writable(roots: Sequence[str], instead: str) -> None:
    """Raises UsageError if one of the roots lies in a store that is only read; ``instead`` is what can be
    done.
    """
    for root in roots:
        if is_url(root) and root.partition("://")[0] in READ_ONLY:
            raise UsageError(f"{root}: nothing is written to {root.partition('://')[0]}://", instead)


def put(path: str, data: bytes, *, away: bool) -> None:
    """Write a file that is not seen, sync it, give it its name, and sync its directory. In a store it is one
    request, which replaces what was listed and nothing else.

    Raises CannotLook, with the old file in its place.

    Directories are made for a seal that lies ``away`` from what it is of. The directory of a checkpoint is
    not: one that is deleted meanwhile would come back, with nothing but a seal in it.
    """
    need = "the right to write objects" if is_url(path) else "a directory that you may write, and room in it"
    hint = f"it needs {need}; or keep seals elsewhere with CKPT_SEAL_DIR=DIR"
    with explain_refusal(f"the seal {path} could not be written", hint):
        if is_url(path):
            _put_object(path, data)
            return
        home, name = os.path.split(path)
        with opened_home(home, make=True, away=away) as at:
            _put_file(at, name, data)


def _put_object(url: str, data: bytes) -> None:
    from ckpt_tools.storage.stores.mounts import object_of, store_of

    seen: Object | None = None
    with suppress(FileNotFoundError):
        seen = object_of(url)
    store, key = store_of(url)
    try:
        store.put(key, data, seen)
    except FileExistsError as e:
        text = f"the seal {url} was not written: {e.strerror}"
        raise CannotLook(text, "run it again: what is there now is compared first") from e


@contextmanager
def opened_home(home: str, *, make: bool = False, away: bool = False) -> Iterator[int]:
    """The directory that a seal lies in, open; ``make`` that of fragments, and ``away`` the ones above.

    That of fragments is no link: it could lead anywhere. Raises OSError.
    """
    above, name = os.path.split(home)
    is_fragments = name == FRAGMENTS
    if away:
        os.makedirs(above if is_fragments else home, exist_ok=True)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    with ExitStack() as files:
        at = os.open(above if is_fragments else home, flags)
        files.callback(os.close, at)
        if is_fragments:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=at)
                    os.fsync(at)
            at = os.open(name, flags | os.O_NOFOLLOW, dir_fd=at)
            files.callback(os.close, at)
        yield at


def tidy(home: str) -> None:
    """Remove what processes that died while they wrote a seal have left in a directory; in a store, where an
    object is written whole or not at all, there is nothing.
    """
    if is_url(home):
        return
    with suppress(OSError), opened_home(home) as at:
        for name in filter(document.is_aside, os.listdir(at)):
            with suppress(FileNotFoundError):  # another process was faster, or has renamed it
                if time.time() - os.stat(name, dir_fd=at, follow_symlinks=False).st_mtime > _DEAD:
                    os.unlink(name, dir_fd=at)


def _put_file(at: int, name: str, data: bytes) -> None:
    """Write a new file that has no name before it is whole; one with a name aside where the file system has
    no such files, or there is a file of this name.

    A framework may prune a checkpoint while its seal is written, and shutil.rmtree fails on a name that it
    has listed and that is gone: with a file aside, renamed at that moment, sealing would end the training.
    """
    with suppress(AttributeError, OSError):  # the flag is Linux's, and NFS does not have it
        fd = os.open(".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o666, dir_fd=at)
        try:
            write_all(fd, data)
            os.fsync(fd)
            os.link(f"/proc/self/fd/{fd}", name, dst_dir_fd=at, follow_symlinks=True)
            os.fsync(at)
            return
        finally:
            os.close(fd)
    aside = document.aside(name)
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=at)
    with written_aside(fd, data, aside, name, at):  # it says what is wrong
        pass
