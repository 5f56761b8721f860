"""DeepSpeed's universal checkpoints of ZeRO 3, whose model is in files of ranks as in what they are made from."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fixture_trees import materialise
from places import LAYOUT_TREES

from ckpt_tools.api import plan, scan
from ckpt_tools.model.selection import Selection

NAMED = "zero_pp_rank_{}_mp_rank_00_model_states.pt"
UNIVERSAL = Selection(layout="deepspeed-universal")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = materialise(LAYOUT_TREES / "deepspeed-universal" / "converted" / "expected.json", tmp_path)
    for home in root.glob("global_step*"):
        first = (home / "mp_rank_00_model_states.pt").rename(home / NAMED.format(0))
        shutil.copy2(first, home / NAMED.format(1))
    return root


def test_it_is_no_checkpoint_of_ranks(root: Path) -> None:
    assert {c.layout for c in scan(str(root)).checkpoints} == {"deepspeed-universal"}
    made = plan(str(root))
    assert made.checkpoint is not None
    assert made.checkpoint.step == 8
    assert [Path(f.path).name for f in made.shared if f.role == "model"] == [NAMED.format(0)]


@pytest.mark.parametrize(("rank", "step"), [(0, 4), (1, 8)])
def test_every_rank_loads_the_files_of_the_first(rank: int, step: int, root: Path) -> None:
    (root / "global_step8_universal" / NAMED.format(rank)).unlink()
    made = plan(str(root), UNIVERSAL)
    assert made.checkpoint is not None
    assert made.checkpoint.step == step
