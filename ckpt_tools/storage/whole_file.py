"""A file of results that is complete or does not exist, whatever happens meanwhile."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress

from ckpt_tools.errors import CannotLook
from ckpt_tools.storage.writes import write_all, written_aside

_HINT = "name another FILE with -o, or make room"


def check_writable(path: str) -> None:
    """Raise CannotLook where no file could be written at ``path``, before the work that makes its contents.

    It makes what is written aside, and removes it.
    """
    try:
        if _special(path):
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        fd, aside = _aside(path)
        os.close(fd)
        os.unlink(aside)
    except OSError as e:
        raise _unwritten(path, e) from e


def write_whole(path: str, data: bytes) -> None:
    """Put a file at ``path``: written aside, synced, renamed. Raises CannotLook."""
    try:
        if _special(path):  # a pipe or a terminal holds nothing that could be half of a file
            with open(path, "wb", buffering=0) as stream:
                write_all(stream.fileno(), data)
            return
        target = os.path.realpath(path)  # a link stays, and leads to the new file
        fd, aside = _aside(target)
        with suppress(OSError):  # whoever could not read the old one cannot read it either
            os.fchmod(fd, stat.S_IMODE(os.stat(target).st_mode) & 0o777)
        with written_aside(fd, data, aside, target):
            pass
        with suppress(OSError):  # a directory that cannot be synced (some network file systems) holds it too
            at = os.open(os.path.dirname(target), os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(at)
            finally:
                os.close(at)
    except OSError as e:
        raise _unwritten(path, e) from e


def _special(path: str) -> bool:
    try:
        kind = os.stat(path).st_mode
    except FileNotFoundError:
        return False
    return not (stat.S_ISREG(kind) or stat.S_ISDIR(kind))


def _aside(path: str) -> tuple[int, str]:
    """A new file beside ``path``, open. The caller's umask gives its mode."""
    target = os.path.realpath(path)
    with suppress(FileNotFoundError):  # a name that is too long is said before the work, too
        if stat.S_ISDIR(os.lstat(target).st_mode):
            raise IsADirectoryError(errno.EISDIR, "it is a directory")
    if os.path.exists(target) and not os.access(target, os.W_OK):  # a rename would not ask
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    home, name = os.path.split(target)
    aside = os.path.join(home, f".{name[:100]}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(aside, flags, 0o666), aside


def _unwritten(path: str, error: OSError) -> CannotLook:
    return CannotLook(f"{path} cannot be written: {error.strerror}", _HINT)
