"""Azurite, Microsoft's emulator of Azure's blob storage; keys are verified.

What Azurite 3.35.0 does not do as Azure does: x-ms-range-get-content-crc64 is FeatureNotSupported (500); no versions of
blobs; a list that is to begin at startFrom, which is obstore's ``offset``, begins at its beginning where that name has
digits; a container with a key that XML cannot hold cannot be listed (500). A blob of blocks has no Content-MD5, and the
ETag is another one after each write.
"""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit
from xml.etree import ElementTree as ET

from stores.bucket import Bucket
from stores.process import program, server

ACCOUNT = "devstoreaccount1"
# Azurite's own, in its documentation and the same everywhere.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


Texts = dict[str, str]


@dataclass(frozen=True)
class AzureContents:
    endpoint: str
    container: str

    def put(self, key: str, data: bytes) -> None:
        self.ask("PUT", key, headers={"x-ms-blob-type": "BlockBlob"}, body=data)

    def delete(self, key: str) -> None:
        self.ask("DELETE", key)

    def keys(self) -> list[str]:
        found, marker = [], ""
        while True:
            page = {"restype": "container", "comp": "list", "marker": marker}
            tree = ET.fromstring(self.ask("GET", "", page)[1])
            found += [str(name.text) for name in tree.iterfind("Blobs/Blob/Name")]
            marker = tree.findtext("NextMarker") or ""
            if not marker:
                return found

    def ask(
        self,
        method: str,
        key: str,
        query: Texts | None = None,
        headers: Texts | None = None,
        body: bytes = b"",
    ) -> tuple[Texts, bytes]:
        """Headers (names in lower case) and body of the answer; another than 2xx is an error."""
        path = quote(f"/{ACCOUNT}/{self.container}" + (f"/{key}" if key else ""))
        sent = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2023-11-03"}
        sent |= headers or {}
        sent["Authorization"] = self.signed(method, path, query or {}, sent, len(body))
        connection = http.client.HTTPConnection(urlsplit(self.endpoint).netloc)
        try:
            target = f"{path}?{urlencode(query)}" if query else path
            connection.request(method, target, body or None, sent | {"Content-Length": str(len(body))})
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        if not 200 <= answer.status < 300:
            raise RuntimeError(f"{method} {target}: {answer.status} {data.decode(errors='replace')}")
        return {name.lower(): value for name, value in answer.getheaders()}, data

    def signed(self, method: str, path: str, query: Texts, headers: Texts, length: int) -> str:
        own = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()) if name[:5] == "x-ms-")
        asked = "".join(f"\n{name}:{value}" for name, value in sorted(query.items()))
        standard = [method, "", "", str(length or ""), *[""] * 8]
        text = "\n".join(standard) + f"\n{own}/{ACCOUNT}{path}{asked}"
        digest = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
        return f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"


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
