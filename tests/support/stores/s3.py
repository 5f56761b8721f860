"""S3: the objects of a bucket, by boto3, which also does what obstore cannot (versions, checksums of a choice, uploads
in parts); the variables that AWS's own tools read; and moto's server, with checksums, versions, conditional requests
and ranges as AWS has them.

What moto 5.2.5 does not do as AWS does: it verifies neither signatures nor rights, nor a checksum that the client
sent; a composite checksum lacks the "-N" after it, and rows of a list its type; a key with a newline is 404 when it is
put; times are whole seconds, and a list in pages is of the moment of each page.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

from ckpt_tools.model.selection import StoreOptions
from ckpt_tools.storage.stores import mounts
from stores.bucket import Bucket
from stores.process import server

ACCESS, SECRET, REGION = "ckpt-tests-access", "ckpt-tests-secret", "us-east-1"
KEYS = {"aws_access_key_id": ACCESS, "aws_secret_access_key": SECRET, "region_name": REGION}


@cache
def _describe_once() -> None:
    """boto3 reads what it knows of S3 for each session anew, half of what a command of the tests takes. That
    a process asks one store after the other as another user each time is true of the tests alone.
    """
    import botocore.session

    botocore.session.create_loader = cache(botocore.session.create_loader)


def client(endpoint: str, checksums: Literal["when_supported", "when_required"] = "when_supported") -> Any:
    import boto3
    from botocore.config import Config

    _describe_once()
    asking = {"s3": {"addressing_style": "path"}, "retries": {"max_attempts": 1}}
    how = Config(**asking, request_checksum_calculation=checksums)
    return boto3.client("s3", endpoint_url=endpoint, config=how, **KEYS)


def options(endpoint: str) -> dict[str, str]:
    """Those of obstore for such a server."""
    keys = {"access_key_id": ACCESS, "secret_access_key": SECRET, "region": REGION}
    return {"endpoint": endpoint, **keys, "virtual_hosted_style_request": "false", "allow_http": "true"}


@dataclass(frozen=True)
class S3Contents:
    """``client`` is that of boto3."""

    client: Any
    bucket: str

    def put(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.bucket, Key=key, Body=data)

    def delete(self, key: str) -> None:
        self.client.delete_object(Bucket=self.bucket, Key=key)

    def keys(self) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket)
        return [found["Key"] for page in pages for found in page.get("Contents", ())]

    def upload(self, directory: Path, prefix: str, **how: Any) -> None:
        """Every file below a local directory: with what boto3 adds by itself, a CRC-32, or else as ``how``
        says, with no checksum but the ETag.
        """
        asking = self.client if not how else client(self.client.meta.endpoint_url, "when_required")
        for path in sorted(p for p in directory.rglob("*") if p.is_file()):
            key = f"{prefix}/{path.relative_to(directory).as_posix()}"
            asking.put_object(Bucket=self.bucket, Key=key, Body=path.read_bytes(), **how)

    def put_parts(self, key: str, parts: list[bytes], algorithm: str, kind: str) -> dict[str, Any]:
        """An upload in parts, of 5 MiB at least except the last: ``algorithm`` is CRC32, CRC32C, CRC64NVME or
        SHA256, ``kind`` FULL_OBJECT or COMPOSITE. Returns what the server said at the end.
        """
        at = {"Bucket": self.bucket, "Key": key}
        begun = self.client.create_multipart_upload(**at, ChecksumAlgorithm=algorithm, ChecksumType=kind)
        at["UploadId"] = begun["UploadId"]
        sent = []
        for number, body in enumerate(parts, 1):
            told = self.client.upload_part(**at, PartNumber=number, Body=body, ChecksumAlgorithm=algorithm)
            sums = {name: value for name, value in told.items() if name == f"Checksum{algorithm}"}
            sent.append({"PartNumber": number, "ETag": told["ETag"], **sums})
        done: dict[str, Any] = self.client.complete_multipart_upload(**at, MultipartUpload={"Parts": sent})
        return done


def s3_of(bucket: Bucket) -> S3Contents:
    """The objects of a bucket that is one of S3."""
    assert isinstance(bucket.contents, S3Contents)
    return bucket.contents


def of_s3(bucket: Bucket) -> dict[str, str]:
    keys = {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": REGION}
    return {"AWS_ENDPOINT_URL": bucket.endpoint, **keys, "AWS_ALLOW_HTTP": "true"}


def of_user(bucket: Bucket, home: Path, **more: str) -> dict[str, str]:
    """The same for a user who keeps what ckpt knows below ``home``."""
    own = {"XDG_STATE_HOME": str(home / "state"), "CKPT_CACHE_DIR": str(home / "cache")}
    return {**of_s3(bucket), **own, **more}


@contextmanager
def reached(bucket: Bucket, home: Path) -> Iterator[None]:
    """This process asks for the bucket as a command would, and keeps what it knows in ``home``."""
    mounts.configure(StoreOptions(flags=(("endpoint", bucket.endpoint), ("max_retries", "0"))))
    try:
        with patch.dict(os.environ, of_user(bucket, home)):
            yield
    finally:
        mounts.configure(StoreOptions())


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
