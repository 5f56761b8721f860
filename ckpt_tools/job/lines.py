"""Connections by which nodes that meet over TCP see that the others still run. Anybody may connect; nobody is
believed before both ends have shown the secret.

The first node asks with a number that was never used, the other answers with its name, a number of its own
and a proof over all of them, and gets a proof back. So what was said to another process, in another meeting
or in the other direction, shows nothing here.
"""

from __future__ import annotations

import secrets
import selectors
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ckpt_tools.job.hosts import listener
from ckpt_tools.job.secret import Seal, shown
from ckpt_tools.model.frozen import field, record

NAME = 32
"""Characters of a name and of a number that was never used."""
PROOF = 64
STRANGERS = 256
"""Connections that have shown nothing yet, at most; of more, the oldest go."""
_ANSWER = NAME + NAME + PROOF
_AT_ONCE, _BACKLOG = 16, 1024
_CONNECT_SECONDS = 1.0


def number() -> str:
    """A number that was never used."""
    return secrets.token_hex(NAME // 2)


@record
class _Stranger:
    """Somebody who has connected: what we asked, and what of the answer has come."""

    asked: str = field(default_factory=number)
    said: bytes = b""


class Lines:
    """Each node keeps a connection to the first one, which the kernel closes when either process ends.
    ``host`` and ``port`` are those of the store.
    """

    def __init__(self, host: str, port: int, seal: Seal, *, listen: bool) -> None:
        self.host, self.port, self.seal, self.name = host, port, seal, ""
        self._strangers: dict[socket.socket, _Stranger] = {}
        self._lines: dict[str, socket.socket] = {}
        self._names: dict[socket.socket, str] = {}
        self._ended: set[str] = set()
        self._ready = selectors.DefaultSelector()
        self._listener: socket.socket | None = None
        if listen:
            with suppress(OSError):  # then nothing is concluded, and the time that the caller gives decides
                self._listener = listener(host, 0)
                self._listener.setblocking(False)
                self._ready.register(self._listener, selectors.EVENT_READ)

    def announce(self, name: str) -> None:
        self.name = name

    @property
    def offer(self) -> Mapping[str, Any]:
        if self._listener is None:
            return {}
        return {
            "port": self._listener.getsockname()[1],
            "hosts": [self.host, *_addresses(self.host, self.port)],
        }

    def follow(self, offer: Mapping[str, Any], first: str) -> None:
        """Connect to the first node: a process that listens there counts once it has shown the secret, since
        an address may mean another machine here.
        """
        if first in self._lines or first in self._ended or not offer:
            return
        for host in offer["hosts"]:
            if line := self._connected(host, offer["port"], first):
                self._keep(first, line)
                return

    def gone(self, name: str) -> bool:
        self._serve(0)
        return name in self._ended

    def alive(self, name: str) -> bool:
        self._serve(0)
        return name in self._lines

    def sleep(self, seconds: float) -> None:
        """Wait, but not for a node that ends meanwhile; strangers wake nobody."""
        if self._ready.get_map() is None:  # closed
            time.sleep(seconds)
            return
        end = time.monotonic() + seconds
        while not self._serve(max(0.0, end - time.monotonic())) and time.monotonic() < end:
            pass

    def close(self) -> None:
        for s in (*self._lines.values(), *self._strangers, *([self._listener] if self._listener else [])):
            s.close()
        self._ready.close()
        self._lines.clear()
        self._names.clear()
        self._strangers.clear()
        self._listener = None

    # ---- the first node's side

    def _serve(self, seconds: float) -> bool:
        """Take connections, and notice those that have ended, for that time or until something happens.
        Whether it was about a node of this job.
        """
        if self._ready.get_map() is None:  # closed
            return False
        news = False
        for key, _ in self._ready.select(seconds):
            line = key.fileobj
            if line is self._listener:
                self._accept()
            elif isinstance(line, socket.socket):
                news = (self._greet(line) if line in self._strangers else self._ends(line)) or news
        return news

    def _ends(self, line: socket.socket) -> bool:
        """Whether the node behind a connection has ended."""
        name = self._names.get(line)
        if name is None or _open(line):
            return False
        self._ended.add(name)
        del self._lines[name]
        self._forget(line)
        return True

    def _accept(self) -> None:
        assert self._listener is not None  # noqa: S101 - it was ready; for the type checker
        for _ in range(_AT_ONCE):
            try:
                line = self._listener.accept()[0]
            except OSError:  # nobody more, or no more files
                return
            line.setblocking(False)
            while len(self._strangers) >= STRANGERS:
                self._forget(next(iter(self._strangers)))
            self._strangers[line] = stranger = _Stranger()
            self._ready.register(line, selectors.EVENT_READ)
            with suppress(OSError):
                line.send(stranger.asked.encode())  # a new connection takes so few bytes at once

    def _greet(self, line: socket.socket) -> bool:
        """The answer of who has connected, and our proof in return. Whether it is a node of this job."""
        stranger = self._strangers[line]
        try:
            more = line.recv(_ANSWER - len(stranger.said))
        except BlockingIOError:
            return False
        except OSError:
            more = b""
        stranger.said += more
        if more and len(stranger.said) < _ANSWER:
            return False
        text = stranger.said.decode("ascii", "replace")
        name, theirs, proof = text[:NAME], text[NAME : 2 * NAME], text[2 * NAME :]
        wanted = self.seal.proof("line", self.name, name, stranger.asked, theirs)
        if not more or name in self._lines or not shown(proof, wanted):
            self._forget(line)
            return False
        del self._strangers[line]
        with suppress(OSError):
            line.send(self.seal.proof("first", self.name, name, stranger.asked, theirs).encode())
        self._lines[name], self._names[line] = line, name
        return True

    def _forget(self, line: socket.socket) -> None:
        self._strangers.pop(line, None)
        self._names.pop(line, None)
        with suppress(KeyError, ValueError):
            self._ready.unregister(line)
        line.close()

    # ---- the other nodes' side

    def _connected(self, host: str, port: int, first: str) -> socket.socket | None:
        """A connection to the first node, of that name; None where another one answers, or nobody."""
        end = time.monotonic() + _CONNECT_SECONDS
        try:
            line = socket.create_connection((host, port), timeout=_CONNECT_SECONDS)
        except OSError:
            return None
        with suppress(OSError):
            asked, mine = _received(line, NAME, end), number()
            line.sendall((self.name + mine + self.seal.proof("line", first, self.name, asked, mine)).encode())
            if shown(_received(line, PROOF, end), self.seal.proof("first", first, self.name, asked, mine)):
                return line
        line.close()
        return None

    def _keep(self, name: str, line: socket.socket) -> None:
        line.setblocking(False)
        self._lines[name], self._names[line] = line, name
        self._ready.register(line, selectors.EVENT_READ)


def _received(line: socket.socket, count: int, end: float) -> str:
    """So many bytes, all of them before ``end``: who sends one at a time keeps nobody. Raises OSError."""
    said = b""
    while len(said) < count:
        line.settimeout(max(0.001, end - time.monotonic()))
        more = line.recv(count - len(said))
        if not more or time.monotonic() > end:
            raise ConnectionError("the other end has not answered")
        said += more
    return said.decode("ascii", "replace")


def _addresses(host: str, port: int) -> Sequence[str]:
    """This machine as those see it who see the store at ``host``: the address of our end towards it."""
    with suppress(OSError):
        family, kind, _, _, at = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as s:
            s.connect(at)  # of datagrams: nothing is sent
            return [s.getsockname()[0]]
    return []


def _open(line: socket.socket) -> bool:
    try:
        return bool(line.recv(NAME))  # nothing more is ever sent
    except BlockingIOError:
        return True
    except OSError:
        return False
