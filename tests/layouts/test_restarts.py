"""A MindSpore job that started again: its names count from 1 again, ``step_num`` goes on."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import timed
from small_files import mindspore

from ckpt_tools import Selection, plan
from ckpt_tools.errors import UsageError

START = 1_760_000_000
RESUMED = {"net-1_3": 3, "net-2_3": 6, "net-3_3": 9, "net_1-1_3": 12, "net_1-2_3": 15}
"""Names in the order in which they were saved, and the steps of these saves."""
Times = Callable[[int], int]
KEPT: Times = lambda n: START + 600 * n  # noqa: E731
EQUAL: Times = lambda _: START  # noqa: E731


def put(root: Path, saves: Mapping[str, int | None], at: Times, ranks: int = 2) -> Path:
    for n, (name, step) in enumerate(saves.items()):
        for rank in range(ranks):
            path = root / (f"rank_{rank}" if ranks > 1 else "") / f"{name}.ckpt"
            path.parent.mkdir(exist_ok=True)
            data = mindspore(False, rank + 10 * n, step_num=step or n)
            path.write_bytes(data if step else data.replace(b"step_num", b"some_num"))
            os.utime(path, (at(n),) * 2)
    return root


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("order", [None, "step"])
@pytest.mark.parametrize("at", [KEPT, EQUAL])
def test_the_last_restart_goes_on(
    at: Times, order: str | None, ranks: int, told: bool, tmp_path: Path
) -> None:
    saves = {name: step if told else None for name, step in RESUMED.items()}
    made = plan(str(put(tmp_path, saves, at, ranks)), Selection(order=order))
    assert made.checkpoint and made.checkpoint.parts[0].name == "net_1-2_3.ckpt"
    assert made.resume_step == (15 if told else None)
    codes = {f.code for f in made.warnings}
    assert "mtime-disagrees-with-step" not in codes
    assert made.ahead == ()
    assert ("mtime-not-kept" in codes) is (at is EQUAL and order is None)


def test_a_damaged_save_of_the_last_restart_is_followed_by_the_one_before(tmp_path: Path) -> None:
    put(tmp_path, RESUMED, EQUAL, 1)
    (tmp_path / "net_1-2_3.ckpt").write_bytes((tmp_path / "net_1-2_3.ckpt").read_bytes()[:-9])
    assert plan(str(tmp_path)).resume_step == 12


ANEW = {"net-1_3": 3, "net-2_3": 6, "net-3_3": 9, "net_1-1_3": 3, "net_1-2_3": 6}
PRUNED = {"net-3_3": 9, "net-4_3": 12, "net_1-1_3": 3, "net_1-2_3": 6}
BACK = {"net-1_3": 3, "net-2_3": 6, "net-3_3": 9, "net-4_3": 12, "net_1-1_3": 9}


@pytest.mark.parametrize("saves", [ANEW, PRUNED, BACK])
def test_a_restart_that_has_not_come_so_far_is_a_question_where_times_are_lost(
    saves: dict[str, int], tmp_path: Path
) -> None:
    put(tmp_path, saves, EQUAL)
    with pytest.raises(UsageError, match="which checkpoint is the newest") as asked:
        plan(str(tmp_path))
    assert "--order step to resume from" in asked.value.hint
    assert plan(str(tmp_path), Selection(order="step")).resume_step == max(saves.values())


@pytest.mark.parametrize("saves", [ANEW, BACK])
def test_a_rollback_that_the_times_show_is_told(saves: dict[str, int], tmp_path: Path) -> None:
    made = plan(str(put(tmp_path, saves, KEPT)))
    assert made.checkpoint and made.checkpoint.parts[0].name == list(saves)[-1] + ".ckpt"
    assert "mtime-disagrees-with-step" in {f.code for f in made.warnings}


def test_a_restart_that_has_passed_the_one_before_is_no_question(tmp_path: Path) -> None:
    made = plan(str(put(tmp_path, ANEW | {"net_1-3_3": 9, "net_1-4_3": 12}, KEPT)))
    assert made.resume_step == 12


def test_a_dying_gasp_counts_on_from_the_saves_since_its_restart(tmp_path: Path) -> None:
    put(tmp_path, RESUMED, KEPT, 1)
    timed.put(tmp_path / "net_1-3_2_breakpoint.ckpt", mindspore(True, 0, step_num=2), KEPT(6))
    assert plan(str(tmp_path)).resume_step == 17
