"""Tools that want directories in a store write empty objects in their place: consoles one whose key ends in a
slash, Hadoop's file systems one whose name ends in ``_$folder$``. They are no files of a checkpoint, and one
beside which nothing lies is an empty directory.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path, PurePosixPath

import pytest
from fixture_trees import NAMED
from stores.asking import TREE, as_user, ask
from stores.bucket import Bucket

ASKED = (("ls",), ("verify",), ("plan", "--order", "step"))
TREES = [NAMED[name].parent / "tree" for name in ("hf-trainer/sharded", "megatron/tp", "torchsnapshot/steps")]


def answers(bucket: Bucket, home: Path) -> list[str]:
    """What each command says, but for what it has cost and what changes from one run to the next."""
    with as_user(home, bucket):
        said = [ask(*words, f"{bucket.url}/run", "--json") for words in ASKED]
    changing = r'"(seconds|age_seconds|created|fingerprint)": [^\n]*'
    return [re.sub(changing, "", f"{one.code} {one.printed}") for one in said]


@pytest.mark.share(9)
@pytest.mark.parametrize("tree", TREES, ids=lambda tree: f"{tree.parent.parent.name}-{tree.parent.name}")
@pytest.mark.parametrize("bucket", ["s3", "gcs", "azurite"], indirect=True)
def test_they_change_no_answer(tree: Path, bucket: Bucket, tmp_path: Path) -> None:
    bucket.upload(tree, "run")
    before = answers(bucket, tmp_path)
    assert [one.partition(" ")[0] for one in before] == ["0", "0", "0"]
    keys = bucket.keys()
    directories = {str(PurePosixPath(key).parent) for key in keys}
    for name in (*(f"{d}/" for d in directories), *(f"{d}_$folder$" for d in directories), "run/_$folder$"):
        bucket.put(name, b"")
    assert answers(bucket, tmp_path) == before


@pytest.mark.parametrize("bucket", ["s3"], indirect=True)
def test_a_run_of_markers_alone_has_no_checkpoint(bucket: Bucket, tmp_path: Path) -> None:
    for name in ("run_$folder$", "run/iter_0000010_$folder$", "run/iter_0000010/1_$folder$"):
        bucket.put(name, b"")
    with as_user(tmp_path, bucket):
        assert ask("plan", f"{bucket.url}/run", "--json").code == 3


@pytest.mark.parametrize("ending", ["/", "_$folder$"])
@pytest.mark.parametrize(
    ("beside", "marks"),
    [
        (False, ["iter_0000010"]), (False, ["iter_0000010", "iter_0000020"]),
        (False, ["iter_0000010/mp_rank_00", "iter_0000020/mp_rank_00"]), (True, ["iter_0000020"]), (True, ["iter_0000040"]),
        (True, ["logs", "iter_0000040/mp_rank_00"]),
    ],
)  # fmt: skip
def test_what_stands_alone_is_an_empty_directory(
    beside: bool, marks: list[str], ending: str, gcs: Bucket, tmp_path: Path
) -> None:
    """Mounts write one for each mkdir: several without a file are no first launch, as on a disk."""
    run = tmp_path / "run"
    if beside:
        shutil.copytree(TREE, run)
        gcs.upload(run, "run")
    for mark in marks:
        gcs.put(f"run/{mark}{ending}", b"")
        (run / mark).mkdir(parents=True, exist_ok=True)
    with as_user(tmp_path, gcs):
        roots = (str(run), f"{gcs.url}/run")
        said = [ask("plan", root, "--order", "step", "--allow=none", "--json") for root in roots]
    ours, theirs = ((one.code, one.codes - {"mtime-not-kept", "another-writer"}) for one in said)
    assert ours == theirs


def test_older_versions_and_delete_markers_are_nothing(versioned_s3: Bucket, tmp_path: Path) -> None:
    """A newer save that was deleted, and what each object was before, are not there."""
    for older in (True, False):
        for path in sorted(p for p in TREE.rglob("*") if p.is_file()):
            name = path.relative_to(TREE).as_posix()
            versioned_s3.put(f"run/{name}", b"31" if older else path.read_bytes())
            if older and "0000030" in name:
                versioned_s3.put(f"run/{name.replace('0000030', '0000040')}", path.read_bytes())
                versioned_s3.delete(f"run/{name.replace('0000030', '0000040')}")
    with as_user(tmp_path, versioned_s3):
        said = ask("plan", f"{versioned_s3.url}/run", "--order", "step", "--json")
        assert (said.code, said.json["resume_step"]) == (0, 30), said.text
        assert "0000040" not in said.text
        assert ask("verify", f"{versioned_s3.url}/run", "--json").json["verdict"] == "ok"


@pytest.mark.parametrize("bucket", ["s3", "rclone_s3", "gcs", "azurite"], indirect=True)
def test_a_directory_is_made_before_the_first_launch(bucket: Bucket, tmp_path: Path) -> None:
    """A prefix without objects may be misspelt: a job starts afresh there only where somebody has made it."""
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
