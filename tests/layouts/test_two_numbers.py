"""Names with two numbers that no word explains: files of the same two are one save (PhysicsNeMo's
``Sequential.0.10.pt`` beside ``checkpoint.0.10.pt``), and one file of a rank is never loaded by all ranks.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest
from small_files import adam, saved, tensor

from ckpt_tools.api import plan
from ckpt_tools.errors import UsageError
from ckpt_tools.model.plan import LoadPlan

START = 1_700_000_000
NAMES = ("{}.0.{}.pt", "{}_7_{}.pt")


@cache
def files(model: str, optimizer: str, save: int, part: int, tells: bool) -> dict[str, bytes]:
    told = {"epoch": save} if tells else {}
    weights = saved({"w": tensor(save + 100 * part)})
    return {model: weights, optimizer: saved({"optimizer_state_dict": adam(save), **told})}


def put(root: Path, save: int, written: dict[str, bytes]) -> None:
    for n, (name, data) in enumerate(written.items()):
        (root / name).write_bytes(data)
        os.utime(root / name, (START + 100 * save + n / 10,) * 2)


def pairs(root: Path, name: str, tells: bool) -> None:
    for save in (1, 5, 10):
        put(root, save, files(name.format("Net", save), name.format("checkpoint", save), save, 0, tells))


def loaded(answer: LoadPlan) -> set[str]:
    return {Path(f.path).name for f in (*answer.shared, *(f for r in answer.by_rank for f in r.files))}


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_files_of_the_same_numbers_are_one_save(tmp_path: Path, name: str, tells: bool) -> None:
    pairs(tmp_path, name, tells)
    assert loaded(plan(tmp_path)) == {name.format("Net", 10), name.format("checkpoint", 10)}


@pytest.mark.parametrize("damaged", ["Net", "checkpoint"])
@pytest.mark.parametrize("lost", [True, False])
def test_one_that_is_lost_or_cut_is_told(tmp_path: Path, damaged: str, lost: bool) -> None:
    pairs(tmp_path, NAMES[0], tells=True)
    path = tmp_path / NAMES[0].format(damaged, 10)
    path.unlink() if lost else os.truncate(path, path.stat().st_size // 2)
    answer = plan(tmp_path)
    told = {f.code for r in answer.rejected for f in r.findings} | {f.code for f in answer.warnings}
    assert loaded(answer) == {"Net.0.5.pt", "checkpoint.0.5.pt"}
    assert told & {"missing-part", "truncated"}


@pytest.mark.parametrize("lost", [None, "state_0_30.pt", "state_1_30.pt"])
@pytest.mark.parametrize("name", ["state_{part}_{save}.pt", "state_{save}_{part}.pt"])
@pytest.mark.parametrize("tells", [True, False])
def test_no_part_is_taken_for_the_whole(tmp_path: Path, name: str, lost: str | None, tells: bool) -> None:
    for save in (20, 30):
        told = {"epoch": save} if tells else {}
        state = {"optimizer": adam(save), **told}
        names = (name.format(part=part, save=save) for part in (0, 1))
        put(tmp_path, save, {n: saved({"model": tensor(save + p), **state}) for p, n in enumerate(names)})
    if lost is not None:
        (tmp_path / lost).unlink(missing_ok=True)
    with pytest.raises(UsageError, match="several runs"):
        plan(tmp_path)


def test_the_steps_of_each_epoch_are_saves_of_one_run(tmp_path: Path) -> None:
    for n, name in enumerate(("model_1_100.pt", "model_1_200.pt", "model_2_100.pt", "model_2_200.pt")):
        put(tmp_path, n, {name: saved({"model": {"w": tensor(n)}, "optimizer": adam(n + 1)})})
    assert loaded(plan(tmp_path)) == {"model_2_200.pt"}
