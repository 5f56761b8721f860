"""LeRobot: files of another step, and the step of the directory."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from fixture_trees import materialise
from places import LAYOUT_TREES

from ckpt_tools import plan

CASE = LAYOUT_TREES / "lerobot/steps/expected.json"
SAVES = "outputs/checkpoints"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return materialise(CASE, tmp_path)


def borrow(run: Path, name: str, frm: str, to: str) -> None:
    """The file of one save over that of another, at the time of the latter."""
    there = run / SAVES / to / "training_state" / name
    at = there.stat().st_mtime_ns
    shutil.copy(run / SAVES / frm / "training_state" / name, there)
    os.utime(there, ns=(at, at))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["training_step.json", "scheduler_state.json"])
def test_a_file_of_another_step_is_not_resumed_from(run: Path, name: str) -> None:
    borrow(run, name, "000100", "000300")
    made = plan(str(run))
    assert made.checkpoint is not None and made.checkpoint.step == 200
    assert "step-mismatch" in {f.code for r in made.rejected for f in r.findings}


@pytest.mark.slow
def test_the_link_to_the_last_is_no_checkpoint_of_its_own(run: Path) -> None:
    assert os.readlink(run / SAVES / "last") == "000300"
    made = plan(str(run))
    assert made.checkpoint is not None and made.checkpoint.path == str(run / SAVES / "000300")
    assert len(made.candidates) == 3 and not made.warnings


@pytest.mark.slow
def test_the_directory_alone_is_enough(run: Path) -> None:
    made = plan(str(run / SAVES / "000200"))
    assert made.checkpoint is not None and (made.checkpoint.layout, made.resume_step) == ("lerobot", 200)
