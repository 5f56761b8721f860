"""HTTP servers in threads of the test process: HTTP/1.1 with connections that are kept."""

from __future__ import annotations

import socket
import socketserver
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler
from typing import Any

CHUNK = 1 << 18


class Server(socketserver.ThreadingTCPServer):
    """One thread for each connection. ``state`` is what the handlers share."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, handler: type[Handler], state: Any) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.state = state
        self.open: set[socket.socket] = set()
        self.handlers: list[threading.Thread] = []
        self.errors: list[BaseException | None] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def process_request(self, request: Any, client_address: Any) -> None:
        self.open.add(request)
        thread = threading.Thread(target=self.process_request_thread, args=(request, client_address))
        thread.daemon = True
        self.handlers = [*(t for t in self.handlers if t.is_alive()), thread]
        thread.start()

    def shutdown_request(self, request: Any) -> None:
        self.open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients go away as they like, and faults end connections on purpose; all else is a defect of the
        test, or of its server.
        """
        error = sys.exc_info()[1]
        if not isinstance(error, (OSError, HTTPException)):
            self.errors.append(error)

    def hang_up(self) -> None:
        """End all connections, also those that a client keeps for its next request."""
        for connection in list(self.open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self.handlers:
            thread.join()


class Handler(BaseHTTPRequestHandler):
    """One method for all requests, :meth:`answer`."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def answer(self) -> None:
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self.answer
        raise AttributeError(name)

    def log_message(self, format: str, *args: Any) -> None:
        """Nowhere: a test that wants to know asks the proxy."""

    def body(self) -> bytes:
        """That of the request; none comes in chunks."""
        assert "Transfer-Encoding" not in self.headers
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def reply(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        """One whole answer; that to a HEAD is given with its body and sent without."""
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def serving(handler: type[Handler], state: Any) -> Iterator[Server]:
    with Server(handler, state) as server:
        loop = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        loop.start()
        try:
            yield server
        finally:
            server.shutdown()
            loop.join()
            server.hang_up()
        for error in server.errors:
            raise RuntimeError("a handler failed") from error
