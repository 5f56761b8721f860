"""BasicSR: a state and its networks, and what is saved once more at the end of a run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fixture_trees import materialise
from places import LAYOUT_TREES

from ckpt_tools import NoneUsable, Selection, plan
from ckpt_tools.model.part import Kind

AT = "experiments/small"


def saved(case: str, tmp_path: Path) -> Path:
    return materialise(LAYOUT_TREES / "basicsr" / case / "expected.json", tmp_path)


def test_a_state_of_another_step_is_not_resumed_from(tmp_path: Path) -> None:
    run = saved("gan", tmp_path)
    shutil.copy2(run / AT / "training_states/10.state", run / AT / "training_states/30.state")
    made = plan(str(run))
    assert made.checkpoint is not None and made.checkpoint.step == 20
    assert "step-mismatch" in {f.code for r in made.rejected for f in r.findings}


def test_the_networks_of_the_end_never_stand_in_for_a_state(tmp_path: Path) -> None:
    run = saved("finished", tmp_path)
    for state in (run / AT / "training_states").iterdir():
        state.write_bytes(b"")
    with pytest.raises(NoneUsable):
        plan(str(run))
    made = plan(str(run), Selection(kind=Kind.RELEASE))
    assert [Path(f.path).name for f in made.shared] == ["net_g_latest.pth"]
