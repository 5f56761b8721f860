"""moto's S3 server: checksums, versions, conditional requests and ranges as AWS has them.

What moto 5.2.5 does not do as AWS does: it verifies neither signatures nor rights, nor a checksum that the client
sent; a composite checksum lacks the "-N" after it, and rows of a list its type; a key with a newline is 404 when it is
put; times are whole seconds, and a list in pages is of the moment of each page.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stores.bucket import Bucket
from stores.process import server
from stores.s3_contents import S3Contents, client, options


@dataclass(frozen=True)
class MotoS3:
    endpoint: str

    def bucket(self, name: str, *, versioned: bool = False) -> Bucket:
        """A new one; all of its versions are kept if it is ``versioned``."""
        s3 = client(self.endpoint)
        s3.create_bucket(Bucket=name)
        if versioned:
            s3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
        return Bucket(f"s3://{name}", self.endpoint, options(self.endpoint), S3Contents(s3, name))


@contextmanager
def moto_s3(directory: Path) -> Iterator[MotoS3]:
    """The server, with its log in ``directory``."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with server(command, directory / "moto.log") as endpoint:
        yield MotoS3(endpoint)
