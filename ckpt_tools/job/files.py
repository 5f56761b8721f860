"""Files that the processes of a job share, and the ever longer pauses with which they wait for one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from ckpt_tools.errors import CannotLook, explain_refusal
from ckpt_tools.planning.first_launch import FLAG
from ckpt_tools.storage import trust, writes
from ckpt_tools.storage.trust import OURS, Trust

FIRST, MOST = 0.01, 2.0
"""Seconds of the shortest and the longest pause."""


class Backoff:
    """Pauses between two looks, each an eighth of the time waited so far: an answer is seen at most an eighth
    late, in some 50 looks for 10 s and 350 for 10 minutes.
    """

    def __init__(self, timeout: float) -> None:
        self.started = time.monotonic()
        self.ends = self.started + timeout

    def pause(self) -> bool:
        """Sleep until the next look. Return False, without sleeping, if the time is over."""
        now = time.monotonic()
        if now >= self.ends:
            return False
        time.sleep(min(MOST, max(FIRST, (now - self.started) / 8), self.ends - now))
        return True


def read_boot_id() -> str:
    """Return the id of this boot of this machine; "" if the kernel tells none."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
        return f.read().strip()
    return ""


def create(path: str, data: bytes) -> None:
    """Write a new file that others cannot write, whatever the umask. Raise OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o644), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def make_own(path: str, trusted: Trust, hint: str, flag: str = FLAG) -> None:
    """Make a directory if it is missing. Raise CannotLook, and Untrusted if others can write it."""
    with explain_refusal(f"{path} cannot be made", hint), trust.label(flag):
        trust.make(path, trusted)
        trust.check(path, trusted)


def write(path: str, data: bytes, trusted: Trust = OURS) -> None:
    """Write a file below --plan-dir whole or not at all: aside, synced, renamed. Raise CannotLook if it
    cannot be written, Untrusted if others than the ``trusted`` users can write its directory.
    """
    home, name = os.path.split(path)
    hint = "make room, or name another directory with --plan-dir"
    with explain_refusal(f"the decision could not be written to {path}", hint), ExitStack() as files:
        with trust.label(FLAG):
            at = files.enter_context(trust.directory(home, trusted))
        files.enter_context(writes.write_aside(at, name, data, trusted))


@contextmanager
def hold_lock(path: str, timeout: float, trusted: Trust = OURS) -> Iterator[None]:
    """Hold a lock file; the kernel frees it when the holder dies. Raise CannotLook after ``timeout`` s."""
    hint = "name a writable directory with --plan-dir, on a file system with flock"
    with explain_refusal(f"{path} cannot be locked", hint), trust.label(FLAG):
        fd = writes.take_lock(path, trusted, wait=Backoff(timeout).pause)
    if fd is None:
        text = f"another process has been deciding for more than {timeout:g} s"
        raise CannotLook(text, "wait longer with --timeout, or read less with --budget")
    try:
        yield
    finally:
        os.close(fd)
