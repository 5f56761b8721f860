"""A proxy between a client and a server, which records every request and makes faults by rules.

It passes requests on as they are, with the client's Host, so that their signatures hold.
"""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import unquote, urlsplit

from stores.exchange import Answer, Exchange, Seen
from stores.serving import Handler, serving

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
    byte_range: str = ""  # found in the header Range, "bytes=0-9", or x-ms-range
    first: int = 1
    times: int | None = None
    matched: int = field(default=0, init=False)

    def takes(self, seen: Seen) -> bool:
        """Counts the request if it matches. Under the proxy's lock."""
        target = f"{seen.path}?{seen.query}" if seen.query else seen.path
        if self.method not in {"", seen.method} or not re.search(self.path, target, re.DOTALL):
            return False
        if not re.search(self.byte_range, seen.byte_range):
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
        ranges = self.headers.get("x-ms-range") or self.headers.get("Range") or ""
        seen = Seen(self.command, unquote(path), query, ranges)
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
        chunked = "Transfer-Encoding" in self.headers
        for name, value in self.headers.items():
            if name.lower() not in NOT_PASSED_ON:
                self.behind.putheader(name, value)
        if chunked:
            self.behind.putheader("Content-Length", str(len(body)))
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
