"""Megatron-Bridge's latest_train_state.pt: a copy of the latest checkpoint's train_state.pt, which its loader asks
before the text that Megatron-LM writes, and which earlier versions wrote alone.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from fixture_trees import materialise
from places import LAYOUT_TREES

from ckpt_tools import Selection, plan, scan, verify

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
