"""The objects of an S3 bucket, by boto3, which also does what obstore cannot: versions, checksums of a
choice, uploads in parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from stores.bucket import Bucket

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
