"""Megatron-Bridge's latest_train_state.pt: a copy of the latest checkpoint's train_state.pt, which its loader asks
before the text that Megatron-LM writes, and which earlier versions wrote alone.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fixture_trees import materialise
from places import LAYOUT_TREES
from small_files import adam, saved, tensor

from ckpt_tools import NoneUsable, Selection, UsageError, plan, scan, verify

STATE, TEXT = "latest_train_state.pt", "latest_checkpointed_iteration.txt"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return materialise(LAYOUT_TREES / "megatron-core/bridge/expected.json", tmp_path)


@pytest.mark.slow
def test_a_tree_without_the_text_is_whole(run: Path) -> None:
    (run / TEXT).unlink()
    assert not [f for f in verify(str(run)).findings if f.severity != "note"]
    made = plan(str(run), Selection(resume_from="tracker"))
    assert made.checkpoint is not None and made.checkpoint.step == 20
    listed = scan(str(run), trackers=True)
    assert listed.bare == 0 and [(Path(t.path).name, t.says) for t in listed.trackers] == [(STATE, 20)]


@pytest.mark.slow
@pytest.mark.parametrize("kept", [STATE, TEXT])
def test_what_either_names_and_is_gone_is_said(run: Path, kept: str) -> None:
    (run / ({STATE, TEXT} - {kept}).pop()).unlink()
    shutil.rmtree(run / "iter_0000020")
    made = plan(str(run))
    assert made.checkpoint is not None and made.checkpoint.step == 10
    assert {(r.checkpoint.step, f.code) for r in made.rejected for f in r.findings} == {(20, "missing-part")}


@pytest.mark.slow
def test_both_are_asked(run: Path) -> None:
    """A job of Megatron-LM went on, and what it saved is gone: the text alone tells."""
    (run / TEXT).write_text("30")
    made = plan(str(run))
    assert made.checkpoint is not None and made.checkpoint.step == 20
    assert {r.checkpoint.step for r in made.rejected} == {30}


@pytest.mark.slow
def test_an_older_one_is_stale(run: Path) -> None:
    shutil.copy2(run / "iter_0000010/train_state.pt", run / STATE)
    assert {f.code for f in plan(str(run)).warnings} == {"stale-tracker"}


@pytest.mark.slow
def test_a_damaged_one_is_told(run: Path) -> None:
    (run / STATE).write_bytes((run / STATE).read_bytes()[:700])
    made = plan(str(run))
    assert made.checkpoint is not None and made.checkpoint.step == 20
    assert {f.code for f in made.warnings} == {"bad-tracker"}


def test_it_is_no_model_and_no_first_launch(run: Path) -> None:
    for home in run.glob("iter_*"):
        shutil.rmtree(home)
    (run / TEXT).unlink()
    with pytest.raises(NoneUsable):
        plan(str(run), Selection(allow_none=True))


@pytest.mark.slow
def test_a_state_of_a_loop_of_ones_own_is_no_tracker(run: Path) -> None:
    """It was saved last and is whole: nobody but the caller can say whether training went on there."""
    (run / STATE).write_bytes(saved({"model": {"w": tensor(30)}, "optimizer": adam(30), "step": 30}))
    with pytest.raises(UsageError, match=STATE):
        plan(str(run))


def test_a_train_state_of_another_step_is_seen(run: Path) -> None:
    shutil.copy2(run / "iter_0000010/train_state.pt", run / "iter_0000020/train_state.pt")
    (file,) = [f for f in verify(str(run)).files if f.report.path.endswith("20/train_state.pt")]
    assert "step-mismatch" in {f.code for f in file.report.findings}
