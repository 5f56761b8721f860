"""ms-swift's saves with Megatron, each of which lies in a directory that counts the step as well."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fixture_trees import materialise
from places import LAYOUT_TREES

from ckpt_tools.api import plan
from ckpt_tools.model.selection import ReadOptions
from ckpt_tools.planning.equal_files import place
from ckpt_tools.reading.session import Session

NEWEST = "checkpoint-20/iter_0000020"


def tree(tmp_path: Path) -> Path:
    return materialise(LAYOUT_TREES / "ms-swift/exported/expected.json", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["checkpoint-20/latest_checkpointed_iteration.txt", f"{NEWEST}/.metadata", f"{NEWEST}/metadata.json"],
)
def test_a_save_that_cannot_be_loaded_loses_with_a_reason(name: str, tmp_path: Path) -> None:
    root = tree(tmp_path)
    (root / name).unlink()
    chosen = plan(str(root))
    assert chosen.checkpoint is not None
    assert chosen.checkpoint.step == 10
    assert chosen.rejected or {f.code for f in chosen.warnings} == {"unfinished-save"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "code"),
    [("10", "step-mismatch"), ("", "empty-file"), ("2o", "bad-tracker"), ("done 20", "bad-tracker")],
)
def test_a_save_whose_tracker_names_no_directory_beside_it_cannot_be_loaded(
    said: str, code: str, tmp_path: Path
) -> None:
    root = tree(tmp_path)
    (root / "checkpoint-20/latest_checkpointed_iteration.txt").write_text(said)
    chosen = plan(str(root))
    assert chosen.checkpoint is not None
    assert chosen.checkpoint.step == 10
    assert [f.code for r in chosen.rejected for f in r.findings] == [code]


@pytest.mark.slow
def test_a_tracker_may_name_a_release(tmp_path: Path) -> None:
    root = tree(tmp_path)
    (root / "checkpoint-20/latest_checkpointed_iteration.txt").write_text("release")
    chosen = plan(str(root))
    assert chosen.checkpoint is not None and chosen.checkpoint.step == 20


def test_files_are_compared_with_those_of_the_save_before(tmp_path: Path) -> None:
    """Although the directory that they lie in is called after the step, too."""
    session = Session(str(tree(tmp_path)), ReadOptions())
    assert len(session.parts) == 12
    assert len({place(p) for p in session.parts}) == 6


@pytest.mark.slow
def test_what_is_merged_is_an_export(tmp_path: Path) -> None:
    root = tree(tmp_path)
    home, merged = root / "checkpoint-20", root / "checkpoint-20-merged"
    merged.mkdir()
    for name in ("args.json", "latest_checkpointed_iteration.txt", "model.safetensors"):
        shutil.copyfile(home / name, merged / name)
    chosen = plan(str(root))
    assert chosen.checkpoint is not None
    assert chosen.checkpoint.path == str(home)


@pytest.mark.slow
def test_the_iterations_of_a_run_that_is_called_as_a_save_are_its_own(tmp_path: Path) -> None:
    iterations = materialise(LAYOUT_TREES / "megatron-core/common_state/expected.json", tmp_path)
    run = iterations.rename(tmp_path / "checkpoint-5")
    chosen = plan(str(tmp_path))
    assert chosen.checkpoint is not None
    assert (chosen.checkpoint.layout, chosen.checkpoint.path) == ("megatron-core", f"{run}/iter_0000020")
