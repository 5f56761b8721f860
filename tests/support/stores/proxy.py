"""A proxy between a client and a server, which records every request and makes faults by rules.

It passes requests on as they are, with the client's Host, so that their signatures hold.
"""

from __future__ import annotations

import http.client
import re
import socket
import struct
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.client import HTTPResponse
from itertools import chain
from typing import Protocol
from urllib.parse import unquote, urlsplit

from stores.serving import CHUNK, Handler, serving

OF_THE_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "content-length"}


@dataclass
class Seen:
    """A request. ``status`` and ``sent`` are known before the client can have read what they speak of."""

    method: str
    path: str  # unquoted
    query: str
    status: int = 0
    sent: int = 0  # bytes of the body


@dataclass(frozen=True)
class Answer:
    """``length`` is what the header says; ``body`` yields blocks in order."""

    status: int
    headers: list[tuple[str, str]] = field(default_factory=list)
    length: int = 0
    body: Iterable[bytes] = ()

    @classmethod
    def of(cls, response: HTTPResponse) -> Answer:
        """What the server said. One in chunks is read first: those are lists and errors."""
        told = response.getheader("Content-Length")
        headers = [(n, v) for n, v in response.getheaders() if n.lower() not in OF_THE_CONNECTION]
        if told is None:
            whole = response.read()
            return cls(response.status, headers, len(whole), iter([whole]))
        return cls(response.status, headers, int(told), blocks(response))

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers if key.lower() == name.lower()), "")

    def whole(self) -> tuple[Answer, bytes]:
        """The answer with its body at hand."""
        data = b"".join(self.body)
        return replace(self, body=iter([data])), data


def blocks(response: HTTPResponse) -> Iterator[bytes]:
    while block := response.read(CHUNK):
        yield block


@dataclass(frozen=True)
class Exchange:
    """What a fault can do with one request."""

    handler: Between
    seen: Seen
    body: bytes
    ended: threading.Event  # when the proxy ends, nobody is kept waiting

    def ask(self) -> Answer:
        """The server's answer."""
        return self.handler.ask(self.body)

    def send(self, answer: Answer) -> None:
        """Give it to the client."""
        self.send_head(answer)
        self.send_rest(b"", answer)

    def send_rest(self, first: bytes, answer: Answer) -> None:
        """What was read of the server already, and what follows."""
        for block in chain([first] if first else [], answer.body):
            self.send_block(block)

    def send_head(self, answer: Answer) -> None:
        self.seen.status = answer.status
        self.handler.send_response_only(answer.status)
        for name, value in answer.headers:
            self.handler.send_header(name, value)
        self.handler.send_header("Content-Length", str(answer.length))
        self.handler.end_headers()

    def send_block(self, block: bytes) -> None:
        if self.handler.command != "HEAD":
            self.seen.sent += len(block)
            self.handler.wfile.write(block)

    def send_first(self, answer: Answer, most: int) -> bytes:
        """Head and the first ``most`` bytes of the body; returns what was read of the server beyond them."""
        self.send_head(answer)
        left = most
        for block in answer.body:
            if len(block) >= left:
                self.send_block(block[:left])
                return block[left:]
            self.send_block(block)
            left -= len(block)
        return b""

    def hang_up(self, *, reset: bool = False) -> None:
        """End the connection: in order, or as a router that was switched off does."""
        self.handler.close_connection = True
        self.handler.behind.close()
        if reset:
            linger = struct.pack("ii", 1, 0)
            self.handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


NOT_PASSED_ON = {"connection", "keep-alive", "transfer-encoding", "expect"}


class Fault(Protocol):
    def meet(self, exchange: Exchange) -> None:
        """Answer the request instead of the proxy. It may pass it on."""


@dataclass
class Rule:
    """Which requests meet a fault: those whose method is ``method`` and in whose path (unquoted) and query
    ``path`` is found, from the ``first`` of them on, ``times`` times (None: for ever).
    """

    fault: Fault
    method: str = ""
    path: str = ""
    first: int = 1
    times: int | None = None
    matched: int = field(default=0, init=False)

    def takes(self, seen: Seen) -> bool:
        """Counts the request if it matches. Under the proxy's lock."""
        target = f"{seen.path}?{seen.query}" if seen.query else seen.path
        if self.method not in {"", seen.method} or not re.search(self.path, target, re.DOTALL):
            return False
        self.matched += 1
        return self.first <= self.matched and (self.times is None or self.matched < self.first + self.times)


class Proxy:
    """``seen`` are all requests, in the order in which they came."""

    def __init__(self, upstream: str) -> None:
        self.upstream = urlsplit(upstream).netloc
        self.endpoint = ""
        self.seen: list[Seen] = []
        self.rules: list[Rule] = []
        self.lock = threading.Lock()
        self.ended = threading.Event()

    def add(self, rule: Rule) -> Rule:
        """The first rule that matches a request decides what becomes of it."""
        with self.lock:
            self.rules.append(rule)
        return rule

    def clear(self) -> None:
        """Forget rules and requests."""
        with self.lock:
            self.rules.clear()
            self.seen.clear()

    def arrived(self, seen: Seen) -> Fault | None:
        with self.lock:
            self.seen.append(seen)
            return next((rule.fault for rule in self.rules if rule.takes(seen)), None)

    def count(self, method: str = "", path: str = "") -> int:
        """How many requests there were of this method with this in their path."""
        with self.lock:
            return sum(method in {"", one.method} and bool(re.search(path, one.path)) for one in self.seen)


class Between(Handler):
    """One connection of a client, and its own one to the server."""

    def setup(self) -> None:
        super().setup()
        self.proxy: Proxy = self.server.state
        self.behind = http.client.HTTPConnection(self.proxy.upstream)

    def finish(self) -> None:
        self.behind.close()
        with suppress(OSError):
            super().finish()

    def answer(self) -> None:
        path, _, query = self.path.partition("?")
        seen = Seen(self.command, unquote(path), query)
        exchange = Exchange(self, seen, self.body(), self.proxy.ended)
        fault = self.proxy.arrived(seen)
        if fault is None:
            exchange.send(exchange.ask())
        else:
            fault.meet(exchange)

    def ask(self, body: bytes) -> Answer:
        """Pass the request on. A kept connection that the server has ended meanwhile is made anew."""
        for last in (False, True):
            try:
                self.pass_on(body)
                return Answer.of(self.behind.getresponse())
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                self.behind.close()
                if last:
                    raise
        raise AssertionError

    def pass_on(self, body: bytes) -> None:
        self.behind.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in NOT_PASSED_ON:
                self.behind.putheader(name, value)
        self.behind.endheaders(body or None)


@contextmanager
def proxied(upstream: str) -> Iterator[Proxy]:
    """A proxy in front of the server at ``upstream``."""
    proxy = Proxy(upstream)
    with serving(Between, proxy) as server:
        proxy.endpoint = server.endpoint
        try:
            yield proxy
        finally:
            proxy.ended.set()
