"""Links whose names are those of later saves than what they lead to, or that lead nowhere: never older without a
word.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import timed
from small_files import adam, saved, tensor

from ckpt_tools import errors
from ckpt_tools.api import plan
from ckpt_tools.model.selection import Selection


def write(path: Path, data: bytes, step: int) -> None:
    timed.put(path, data, 1_735_700_000 + 10 * step)


def put(root: Path, name: str, step: int) -> None:
    """A file in which nothing tells the step."""
    state = adam(step) if "optim" in name else {"w": tensor(step), "b": tensor(step, 1)}
    write(root / name, saved(state), step)


def kohya(root: Path, name: str, step: int) -> None:
    for file in ("model.bin", "optimizer.bin", "scheduler.bin", "random_states_0.pkl"):
        put(root, f"{name}/{file}", step)
    said = {"current_epoch": step // 10, "current_step": step}
    write(root / name / "train_state.json", json.dumps(said).encode(), step)


def told(root: Path) -> list[tuple[str, str]]:
    return [(f.code, os.path.relpath(str(f.path), root)) for f in plan(str(root)).warnings]


def test_a_link_called_as_the_choice_is_but_for_its_number_that_leads_nowhere_is_told(tmp_path: Path) -> None:
    name = "cat-000003-state"
    for step in (10, 20):
        kohya(tmp_path, f"cat-{step // 10:06d}-state", step)
    (tmp_path / name).symlink_to(tmp_path.parent / "unmounted" / name)
    assert told(tmp_path) == [("dangling-link", name)]
    with pytest.raises(errors.NotNewest):
        plan(str(tmp_path), Selection(no_fallback=True))


@pytest.mark.parametrize("called", ["step_30.tmp", "tmp-step_30"])
def test_a_later_directory_that_is_not_done_is_told_whatever_lies_in_it(called: str, tmp_path: Path) -> None:
    for step in (10, 20):
        for file in ("model.bin", "optimizer.bin", "random_states_0.pkl"):
            put(tmp_path, f"step_{step}/{file}", step)
    put(tmp_path, f"{called}/model.bin", 30)
    assert ("unfinished-save", called) in told(tmp_path)
