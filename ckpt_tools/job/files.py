"""Files that several processes share: written whole or not at all, and locks that die with their holder."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from ckpt_tools.errors import CannotLook

_POLL = 0.05


def state_dir(env: Mapping[str, str]) -> str:
    """Where decisions go unless --plan-dir says otherwise: it survives a reboot, so that a lost mount is not taken for a first launch."""
    home = env.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(home, "ckpt-tools", "decisions")


def write(path: str, data: bytes) -> None:
    """Put a whole file at ``path`` or nothing: written aside, synced, renamed. Raises CannotLook."""
    aside = f"{path}.{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    try:
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(aside, path)
        directory = os.open(os.path.dirname(path), os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as e:
        with suppress(OSError):
            os.unlink(aside)
        raise CannotLook(f"the decision could not be written to {path}: {e.strerror}", "make room, or name another directory with --plan-dir") from e


def safe(name: str) -> str:
    """A name as a single path component."""
    return re.sub(r"[^A-Za-z0-9_.=-]", "_", name)[:80].lstrip(".") or "_"


@contextmanager
def locked(path: str, timeout: float) -> Iterator[None]:
    """Hold an exclusive flock on ``path``; the kernel lets go of it when the holder dies. Raises CannotLook after ``timeout`` seconds."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as e:
        raise CannotLook(f"{path} cannot be opened: {e.strerror}", "name a writable directory with --plan-dir") from e
    try:
        end = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise CannotLook(
                        f"another process has been deciding for more than {timeout:g} s", "wait longer with --timeout, or read less with --budget"
                    ) from None
                time.sleep(_POLL)
            except OSError as e:
                raise CannotLook(f"{path} cannot be locked: {e.strerror}", "--plan-dir must be on a file system with flock") from e
        yield
    finally:
        os.close(fd)
