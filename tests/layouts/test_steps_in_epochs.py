"""Names that count steps from the start of each epoch: the later epoch is the later save."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from places import FIXTURES

from ckpt_tools.api import plan
from ckpt_tools.layouts.common.bare_names import may_be_later


@pytest.mark.parametrize("how", ["empty", "dangling"])
def test_the_last_save_of_an_epoch_is_missed_beside_one_of_its_number(how: str, tmp_path: Path) -> None:
    root = shutil.copytree(FIXTURES / "layouts/colossalai/booster/tree", tmp_path / "run")
    shutil.rmtree(last := root / "epoch-1_step-4")
    if how == "empty":
        last.mkdir()
    else:
        last.symlink_to(tmp_path / "lost")
    made = plan(str(root))
    assert made.resume.path == str(root / "epoch-1_step-2")
    told = {f.code for f in made.warnings if f.path == str(last)}
    assert told == {"unfinished-save" if how == "empty" else "dangling-link"}


@pytest.mark.parametrize(
    ("name", "later"),
    [
        ("epoch-1_step-4", True),
        ("epoch-1_step-2", False),
        ("epoch-0_step-4", False),
        ("epoch-2_step-1", True),
        ("epoch_1", False),
        ("step_2", False),
        ("latest", True),
    ],
)
def test_what_may_be_later_than_epoch_1_step_2(name: str, later: bool) -> None:
    assert may_be_later(name, 2, 1) is later
