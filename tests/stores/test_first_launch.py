"""A prefix without objects may be misspelt: a job starts afresh there only where somebody has made it."""

from __future__ import annotations

from pathlib import Path

import pytest
from stores.asking import as_user, ask
from stores.bucket import Bucket

SERVERS = ["s3", "rclone_s3", "gcs", "azurite"]


@pytest.mark.parametrize("bucket", SERVERS, indirect=True)
def test_a_directory_is_made_before_the_first_launch(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put("runs/other/model.pt", b"x")
    with as_user(tmp_path, bucket):
        before = ask("latest", f"{bucket.url}/runs/new", "--allow=none")
        assert before.code == 5
        assert f"upload an empty object called {bucket.url}/runs/new/.keep" in before.text
        bucket.put("runs/new/.keep", b"")
        after = ask("latest", f"{bucket.url}/runs/new", "--allow=none")
        assert (after.code, after.printed) == (0, "")
        assert ask("latest", f"{bucket.url}/runs/ne", "--allow=none").code == 5
        assert ask("latest", f"{bucket.url}no/runs/new", "--allow=none", "--allow=missing").code == 5


@pytest.mark.parametrize("bucket", ["s3", "gcs"], indirect=True)
def test_a_folder_made_by_a_console_is_a_directory(bucket: Bucket, tmp_path: Path) -> None:
    """An empty object whose name ends with a slash; obstore does not tell it of Azure."""
    bucket.put("runs/new/", b"")
    with as_user(tmp_path, bucket):
        after = ask("latest", f"{bucket.url}/runs/new", "--allow=none")
        assert (after.code, after.printed) == (0, "")
