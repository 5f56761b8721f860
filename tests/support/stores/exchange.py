"""One request at the proxy, and the answer to it."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from http.client import HTTPResponse
from itertools import chain
from typing import TYPE_CHECKING

from stores.serving import CHUNK

if TYPE_CHECKING:
    from stores.proxy import Between

OF_THE_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "content-length"}


@dataclass
class Seen:
    """A request. ``status`` and ``sent`` are known before the client can have read what they speak of."""

    method: str
    path: str  # unquoted
    query: str
    byte_range: str
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
