"""MindFormers from 1.7 on: no file of a save is lost in silence, whatever order a dying job wrote them in."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fixture_trees import materialise
from places import LAYOUT_TREES

from ckpt_tools import plan
from ckpt_tools.errors import CkptError

CASE = LAYOUT_TREES / "mindformers/ranks"
NEWEST = "iteration_00000030"
FILES = sorted(p.name for p in (CASE / "tree" / NEWEST).iterdir())
WRITTEN = ["model-0000000-0000002.safetensors", "model-0000001-0000002.safetensors",
           "opt-0000000-0000002.safetensors", "opt-0000001-0000002.safetensors", "common.json", "metadata.json"]  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return materialise(CASE / "expected.json", tmp_path)


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_the_newest_that_is_gone_is_missed(run: Path, name: str) -> None:
    (run / NEWEST / name).unlink()
    made = plan(str(run))
    assert made.checkpoint is not None and made.checkpoint.step == 20
    assert [(r.checkpoint.step, r.findings[0].code) for r in made.rejected] == [(30, "missing-part")]


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_a_lone_save_that_is_gone_is_no_whole_one(run: Path, name: str) -> None:
    for older in ("iteration_00000010", "iteration_00000020"):
        shutil.rmtree(run / older)
    (run / NEWEST / name).unlink()
    with pytest.raises(CkptError) as e:
        plan(str(run))
    assert e.value.exit_code in {3, 4}


@pytest.mark.parametrize("written", range(1, len(WRITTEN)))
def test_a_save_that_was_killed_is_unfinished(run: Path, written: int) -> None:
    for name in WRITTEN[written:]:
        (run / NEWEST / name).unlink()
    (run / "latest_checkpointed_iteration.txt").write_text("20")
    made = plan(str(run))
    assert made.checkpoint is not None and made.checkpoint.step == 20
    assert "unfinished-save" in {w.code for w in made.warnings}
