"""A bucket of S3 for commands and for this process: the variables that AWS's own tools read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ckpt_tools.model.selection import StoreOptions
from ckpt_tools.storage.stores import mounts
from stores.bucket import Bucket
from stores.s3_contents import ACCESS, REGION, SECRET


def of_s3(bucket: Bucket) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": bucket.endpoint,
        "AWS_ACCESS_KEY_ID": ACCESS,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": REGION,
        "AWS_ALLOW_HTTP": "true",
    }


@contextmanager
def reached(bucket: Bucket, home: Path) -> Iterator[None]:
    """This process asks for the bucket as a command would, and keeps what it knows in ``home``."""
    own = {"XDG_STATE_HOME": str(home / "state"), "CKPT_CACHE_DIR": str(home / "cache")}
    before = {name: os.environ.get(name) for name in (*own, *of_s3(bucket))}
    os.environ.update({**own, **of_s3(bucket)})
    mounts.configure(StoreOptions(flags=(("endpoint", bucket.endpoint), ("max_retries", "0"))))
    try:
        yield
    finally:
        mounts.configure(StoreOptions())
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value
