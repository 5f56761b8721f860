"""What frameworks note beside saves of several directories of DCP: that one is under way, and which is the
latest.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from fixture_trees import materialise
from places import LAYOUT_TREES

from ckpt_tools.api import plan

TRACKER = "latest_checkpointed_iteration.json"


def tree(name: str, tmp_path: Path) -> Path:
    return materialise(LAYOUT_TREES / "dcp-set" / name / "expected.json", tmp_path)


def test_a_save_that_is_marked_is_under_way_whatever_is_there_of_it(tmp_path: Path) -> None:
    root = tree("automodel", tmp_path)
    (root / "epoch_1_step_20" / ".incomplete").touch()
    made = plan(str(root))
    assert made.checkpoint is not None
    assert made.checkpoint.step == 10
    assert "unfinished-save" in {f.code for f in made.warnings}


@pytest.mark.parametrize(
    ("said", "code"),
    [('{"latest_checkpointed_iteration": 30}', "dangling-tracker"), ('{"lat', "bad-tracker")],
)
def test_a_tracker_in_json_is_read(said: str, code: str, tmp_path: Path) -> None:
    root = tree("lm-engine", tmp_path)
    assert code not in {f.code for f in plan(str(root)).warnings}
    (root / TRACKER).write_text(said)
    made = plan(str(root))
    assert made.checkpoint is not None
    assert made.checkpoint.step == 20
    assert code in {f.code for f in made.warnings}
