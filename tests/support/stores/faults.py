"""What can go wrong between a client and a server. Each is a ``fault`` of a :class:`stores.proxy.Rule`."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from stores.proxy import Answer, Exchange

ERROR = b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>%b</Code><Message>%b</Message></Error>'
EXPIRED = ERROR % (b"ExpiredToken", b"The provided token has expired.")
DENIED = ERROR % (b"AccessDenied", b"Access Denied")


@dataclass(frozen=True)
class Cut:
    """The connection is reset after ``after`` bytes of the body; at 0 before any answer."""

    after: int = 0
    reset: bool = True

    def meet(self, exchange: Exchange) -> None:
        if self.after or not self.reset:
            exchange.send_first(exchange.ask(), self.after)
        exchange.hang_up(reset=self.reset)


def Short(after: int) -> Cut:  # noqa: N802
    """``after`` bytes of the body under the right Content-Length; then the connection is closed in order."""
    return Cut(after, reset=False)


@dataclass(frozen=True)
class ShortLength:
    """A whole answer of HTTP that has only the first ``length`` bytes of the body, and says so in its
    Content-Length, but not in its Content-Range.
    """

    length: int

    def meet(self, exchange: Exchange) -> None:
        answer, data = exchange.ask().whole()
        length = min(self.length, answer.length)
        exchange.send(replace(answer, length=length, body=iter([data[:length]])))


@dataclass(frozen=True)
class Status:
    """The proxy answers by itself."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    def meet(self, exchange: Exchange) -> None:
        headers = [("Content-Type", "application/xml"), *self.headers]
        exchange.send(Answer(self.status, headers, len(self.body), iter([self.body])))


def unavailable(retry_after: str = "1") -> Status:
    return Status(503, (("Retry-After", retry_after),), b"<Error><Code>SlowDown</Code></Error>")


too_many = partial(Status, 429, (), b"<Error><Code>TooManyRequests</Code></Error>")
expired_token = partial(Status, 403, (), EXPIRED)
denied = partial(Status, 403, (), DENIED)


@dataclass(frozen=True)
class Stall:
    """Nothing comes after ``after`` bytes of the body (at 0: no answer at all) until the test sets
    ``release``; ``reached`` is set when a client waits.
    """

    after: int = 0
    reached: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)

    def meet(self, exchange: Exchange) -> None:
        answer = exchange.ask()
        rest = exchange.send_first(answer, self.after) if self.after else b""
        self.reached.set()
        while not self.release.wait(0.05) and not exchange.ended.is_set():
            pass
        if not self.after:
            exchange.send_head(answer)
        exchange.send_rest(rest, answer)


@dataclass(frozen=True)
class Corrupt:
    """Another byte at ``at``, an offset in the object, whichever range of it is read."""

    at: int
    mask: int = 0x01

    def meet(self, exchange: Exchange) -> None:
        answer = exchange.ask()
        exchange.send_head(answer)
        begins = re.match(r"bytes (\d+)-", answer.header("Content-Range"))
        position = int(begins[1]) if begins else 0
        for block in answer.body:
            here = self.at - position
            position += len(block)
            if 0 <= here < len(block):
                block = block[:here] + bytes([block[here] ^ self.mask]) + block[here + 1 :]  # noqa: PLW2901
            exchange.send_block(block)


@dataclass
class CorruptElsewhere:
    """Another byte each time, of 16 from ``at`` on."""

    at: int
    times: int = 0

    def meet(self, exchange: Exchange) -> None:
        self.times += 1
        Corrupt(self.at + self.times % 16, 0x10).meet(exchange)


@dataclass(frozen=True)
class Before:
    """Something is done before a request reaches the server."""

    call: Callable[[], object]

    def meet(self, exchange: Exchange) -> None:
        self.call()
        exchange.send(exchange.ask())


@dataclass(frozen=True)
class Hook:
    """``call`` is called once ``after`` bytes of the body have been sent, such as to replace the object; then
    the rest of this answer follows.
    """

    call: Callable[[], object]
    after: int = 0

    def meet(self, exchange: Exchange) -> None:
        answer = exchange.ask()
        rest = exchange.send_first(answer, self.after)
        self.call()
        exchange.send_rest(rest, answer)


@dataclass(frozen=True)
class StaleList:
    """Answers are remembered until ``freeze()``, and from then on given again to the same question. A
    question that had no answer before is passed on.
    """

    known: dict[str, tuple[Answer, bytes]] = field(default_factory=dict)
    frozen: threading.Event = field(default_factory=threading.Event)

    def freeze(self) -> None:
        self.frozen.set()

    def meet(self, exchange: Exchange) -> None:
        question = f"{exchange.seen.path}?{exchange.seen.query}"
        if not self.frozen.is_set() or question not in self.known:
            self.known[question] = exchange.ask().whole()
        answer, data = self.known[question]
        exchange.send(replace(answer, body=iter([data])))


@dataclass(frozen=True)
class Otherwise:
    """The server's answer with another status, other headers (None: without) or another body."""

    status: int = 0
    headers: tuple[tuple[str, str | None], ...] = ()
    body: Callable[[bytes], bytes] = bytes

    def meet(self, exchange: Exchange) -> None:
        answer, data = exchange.ask().whole()
        body, other = self.body(data), {name.lower() for name, _ in self.headers}
        headers = [(n, v) for n, v in answer.headers if n.lower() not in other]
        headers += [(n, v) for n, v in self.headers if v is not None]
        length = len(body) if exchange.seen.method != "HEAD" else answer.length
        exchange.send(Answer(self.status or answer.status, headers, length, iter([body])))


@dataclass(frozen=True)
class PartialContent:
    """No fault: makes 206 of a 200 that has a Content-Range (see :mod:`stores.rclone`)."""

    def meet(self, exchange: Exchange) -> None:
        answer = exchange.ask()
        partial = answer.status == 200 and answer.header("Content-Range")
        exchange.send(replace(answer, status=206) if partial else answer)
