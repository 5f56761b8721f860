"""Files written whole or not at all, and locks that die with their holder."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from ckpt_tools.errors import CkptError, explain_refusal
from ckpt_tools.storage import trust
from ckpt_tools.storage.trust import OURS, Trust


def write_all(fd: int, data: bytes) -> None:
    """Write all of ``data`` to ``fd``, in several calls if need be. Raise OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


@contextmanager
def finish_aside(fd: int, data: bytes, aside: str, name: str, at: int | None = None) -> Iterator[None]:
    """Write ``data`` to ``fd``, a new file ``aside`` in directory ``at``, and sync it; rename it to ``name``
    if the block ends well, else remove it. Closes ``fd``. Raise OSError.
    """
    try:
        try:
            write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        yield
        os.rename(aside, name, src_dir_fd=at, dst_dir_fd=at)
    except BaseException:
        with suppress(OSError):
            os.unlink(aside, dir_fd=at)
        raise
    if at is not None:
        os.fsync(at)


@contextmanager
def write_aside(at: int, name: str, data: bytes, trusted: Trust = OURS) -> Iterator[None]:
    """Do as ``finish_aside`` with a new file only ``trusted`` can write. Raise Untrusted and OSError."""
    aside = f"{name}.{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    fd = trust.create(aside, os.O_WRONLY | os.O_EXCL, at, trusted)
    with finish_aside(fd, data, aside, name, at):
        yield


def replace_file(directory: str, name: str, data: bytes, trusted: Trust) -> None:
    """Write ``data`` to a file whole or not at all, replacing any other. Raise OSError and Untrusted."""
    with trust.directory(directory, trusted) as at, write_aside(at, name, data, trusted):
        pass


def take_lock(
    path: str, trusted: Trust, how: int = fcntl.LOCK_EX, wait: Callable[[], bool] | None = None
) -> int | None:
    """Return a file locked with flock until it is closed, by this process or one that inherits it. None if
    another process holds it and ``wait``, called between attempts, is False. Raise OSError, Untrusted.
    """
    home, name = os.path.split(path)
    while True:
        with ExitStack() as files:
            with trust.directory(home, trusted) as at:
                fd = trust.create(name, os.O_RDWR, at, trusted)
            files.callback(os.close, fd)
            while True:
                try:
                    fcntl.flock(fd, how | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if wait is None or not wait():
                        return None
            with suppress(FileNotFoundError):  # else another process has removed the file meanwhile
                if os.path.samestat(os.fstat(fd), os.stat(path)):
                    files.pop_all()
                    return fd


@contextmanager
def hold_lock(directory: str, name: str, trusted: Trust, busy: Callable[[str], CkptError]) -> Iterator[None]:
    """Hold a lock that one process has at a time, and make its directory if missing. Raise CannotLook,
    Untrusted, and ``busy(holder)`` if another process holds it.
    """
    path = os.path.join(directory, name)
    hint = "it needs a directory that can be written, on a file system with flock"
    with explain_refusal(f"{path} cannot be locked", hint):
        trust.make(directory, trusted)
        fd = take_lock(path, trusted)
        who = "" if fd is not None else trust.read(path, 200, trusted).decode("utf-8", "replace")
    if fd is None:
        raise busy(who or "another process")
    try:
        with suppress(OSError):  # the text is only for the message of a process that finds it locked
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"process {os.getpid()} on {os.uname().nodename}".encode(), 0)
        yield
    finally:
        os.close(fd)


# ---- files of results


_HINT = "name another FILE with -o, or make room"


def check_writable(path: str) -> None:
    """Raise CannotLook if no file could be written at ``path``: called before the work for that file."""
    with explain_refusal(f"{path} cannot be written", _HINT):
        if _is_special(path):
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        fd, aside = _create_aside(path)
        os.close(fd)
        os.unlink(aside)


def write_whole(path: str, data: bytes) -> None:
    """Replace the file at ``path``: write a new file, sync and rename it. Raise CannotLook."""
    with explain_refusal(f"{path} cannot be written", _HINT):
        if _is_special(path):  # a pipe or a terminal holds nothing that could be half of a file
            with open(path, "wb", buffering=0) as stream:
                write_all(stream.fileno(), data)
            return
        target = os.path.realpath(path)  # a link stays, and leads to the new file
        fd, aside = _create_aside(target)
        with suppress(OSError):  # keep the mode: who could not read the old file cannot read the new one
            os.fchmod(fd, stat.S_IMODE(os.stat(target).st_mode) & 0o777)
        with finish_aside(fd, data, aside, target):
            pass


def _is_special(path: str) -> bool:
    """Return True if ``path`` exists and is neither a file nor a directory, such as a pipe."""
    try:
        kind = os.stat(path).st_mode
    except FileNotFoundError:
        return False
    return not (stat.S_ISREG(kind) or stat.S_ISDIR(kind))


def _create_aside(path: str) -> tuple[int, str]:
    """Return (descriptor, path) of a new file beside ``path``, whose mode is the umask's."""
    target = os.path.realpath(path)
    with suppress(FileNotFoundError):  # any other error, such as a name too long, is raised
        if stat.S_ISDIR(os.lstat(target).st_mode):
            raise IsADirectoryError(errno.EISDIR, "it is a directory")
    if os.path.exists(target) and not os.access(target, os.W_OK):  # a rename ignores this permission
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    home, name = os.path.split(target)
    aside = os.path.join(home, f".{name[:100]}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(aside, flags, 0o666), aside
