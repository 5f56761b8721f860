"""The fixtures of the test servers. Each server is started once in a test process, by the first test that
wants it; each test has a bucket of its own.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from stores.azurite import Azurite, azurite_server
from stores.bucket import Bucket
from stores.gcs import Gcs, gcs_server
from stores.http_files import HttpFiles, http_files
from stores.memory import memory_bucket
from stores.moto_s3 import MotoS3, moto_s3
from stores.proxy import Proxy, proxied
from stores.rclone import RcloneS3
from stores.rclone import rclone_s3 as started_rclone
from stores.sftp import Sftp
from stores.sftp import sftp_server as started_sftp


def new_name() -> str:
    """One that every kind of store takes for a bucket."""
    return f"ckpt-{secrets.token_hex(8)}"


@pytest.fixture(scope="session")
def servers_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs and objects of all of them."""
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="session")
def s3_server(servers_home: Path) -> Iterator[MotoS3]:
    with moto_s3(servers_home) as server:
        yield server


@pytest.fixture(scope="session")
def rclone_server(servers_home: Path) -> Iterator[RcloneS3]:
    with started_rclone(servers_home) as server:
        yield server


@pytest.fixture(scope="session")
def azure_server(servers_home: Path) -> Iterator[Azurite]:
    with azurite_server(servers_home) as server:
        yield server


@pytest.fixture(scope="session")
def google_server() -> Iterator[Gcs]:
    with gcs_server() as server:
        yield server


@pytest.fixture(scope="session")
def web_server() -> Iterator[HttpFiles]:
    with http_files() as server:
        yield server


@pytest.fixture(scope="session")
def plain_web_server() -> Iterator[HttpFiles]:
    with http_files(ranges=False) as server:
        yield server


@pytest.fixture(scope="session")
def sftp_server(servers_home: Path) -> Iterator[Sftp]:
    root = servers_home / "sftp"
    root.mkdir()
    with started_sftp(root) as server:
        yield server


@pytest.fixture
def s3(s3_server: MotoS3) -> Bucket:
    """S3 with checksums, conditions and versions (moto); this bucket keeps no versions."""
    return s3_server.bucket(new_name())


@pytest.fixture
def versioned_s3(s3_server: MotoS3) -> Bucket:
    return s3_server.bucket(new_name(), versioned=True)


@pytest.fixture
def rclone_s3(rclone_server: RcloneS3) -> Bucket:
    """S3 with signatures, without versions and conditions."""
    return rclone_server.bucket(new_name())


@pytest.fixture
def azurite(azure_server: Azurite) -> Bucket:
    return azure_server.bucket(new_name())


@pytest.fixture
def gcs(google_server: Gcs) -> Bucket:
    return google_server.bucket(new_name())


@pytest.fixture
def http_server(web_server: HttpFiles) -> Bucket:
    return web_server.bucket(new_name())


@pytest.fixture
def http_without_ranges(plain_web_server: HttpFiles) -> Bucket:
    return plain_web_server.bucket(new_name())


@pytest.fixture
def sftp(sftp_server: Sftp) -> Bucket:
    return sftp_server.bucket(new_name())


@pytest.fixture
def memory_store() -> Iterator[Bucket]:
    """fsspec's memory; what is left of it goes with the test."""
    bucket = memory_bucket(new_name())
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
