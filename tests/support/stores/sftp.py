"""An SFTP server over a local directory, by asyncssh in a thread; fsspec asks it through paramiko."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stores.bucket import Bucket


@dataclass(frozen=True)
class Directory:
    """Objects as files, for servers that show a directory."""

    root: Path

    def put(self, key: str, data: bytes) -> None:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def delete(self, key: str) -> None:
        (self.root / key).unlink()

    def keys(self) -> list[str]:
        return [p.relative_to(self.root).as_posix() for p in self.root.rglob("*") if p.is_file()]


USER, PASSWORD = "ckpt-tests", "ckpt-tests-secret"


@dataclass(frozen=True)
class Sftp:
    endpoint: str
    root: Path

    def bucket(self, name: str) -> Bucket:
        folder = self.root / name
        folder.mkdir()
        options = {"username": USER, "password": PASSWORD}
        return Bucket(f"{self.endpoint}/{name}", self.endpoint, options, Directory(folder))


@contextmanager
def sftp_server(home: Path) -> Iterator[Sftp]:
    """Whoever has the password sees the directory ``sftp`` in ``home`` as "/"."""
    import asyncssh

    (root := home / "sftp").mkdir()

    clients: list[asyncssh.SSHServerConnection] = []

    class Login(asyncssh.SSHServer):  # type: ignore[misc]
        def connection_made(self, connection: asyncssh.SSHServerConnection) -> None:
            clients.append(connection)

        def begin_auth(self, username: str) -> bool:
            return True

        def password_auth_supported(self) -> bool:
            return True

        def validate_password(self, username: str, password: str) -> bool:
            return (username, password) == (USER, PASSWORD)

    def below_root(channel: asyncssh.SSHServerChannel) -> asyncssh.SFTPServer:
        return asyncssh.SFTPServer(channel, chroot=str(root).encode())

    async def listen() -> asyncssh.SSHAcceptor:
        key = asyncssh.generate_private_key("ssh-ed25519")
        return await asyncssh.listen(
            "127.0.0.1", 0, server_factory=Login, server_host_keys=[key], sftp_factory=below_root
        )

    async def end(server: asyncssh.SSHAcceptor) -> None:
        server.close()
        await server.wait_closed()
        for client in clients:
            client.abort()
        for client in clients:
            await client.wait_closed()

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(listen())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield Sftp(f"sftp://127.0.0.1:{server.get_port()}", root)
    finally:
        asyncio.run_coroutine_threadsafe(end(server), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
