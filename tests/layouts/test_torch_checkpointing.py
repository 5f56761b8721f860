"""Directories of PyTorch's torch_checkpointing: a file for each item and rank."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fixture_trees import materialise
from places import LAYOUT_TREES

from ckpt_tools import NoneUsable, UsageError, plan

CASE = LAYOUT_TREES / "torch-checkpointing/ranks/expected.json"
NEWEST = "global_step_30"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return materialise(CASE, tmp_path)


def step(root: Path) -> int | None:
    chosen = plan(root).checkpoint
    return chosen.step if chosen else None


@pytest.mark.slow
@pytest.mark.parametrize(
    "lost",
    ["model_0.pt", "model_1.pt", "optimizer_1.pt", "step_*.pt", "dataloader_0.pt", "*_1.pt"],
)
def test_a_save_that_has_lost_files_is_not_resumed_from(lost: str, root: Path) -> None:
    for path in (root / NEWEST).glob(lost):
        path.unlink()
    made = plan(root)
    assert made.checkpoint and made.checkpoint.step == 20
    assert [r.checkpoint.step for r in made.rejected] == [30]


@pytest.mark.slow
def test_a_model_without_its_optimizer_is_passed_over_and_named(root: Path) -> None:
    for path in (root / NEWEST).glob("optimizer_*"):
        path.unlink()
    made = plan(root)
    assert made.checkpoint and made.checkpoint.step == 20
    assert "unfinished-save" in {f.code for f in made.warnings}


def test_the_metadata_of_a_lone_save_tell_how_many_ranks_it_has(root: Path) -> None:
    for name in (NEWEST, "global_step_20"):
        shutil.rmtree(root / name)
    first = root / "global_step_10"
    assert plan(root).topology["world_size"].value == 2
    for path in first.glob("*_1.pt"):
        path.unlink()
    with pytest.raises(NoneUsable, match="missing-rank"):
        plan(root)


def test_a_save_that_was_not_renamed_is_under_way(root: Path) -> None:
    (root / NEWEST).rename(root / f"tmp_{NEWEST}")
    made = plan(root)
    assert made.checkpoint and made.checkpoint.step == 20
    assert any(f.code == "unfinished-save" for f in made.warnings)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["step-{}", "iter{:07d}", "{}", "epoch_{}", "checkpoint_{}"])
def test_a_directory_may_be_called_otherwise(name: str, root: Path) -> None:
    for at in (10, 20, 30):
        (root / f"global_step_{at}").rename(root / name.format(at))
    chosen = plan(root).checkpoint
    assert chosen and chosen.layout == "torch-checkpointing" and 30 in (chosen.step, chosen.epoch)


def test_models_that_are_counted_are_no_ranks(root: Path) -> None:
    """Without an optimizer beside each nothing tells what the number counts."""
    for path in root.glob("*/*"):
        if not path.name.startswith("model"):
            path.unlink()
    with pytest.raises(UsageError, match="which is meant"):
        plan(root)
