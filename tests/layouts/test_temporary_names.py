"""Files of one's own loop with a word in their names that says that they are being written, before an ending
that says what they are (``model.tmp.pt``): of the run that they would be of, and never loaded without a word.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from small_files import adam, saved, tensor

from ckpt_tools.api import plan
from ckpt_tools.model.plan import LoadPlan

START = 1_735_700_000


def planned(root: Path, names: Sequence[str]) -> LoadPlan:
    for n, name in enumerate(names, start=1):
        path = root / name
        path.write_bytes(saved({"model": {"w": tensor(n)}, "optimizer": adam(n)}))
        os.utime(path, (START + 600 * n,) * 2)
    return plan(str(root))


@pytest.mark.parametrize(
    "names",
    [
        ("model.pt", "model.tmp.pt"),
        ("model_10.pt", "model_20.pt", "model_30.tmp.pt"),
        ("step_10.pt", "tmp_step_20.pt"),
        ("checkpoint.pth", "temp_checkpoint.pth"),
        ("last.pt", "last-incomplete.pt"),
        ("model.tmp.pt",),
    ],
)
def test_the_newest_is_loaded_with_a_warning(names: Sequence[str], tmp_path: Path) -> None:
    made = planned(tmp_path, names)
    assert made.checkpoint and made.checkpoint.path == str(tmp_path / names[-1])
    assert [(f.code, f.path) for f in made.warnings] == [("unfinished-save", str(tmp_path / names[-1]))]


def test_one_that_was_cut_loses_to_the_save_before(tmp_path: Path) -> None:
    planned(tmp_path, ("model.pt", "model.tmp.pt"))
    os.truncate(tmp_path / "model.tmp.pt", 700)
    made = plan(str(tmp_path))
    assert made.checkpoint and made.checkpoint.path == str(tmp_path / "model.pt")
    assert [r.checkpoint.path for r in made.rejected] == [str(tmp_path / "model.tmp.pt")]


@pytest.mark.parametrize(
    "names", [("tmp.pt",), ("model_temp_2.pt", "model_temp_4.pt"), ("template_1.pt", "template_2.pt")]
)
def test_other_words_are_no_such(names: Sequence[str], tmp_path: Path) -> None:
    assert not planned(tmp_path, names).warnings
