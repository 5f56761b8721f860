"""The fixtures of the test servers. Each server is started once in a test process, by the first test that
wants it; each test has a bucket of its own.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stores.azurite import azurite_server
from stores.bucket import Bucket
from stores.gcs import gcs_server
from stores.http_files import http_files
from stores.proxy import Proxy, proxied
from stores.rclone import rclone_s3 as started_rclone
from stores.s3 import moto_s3
from stores.sftp import sftp_server as started_sftp


def new_name() -> str:
    """One that every kind of store takes for a bucket."""
    return f"ckpt-{secrets.token_hex(8)}"


@pytest.fixture(scope="session")
def servers_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs and objects of all of them."""
    return tmp_path_factory.mktemp("servers")


def _server(start: Callable[[Path], AbstractContextManager[Any]]) -> Any:
    @pytest.fixture(scope="session")
    def server(servers_home: Path) -> Iterator[Any]:
        with start(servers_home) as started:
            yield started

    return server


def _bucket(server: str, **how: Any) -> Any:
    @pytest.fixture
    def bucket(request: pytest.FixtureRequest) -> Bucket:
        made: Bucket = request.getfixturevalue(server).bucket(new_name(), **how)
        return made

    return bucket


s3_server = _server(moto_s3)
rclone_server = _server(started_rclone)
azure_server = _server(azurite_server)
google_server = _server(lambda _: gcs_server())
web_server = _server(lambda _: http_files())
plain_web_server = _server(lambda _: http_files(ranges=False))
sftp_server = _server(started_sftp)

s3 = _bucket("s3_server")
"""S3 with checksums, conditions and versions (moto); this bucket keeps no versions."""
versioned_s3 = _bucket("s3_server", versioned=True)
rclone_s3 = _bucket("rclone_server")
"""S3 with signatures, without versions and conditions."""
azurite = _bucket("azure_server")
gcs = _bucket("google_server")
http_server = _bucket("web_server")
http_without_ranges = _bucket("plain_web_server")
sftp = _bucket("sftp_server")


@dataclass(frozen=True)
class Memory:
    """fsspec's file system in memory, of this process alone."""

    root: str

    def put(self, key: str, data: bytes) -> None:
        self.files().pipe_file(f"{self.root}/{key}", data)

    def delete(self, key: str) -> None:
        self.files().rm_file(f"{self.root}/{key}")

    def keys(self) -> list[str]:
        return [path.removeprefix(f"{self.root}/") for path in self.files().find(self.root)]

    def files(self):  # type: ignore[no-untyped-def]
        from fsspec.implementations.memory import MemoryFileSystem

        return MemoryFileSystem()


@pytest.fixture
def memory_store() -> Iterator[Bucket]:
    """fsspec's memory; what is left of it goes with the test."""
    url = f"memory://{(name := new_name())}"
    bucket = Bucket(url, url, {}, Memory(f"/{name}"))
    yield bucket
    for key in list(bucket.contents.keys()):
        bucket.delete(key)


@pytest.fixture
def proxy_of() -> Iterator[Callable[[Bucket], Proxy]]:
    """Starts a proxy in front of a bucket's server: ``bucket.through(proxy.endpoint)`` goes through it."""
    with ExitStack() as stack:
        yield lambda bucket: stack.enter_context(proxied(bucket.endpoint))


@pytest.fixture
def bucket(request: pytest.FixtureRequest) -> Bucket:
    """The bucket of the fixture that ``indirect`` names."""
    found: Bucket = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def proxy(s3: Bucket, proxy_of: Callable[[Bucket], Proxy]) -> Proxy:
    return proxy_of(s3)


@pytest.fixture
def through(s3: Bucket, proxy: Proxy) -> Bucket:
    """The bucket ``s3`` as it is asked for through ``proxy``; what a test puts there goes past it."""
    return s3.through(proxy.endpoint)
