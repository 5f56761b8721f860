"""Directories of versions, as Weights & Biases' clients download them (``model:v0/``): one run of saves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import timed
from small_files import adam, lightning, saved, tensor

from ckpt_tools.api import plan
from ckpt_tools.errors import UsageError


def put(root: Path, name: str, version: int, data: bytes) -> None:
    timed.put(root / name.format(version), data, 600 * version)


def content(kind: str, version: int) -> bytes:
    if kind == "lightning":
        return lightning(version, 10 * version)
    state = {"model": {"w": tensor(version)}, "optimizer": adam(10 * version)}
    return saved(state if kind == "state" else {"w": tensor(version)})


@pytest.mark.parametrize("kind", ["lightning", "state", "weights"])
@pytest.mark.parametrize("name", ["model:v{}", "artifacts/model-x1y2:v{}"])
def test_versions_are_saves_of_one_run(name: str, kind: str, tmp_path: Path) -> None:
    versions = (2, 9, 10)
    for version in versions:
        put(tmp_path, f"{name}/model.ckpt", version, content(kind, version))
    made = plan(str(tmp_path))
    assert made.checkpoint and made.checkpoint.path == str(tmp_path / name.format(10))
    assert not made.warnings
    os.truncate(tmp_path / name.format(10) / "model.ckpt", 700)
    made = plan(str(tmp_path))
    assert made.checkpoint and made.checkpoint.path == str(tmp_path / name.format(9))


@pytest.mark.parametrize("kind", ["lightning", "state"])
def test_versions_of_two_artifacts_are_two_runs(kind: str, tmp_path: Path) -> None:
    for artifact in "ab":
        for version in (0, 1):
            put(tmp_path, f"model-{artifact}:v{{}}/model.ckpt", version, content(kind, version))
    with pytest.raises(UsageError, match="several runs"):
        plan(str(tmp_path))


@pytest.mark.parametrize("kind", ["lightning", "state"])
def test_a_newest_version_that_was_emptied_is_told(kind: str, tmp_path: Path) -> None:
    for version in (0, 1, 2):
        put(tmp_path, "model:v{}/model.ckpt", version, content(kind, version))
    (tmp_path / "model:v2/model.ckpt").unlink()
    assert [f.path for f in plan(str(tmp_path)).warnings] == [str(tmp_path / "model:v2")]
