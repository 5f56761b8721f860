"""Saves that are on their way into a store, where nothing is renamed: in the order in which frameworks write
them, an upload that has ended early is never chosen, and never damage while it may go on.

Orbax commits by ``commit_success.txt``, of each item and then of all (orbax-checkpoint,
_src/path/atomicity.py: CommitFileTemporaryPath writes where the checkpoint will be), torch's DCP by
``.metadata`` (filesystem.py: FileSystemWriter.finish, after all ranks have written), DeepSpeed by ``latest``
(runtime/engine.py: save_checkpoint writes it behind a barrier).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from fixture_trees import materialise
from places import LAYOUT_TREES
from stores.asking import as_user, ask
from stores.bucket import Bucket

from ckpt_tools import scan

_LAST = ("commit_success.txt", ".metadata", "latest")
DAMAGE = {"truncated", "bad-header", "crc-mismatch", "missing-storage"}


def written(root: Path, home: str) -> Sequence[str]:
    """The files of a save in the order of its framework: what commits an item comes last, and what commits
    all of them after that.
    """
    names = [str(p.relative_to(root)) for p in (root / home).rglob("*") if p.is_file()]
    return sorted(names, key=lambda n: (os.path.basename(n) in _LAST, -n.count("/"), n))


def saves(root: Path) -> tuple[str, str]:
    """The directories of the two saves of a tree, the older first."""
    found = sorted(scan(str(root)).checkpoints, key=lambda c: c.order)
    older, newer = (os.path.relpath(c.path, root) for c in (found[0], found[-1]))
    return older, newer


@pytest.mark.share(4)
@pytest.mark.parametrize("case", ["orbax/ocdbt", "orbax/zarr", "dcp/two", "deepspeed/zero2"])
def test_an_upload_that_has_not_ended_is_never_chosen(case: str, s3: Bucket, tmp_path: Path) -> None:
    root = materialise(LAYOUT_TREES / case / "expected.json", tmp_path)
    older, newer = saves(root)
    trackers = [p for p in root.iterdir() if p.is_file()]
    names, words = written(root, newer), ("--json", "--order", "step")
    stops = sorted({0, 1, len(names) // 2, len(names) - 1, len(names)} & set(range(len(names) + 1)))
    before = None
    for n in stops:  # each at a prefix of its own: a save that pauses for long looks like two attempts
        run = f"run{n}"
        s3.upload(root / older, f"{run}/{older}")
        for name in names[:n]:
            s3.put(f"{run}/{name}", (root / name).read_bytes())
        for tracker in trackers:
            data = tracker.read_bytes()
            whole = n == len(names)
            s3.put(f"{run}/{tracker.name}", data if whole else data.replace(newer.encode(), older.encode()))
        with as_user(tmp_path, s3):
            said = ask("plan", f"{s3.url}/{run}", *words)
        assert said.code == 0, (n, said.text)
        before = said.json["resume_step"] if before is None else before
        assert (said.json["resume_step"] > before) is (n == len(names)), names[:n]
        assert not said.codes & DAMAGE, said.codes


def test_the_first_save_of_orbax_on_google_needs_its_commit_file(gcs: Bucket, tmp_path: Path) -> None:
    """No other save tells that there should be one; on a disk of an old version there is none."""
    root = materialise(LAYOUT_TREES / "orbax/ocdbt/expected.json", tmp_path)
    home = saves(root)[1]
    names = [name for name in written(root, home) if name != f"{home}/commit_success.txt"]
    for name in names:
        gcs.put(f"run/{name}", (root / name).read_bytes())
    with as_user(tmp_path, gcs):
        said = ask("plan", f"{gcs.url}/run", "--json", "--settle", "0s")
        assert said.code == 4 and "missing-part" in said.codes, said.text
        gcs.put(f"run/{home}/commit_success.txt", b"")
        assert ask("plan", f"{gcs.url}/run", "--json", "--settle", "0s").code == 0
