"""Files in which a command keeps what it knows, and the lock that it holds meanwhile."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from ckpt_tools.errors import CannotLook, CkptError
from ckpt_tools.storage import trust
from ckpt_tools.storage.trust import Trust
from ckpt_tools.storage.writes import write_and_rename


def replace_file(directory: str, name: str, data: bytes, trusted: Trust) -> None:
    """Put a file in its place, whole or not at all. Raises OSError and Untrusted."""
    aside = f".{name}.{os.getpid()}"
    with trust.directory(directory, trusted) as at:
        fd = trust.create(aside, os.O_WRONLY | os.O_TRUNC, at, trusted)
        write_and_rename(fd, data, aside, name, at)
        os.fsync(at)


@contextmanager
def hold_lock(directory: str, name: str, trusted: Trust, busy: Callable[[str], CkptError]) -> Iterator[None]:
    """Hold a lock that one process has at a time; the kernel lets go of it when that dies. The directory is
    made where it is not there. Raises CannotLook, Untrusted, and what is ``busy`` for who holds it.
    """
    path = os.path.join(directory, name)
    try:
        trust.make(directory, trusted)
        with trust.directory(directory, trusted) as at:
            fd = trust.create(name, os.O_RDWR, at, trusted)
    except OSError as e:
        hint = "name a directory that can be written with --state-dir"
        raise CannotLook(f"{path} cannot be made: {e.strerror}", hint) from e
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = os.pread(fd, 200, 0).decode("utf-8", "replace") or "another process"
            raise busy(who) from None
        except OSError as e:
            hint = "name a directory on a file system with flock with --state-dir"
            raise CannotLook(f"{path} cannot be locked: {e.strerror}", hint) from e
        with suppress(OSError):  # only for the message of the next one
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"process {os.getpid()} on {os.uname().nodename}".encode(), 0)
        yield
    finally:
        os.close(fd)
