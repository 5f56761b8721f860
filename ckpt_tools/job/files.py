"""Files that several processes share: written whole or not at all, and locks that die with their holder."""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from ckpt_tools.errors import CannotLook
from ckpt_tools.job.waiting import Backoff, Clock
from ckpt_tools.planning.decision_log import FLAG
from ckpt_tools.storage import trust
from ckpt_tools.storage.trust import OURS, Trust
from ckpt_tools.storage.writes import write_all


def write(path: str, data: bytes, trusted: Trust = OURS) -> None:
    """Put a whole file at ``path`` or nothing: written aside, synced, renamed. Raises CannotLook, and
    Untrusted as all of these do.
    """
    with written(path, data, trusted):
        pass


@contextmanager
def written(path: str, data: bytes, trusted: Trust = OURS) -> Iterator[None]:
    """A file that is whole on the disk within, and appears at ``path`` when that ends well. Raises
    CannotLook.
    """
    home, name = os.path.split(path)
    aside = f"{name}.{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    try:
        with ExitStack() as files:
            with trust.named(FLAG):
                at = files.enter_context(trust.directory(home, trusted))
            try:
                fd = trust.create(aside, os.O_WRONLY | os.O_EXCL, at, trusted)
                try:
                    write_all(fd, data)
                    os.fsync(fd)
                finally:
                    os.close(fd)
                yield
                os.rename(aside, name, src_dir_fd=at, dst_dir_fd=at)
                os.fsync(at)
            finally:
                with suppress(OSError):
                    os.unlink(aside, dir_fd=at)  # not there any more when all went well
    except OSError as e:
        raise CannotLook(
            f"the decision could not be written to {path}: {e.strerror}",
            "make room, or name another directory with --plan-dir",
        ) from e


def note(path: str, data: bytes, trusted: Trust = OURS) -> None:
    """Write a small file that may be lost with the machine, in a directory that is made where it is not
    there. Raises OSError.
    """
    home, name = os.path.split(path)
    trust.make(home, trusted)
    with trust.named(FLAG), trust.directory(home, trusted) as at:
        fd = trust.create(name, os.O_WRONLY | os.O_TRUNC, at, trusted)
        try:
            write_all(fd, data)
        finally:
            os.close(fd)


@contextmanager
def locked(path: str, timeout: float, clock: Clock | None = None, trusted: Trust = OURS) -> Iterator[None]:
    """Hold an exclusive flock on ``path``; the kernel lets go of it when the holder dies. Raises CannotLook
    after ``timeout`` seconds.
    """
    home, name = os.path.split(path)
    try:
        with trust.named(FLAG), trust.directory(home, trusted) as at:
            fd = trust.create(name, os.O_RDWR, at, trusted)
    except OSError as e:
        raise CannotLook(
            f"{path} cannot be opened: {e.strerror}", "name a writable directory with --plan-dir"
        ) from e
    try:
        backoff = Backoff(timeout, clock)
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not backoff.pause():
                    raise CannotLook(
                        f"another process has been deciding for more than {timeout:g} s",
                        "wait longer with --timeout, or read less with --budget",
                    ) from None
            except OSError as e:
                raise CannotLook(
                    f"{path} cannot be locked: {e.strerror}", "--plan-dir must be on a file system with flock"
                ) from e
        yield
    finally:
        os.close(fd)
