"""What the Trainer and Lightning leave behind when the job is told to end, or an exception ends it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from fixture_trees import materialise
from places import LAYOUT_TREES

from ckpt_tools import errors
from ckpt_tools.api import plan
from ckpt_tools.model.part import Kind
from ckpt_tools.model.plan import LoadPlan

GASPS = pytest.mark.parametrize(
    ("case", "gasp"), [("slurm", "hpc_ckpt_1.ckpt"), ("exception", "checkpoints/on_exception.ckpt")]
)


def chosen(made: LoadPlan) -> tuple[Kind, int | None]:
    assert made.checkpoint is not None
    return made.checkpoint.kind, made.checkpoint.step


def lightning(case: str, tmp_path: Path) -> Path:
    return materialise(LAYOUT_TREES / f"lightning/{case}/expected.json", tmp_path)


def trainer(tmp_path: Path) -> Path:
    return materialise(LAYOUT_TREES / "hf-trainer/epochs/expected.json", tmp_path)


# The Trainer marks a directory while it saves on SIGTERM (enable_jit_checkpoint), and resumes from it


@pytest.mark.slow
@pytest.mark.parametrize(("torn", "step"), [(False, 8), (True, 6)], ids=["whole", "torn"])
def test_what_was_saved_over_is_taken_where_it_is_whole(torn: bool, step: int, tmp_path: Path) -> None:
    root = trainer(tmp_path)
    mark = root / "checkpoint-8/checkpoint-is-incomplete.txt"
    mark.write_text("Checkpoint started at step 8 and in progress...")
    if torn:
        os.truncate(root / "checkpoint-8/model.safetensors", 3000)
    assert chosen(plan(str(root))) == (Kind.PERIODIC, step)


# Lightning's saves of a dying job


@GASPS
def test_a_damaged_gasp_falls_back_to_the_save_before_it(case: str, gasp: str, tmp_path: Path) -> None:
    root = lightning(case, tmp_path)
    whole = (root / gasp).stat()
    os.truncate(root / gasp, whole.st_size // 2)
    os.utime(root / gasp, ns=(whole.st_atime_ns, whole.st_mtime_ns))
    made = plan(str(root))
    assert chosen(made) == (Kind.PERIODIC, 4)
    assert [os.path.basename(r.checkpoint.path) for r in made.rejected] == [os.path.basename(gasp)]


@GASPS
def test_a_regular_save_of_the_same_step_goes_before_it(case: str, gasp: str, tmp_path: Path) -> None:
    root = lightning(case, tmp_path)
    shutil.copy2(root / gasp, root / "checkpoints/epoch=0-step=5.ckpt")
    assert chosen(plan(str(root))) == (Kind.PERIODIC, 5)


def test_the_gasp_of_several_runs_is_asked_about(tmp_path: Path) -> None:
    root = lightning("slurm", tmp_path)
    shutil.copytree(root / "checkpoints", root / "lightning_logs/version_3/checkpoints")
    with pytest.raises(errors.UsageError):
        plan(str(root))


def test_of_two_requeued_at_one_step_either_will_do(tmp_path: Path) -> None:
    root = lightning("slurm", tmp_path)
    shutil.copy2(root / "hpc_ckpt_1.ckpt", root / "hpc_ckpt_2.ckpt")
    made = plan(str(root))
    assert chosen(made) == (Kind.DYING_GASP, 5)
    (file,) = made.shared
    os.truncate(file.path, 100)
    assert chosen(plan(str(root))) == (Kind.DYING_GASP, 5)
