"""Names that count from 1 where the contents count from 0, and states that are called the last or final: what
was trained longest is chosen, also where the job died between two files of one save.
"""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path

import pytest
from fixture_trees import materialise
from places import LAYOUT_TREES
from small_files import adam, saved, tensor

from ckpt_tools.api import plan

START = 1_700_000_000


@cache
def state(done: int, unit: str | None, told: int) -> bytes:
    counted = {unit: told} if unit else {}
    return saved({"model": {"w": tensor(done)}, "optimizer": adam(10 * done), **counted})


def put(path: Path, data: bytes, n: float) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (START + 100 * n,) * 2)


@pytest.mark.parametrize(("named", "told"), [(1, 0), (0, 1)])
@pytest.mark.parametrize("last_first", [True, False])
@pytest.mark.parametrize(
    ("unit", "numbered", "last"),
    [
        ("epoch", "epoch_{}.pth", "last.pth"),
        ("epoch", "checkpoint_{}.pth", "checkpoint.pth"),
        ("epoch", "epoch_{}/state.pt", "last/state.pt"),
        ("step", "step_{}.pt", "last.pt"),
    ],
)
def test_the_last_is_as_late_as_names_count(
    tmp_path: Path, unit: str, numbered: str, last: str, named: int, told: int, last_first: bool
) -> None:
    """The job dies when it has written one of the two files of its third save."""
    for n in range(3):
        names = [last, numbered.format(n + named)][:: 1 if last_first else -1]
        for late, name in enumerate(names[:1] if n == 2 else names):
            put(tmp_path / name, state(n + 1, unit, n + told), n + late / 100)
    assert plan(tmp_path).shared[0].path == str(
        tmp_path / (last if last_first else numbered.format(2 + named))
    )


@pytest.mark.parametrize("final", ["final.pth", "final_train_model.pth", "model_final.pth"])
def test_a_final_state_that_was_trained_longer_is_no_export(tmp_path: Path, final: str) -> None:
    for n, name in enumerate(("train_model_10.pth", "train_model_20.pth", final), 1):
        put(tmp_path / name, state(n, None, 0), n)
    assert plan(tmp_path).shared[0].path == str(tmp_path / final)


def test_a_final_state_that_was_saved_once_more_is_one(tmp_path: Path) -> None:
    for n, name in enumerate(("model_epoch_1.pth", "model_epoch_2.pth", "final.pth"), 1):
        put(tmp_path / name, state(min(n, 2), None, 0), n)
    assert plan(tmp_path).shared[0].path == str(tmp_path / "model_epoch_2.pth")


@pytest.mark.parametrize("kept", [(10, 20), (20,)])
def test_directories_may_count_from_0_where_their_files_count_from_1(
    kept: tuple[int, ...], tmp_path: Path
) -> None:
    """DINOv3 calls the directory after the iteration that is done, from 0 on."""
    root = materialise(LAYOUT_TREES / "dcp/two/expected.json", tmp_path)
    for step in (10, 20):
        home = root / f"step-{step}"
        home.rename(root / f"step-{step - 1}") if step in kept else shutil.rmtree(home)
    answer = plan(root)
    assert answer.checkpoint is not None and answer.checkpoint.step == 19
    assert not answer.rejected


def test_a_directory_of_another_save_is_none_that_counts_otherwise(tmp_path: Path) -> None:
    root = materialise(LAYOUT_TREES / "dcp/two/expected.json", tmp_path)
    (root / "step-20").rename(root / "step-30")
    answer = plan(root)
    assert answer.checkpoint is not None and answer.checkpoint.step == 10
    assert {f.code for f in answer.rejected[0].findings} == {"step-mismatch"}
