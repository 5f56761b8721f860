"""Files that several processes share: written whole or not at all, and locks that die with their holder."""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ckpt_tools.errors import CannotLook
from ckpt_tools.job.waiting import Backoff, Clock


def write(path: str, data: bytes) -> None:
    """Put a whole file at ``path`` or nothing: written aside, synced, renamed. Raises CannotLook."""
    with written(path, data):
        pass


@contextmanager
def written(path: str, data: bytes) -> Iterator[None]:
    """A file that is whole on the disk within, and appears at ``path`` when that ends well. Raises CannotLook."""
    aside = f"{path}.{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    try:
        _filled(aside, data)
        yield
        os.rename(aside, path)
        directory = os.open(os.path.dirname(path), os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as e:
        raise CannotLook(f"the decision could not be written to {path}: {e.strerror}", "make room, or name another directory with --plan-dir") from e
    finally:
        with suppress(OSError):
            os.unlink(aside)  # not there any more when all went well


def _filled(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def locked(path: str, timeout: float, clock: Clock | None = None) -> Iterator[None]:
    """Hold an exclusive flock on ``path``; the kernel lets go of it when the holder dies. Raises CannotLook after ``timeout`` seconds."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as e:
        raise CannotLook(f"{path} cannot be opened: {e.strerror}", "name a writable directory with --plan-dir") from e
    try:
        backoff = Backoff(timeout, clock)
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not backoff.pause():
                    raise CannotLook(
                        f"another process has been deciding for more than {timeout:g} s", "wait longer with --timeout, or read less with --budget"
                    ) from None
            except OSError as e:
                raise CannotLook(f"{path} cannot be locked: {e.strerror}", "--plan-dir must be on a file system with flock") from e
        yield
    finally:
        os.close(fd)
