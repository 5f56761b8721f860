"""nanochat: files of another step, and ranks that another world cannot load."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fixture_trees import materialise
from places import LAYOUT_TREES

from ckpt_tools import NoneUsable, Selection, UsageError, plan

AT = "base_checkpoints/d1"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return materialise(LAYOUT_TREES / "nanochat/base/expected.json", tmp_path)


@pytest.mark.parametrize("name", ["meta_0000{}.json", "optim_0000{}_rank1.pt"])
def test_a_file_of_another_step_is_not_resumed_from(run: Path, name: str) -> None:
    shutil.copy2(run / AT / name.format(10), run / AT / name.format(30))
    made = plan(str(run), Selection(world_size=2))
    assert made.checkpoint is not None and made.checkpoint.step == 20
    assert {f.code for r in made.rejected for f in r.findings} <= {
        "step-mismatch",
        "same-content",
        "missing-rank",
    }


def test_another_number_of_ranks_is_asked_about(run: Path) -> None:
    with pytest.raises((UsageError, NoneUsable)):
        plan(str(run), Selection(world_size=4))


def test_a_model_of_fine_tuning_is_found_beside_none(run: Path) -> None:
    for path in (run / AT).glob("optim_*"):
        path.unlink()
    made = plan(str(run))
    assert [Path(f.path).name for f in made.shared] == ["model_000030.pt"]
