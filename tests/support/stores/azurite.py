"""Azurite, Microsoft's emulator of Azure's blob storage; keys are verified.

What Azurite 3.35.0 does not do as Azure does: x-ms-range-get-content-crc64 is FeatureNotSupported (500); no versions of
blobs; a list that is to begin at startFrom, which is obstore's ``offset``, begins at its beginning where that name has
digits; a container with a key that XML cannot hold cannot be listed (500). A blob of blocks has no Content-MD5, and the
ETag is another one after each write.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stores.azure_contents import ACCOUNT, KEY, AzureContents
from stores.bucket import Bucket
from stores.process import program, server

VERSION = "3.35.0"  # as .ci/azurite installs it; the next one needs a newer node than Debian 12 has
FOLDERS = [
    Path("/var/cache/ckpt-tools-tests") / f"azurite-{VERSION}" / "node_modules/.bin",
    Path("~/.cache/ckpt-tools-tests").expanduser() / f"azurite-{VERSION}" / "node_modules/.bin",
]


@dataclass(frozen=True)
class Azurite:
    endpoint: str

    def bucket(self, name: str) -> Bucket:
        contents = AzureContents(self.endpoint, name)
        contents.ask("PUT", "", {"restype": "container"})
        options = {"account_name": ACCOUNT, "account_key": KEY, "endpoint": f"{self.endpoint}/{ACCOUNT}"}
        return Bucket(f"az://{name}", self.endpoint, {**options, "allow_http": "true"}, contents)


@contextmanager
def azurite_server(directory: Path) -> Iterator[Azurite]:
    """The server, with its log in ``directory``; blobs are in its memory."""
    command = [
        program("azurite-blob", FOLDERS, install=".ci/packages"),
        *("--blobHost", "127.0.0.1", "--blobPort", "0"),
        *("--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"),
    ]
    with server(command, directory / "azurite.log") as endpoint:
        yield Azurite(endpoint)
