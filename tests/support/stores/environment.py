"""A bucket of S3 for commands and for this process: the variables that AWS's own tools read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from ckpt_tools.model.selection import StoreOptions
from ckpt_tools.storage.stores import mounts
from stores.bucket import Bucket
from stores.s3_contents import ACCESS, REGION, SECRET


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
