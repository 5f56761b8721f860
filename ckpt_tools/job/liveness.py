"""Whether the processes of other nodes still run: facts of the kernel that do not depend on how long anybody is silent.

A process that ends, however it is killed, loses its file locks and its connections. Only what was seen to be there before can be missed: where locks do not reach other
machines, or no connection comes about, nothing is concluded, and the time that the caller gives decides as before.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import select
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from ckpt_tools.pipeline.history import safe

_CONNECT_SECONDS = 1.0
_SECRET = 32
"""Characters of the words with which both ends of a connection show whose it is."""


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
    """Each process holds a lock on a file of its own in a directory that all see; POSIX locks, which children of a fork do not share."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._mine: tuple[int, str] | None = None
        self._others: dict[str, int] = {}
        self._seen: set[str] = set()
        self.offer: Mapping[str, Any] = {}

    def announce(self, name: str) -> None:
        path = self._path(name)
        with suppress(OSError):  # a file system without locks
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._mine = fd, path
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def follow(self, offer: Mapping[str, Any], first: str) -> None:  # noqa: ARG002 - a Watch has it
        return

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
                self._others[name] = os.open(self._path(name), os.O_RDWR | os.O_CLOEXEC)
            fd = self._others[name]
            fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared, so that those who look do not take each other for the holder
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


class Lines:
    """Each node keeps a connection to the first one, which the kernel closes when either process ends. ``host`` and ``port`` are those of the store."""

    def __init__(self, host: str, port: int, *, listen: bool) -> None:
        self.host, self.port, self.secret = host, port, secrets.token_hex(_SECRET // 2)
        self._listener = _listener() if listen else None
        self._new: dict[socket.socket, bytes] = {}
        self._lines: dict[str, socket.socket] = {}
        self._ended: set[str] = set()
        self.name = ""

    def announce(self, name: str) -> None:
        self.name = name

    @property
    def offer(self) -> Mapping[str, Any]:
        if self._listener is None:
            return {}
        return {"port": self._listener.getsockname()[1], "hosts": [self.host, *_addresses(self.host, self.port)], "secret": self.secret}

    def follow(self, offer: Mapping[str, Any], first: str) -> None:
        """A connection counts once the other end has shown the secret: any process may listen at an address that means another machine here."""
        if first in self._lines or first in self._ended or not offer:
            return
        for host in offer["hosts"]:
            if line := _connected(host, offer["port"], f"{self.name:{_SECRET}}", offer["secret"]):
                self._lines[first] = line
                return

    def gone(self, name: str) -> bool:
        self._serve(0)
        return name in self._ended

    def alive(self, name: str) -> bool:
        self._serve(0)
        return name in self._lines

    def sleep(self, seconds: float) -> None:
        self._serve(seconds)

    def _serve(self, seconds: float) -> None:
        """Take connections, and notice those that have ended, for that time or until something happens."""
        listening = [self._listener] if self._listener else []
        ready = select.select([*listening, *self._new, *self._lines.values()], [], [], seconds)[0]
        for name, line in list(self._lines.items()):
            if line in ready and not _open(line):
                self._ended.add(name)
                self._lines.pop(name).close()
        for line in [s for s in self._new if s in ready]:
            self._greet(line)
        if self._listener and self._listener in ready:
            with suppress(OSError):
                line = self._listener.accept()[0]
                line.setblocking(False)
                self._new[line] = b""

    def _greet(self, line: socket.socket) -> None:
        """The name of who has connected, and the secret in return."""
        try:
            more = line.recv(_SECRET - len(self._new[line]))
        except OSError:
            more = b""
        said = self._new.pop(line) + more
        if not more:
            line.close()
        elif len(said) < _SECRET:
            self._new[line] = said
        else:
            with suppress(OSError):
                line.sendall(self.secret.encode())
            self._lines[said.decode("ascii", "replace").strip()] = line

    def close(self) -> None:
        for s in (*self._lines.values(), *self._new, *([self._listener] if self._listener else [])):
            s.close()
        self._lines.clear()
        self._new.clear()
        self._listener = None


def _listener() -> socket.socket | None:
    with suppress(OSError):
        both = socket.has_dualstack_ipv6()
        return socket.create_server(("", 0), family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both)
    return None


def _addresses(host: str, port: int) -> Sequence[str]:
    """This machine as those see it who see the store at ``host``: the address of our end towards it."""
    with suppress(OSError):
        family, kind, _, _, at = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as s:
            s.connect(at)  # of datagrams: nothing is sent
            return [s.getsockname()[0]]
    return []


def _connected(host: str, port: int, name: str, secret: str) -> socket.socket | None:
    """A connection to who knows the secret; None where there is none."""
    try:
        line = socket.create_connection((host, port), timeout=_CONNECT_SECONDS)
    except OSError:
        return None
    with suppress(OSError):
        line.sendall(name.encode())
        if _received(line) == secret:
            line.setblocking(False)
            return line
    line.close()
    return None


def _received(line: socket.socket) -> str:
    said = b""
    while len(said) < _SECRET and (more := line.recv(_SECRET - len(said))):
        said += more
    return said.decode("ascii", "replace")


def _open(line: socket.socket) -> bool:
    try:
        return bool(line.recv(_SECRET))  # nothing more is ever sent
    except BlockingIOError:
        return True
    except OSError:
        return False
