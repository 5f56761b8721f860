"""moto's S3 server: checksums, versions, conditional requests and ranges as AWS has them.

Measured, moto 5.2.5 with boto3 1.44 and obstore 0.12: a HEAD with x-amz-checksum-mode and
GetObjectAttributes tell CRC32, CRC32C, CRC64NVME and SHA256, of uploads in parts also both kinds (COMPOSITE
is the checksum of the checksums of the parts). If-Match answers 412 to GET, HEAD and PUT, If-None-Match: *
to PUT; ranges answer 206 and 416; pages, delimiters, StartAfter, delete markers and ?versionId= work.

What it does not do as AWS does:

- It verifies neither signatures nor rights: any key and secret may do all.
- It stores a checksum that the client sent without comparing it with the body, and no MD5 of a body either.
- A composite checksum lacks the "-N" after it; GetObjectAttributes knows no ObjectParts.
- An object put in one request has no x-amz-checksum-type (AWS: FULL_OBJECT); nor have the rows of a list.
- A key with a newline is 404 when it is put; all other odd keys work ("//", "..", control characters).
- Times are whole seconds everywhere, and a list in pages is of the moment of each page.
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
