"""Whether the processes of other nodes still run: facts of the kernel that do not depend on how long anybody
is silent.

A process that ends, however it is killed, loses its file locks and its connections. Only what was seen to be
there before can be missed: where locks do not reach other machines, or no connection comes about, nothing is
concluded, and the time that the caller gives decides as before.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Protocol

from ckpt_tools.planning.decision_log import safe

_OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Watch(Protocol):
    """``name`` is what a process calls itself, a number that was never used."""

    def announce(self, name: str) -> None:
        """Let the others see that this process runs; before they are told its name."""
        ...

    @property
    def offer(self) -> Mapping[str, Any]:
        """What the first node tells the others to be watched by it."""
        ...

    def follow(self, offer: Mapping[str, Any], first: str) -> None:
        """Let the first node, of that name, watch this process, and watch it."""
        ...

    def gone(self, name: str) -> bool:
        """Whether a process that was seen has ended."""
        ...

    def alive(self, name: str) -> bool:
        """Whether a process was seen and has not ended, as far as that can be known."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait, but not for a process that ends meanwhile."""
        ...

    def close(self) -> None: ...


class Locks:
    """Each process holds a lock on a file of its own in a directory that all see; POSIX locks, which children
    of a fork do not share.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._mine: tuple[int, str] | None = None
        self._others: dict[str, int] = {}
        self._seen: set[str] = set()
        self.offer: Mapping[str, Any] = {}

    def announce(self, name: str) -> None:
        path = self._path(name)
        with suppress(OSError):  # a file system without locks
            fd = os.open(path, _OPEN | os.O_CREAT, 0o644)
            self._mine = fd, path
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def follow(self, offer: Mapping[str, Any], first: str) -> None:  # noqa: ARG002 - a Watch has it
        self.gone(first)  # seen before it is answered: it may end before we look again

    def gone(self, name: str) -> bool:
        held = self._held(name)
        if held:
            self._seen.add(name)
        return held is False and name in self._seen

    def alive(self, name: str) -> bool:
        return self._held(name) is True

    def _held(self, name: str) -> bool | None:
        """None when that cannot be known."""
        try:
            if name not in self._others:
                self._others[name] = os.open(self._path(name), _OPEN)
            fd = self._others[name]
            fcntl.lockf(
                fd, fcntl.LOCK_SH | fcntl.LOCK_NB
            )  # shared, so that those who look do not take each other for the holder
            fcntl.lockf(fd, fcntl.LOCK_UN)
        except (BlockingIOError, PermissionError):
            return True
        except OSError:
            return None
        return False

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        for fd in self._others.values():
            os.close(fd)
        self._others.clear()
        if self._mine:
            fd, path = self._mine
            with suppress(OSError):
                os.unlink(path)
            os.close(fd)
            self._mine = None

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, safe(f"alive.{name}"))
