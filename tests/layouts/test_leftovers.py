"""A directory of DeepSpeed's that a smaller job has saved into again, and a tracker that was written last."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from small_files import adam, saved, tensor
from timed import put
from told_trees import KINDS, Question, hold, table

from ckpt_tools import Selection, plan, verify
from ckpt_tools.errors import UsageError

START, HOUR = 1_760_000_000, 3600
OPTIMIZER = "bf16_zero_pp_rank_{}_mp_rank_00_optim_states.pt"


def save(root: Path, step: int, world: int, at: float) -> None:
    home = root / f"global_step{step}"
    told = {"global_steps": step, "dp_world_size": world, "mp_world_size": 1, "optimizer": None}
    put(home / "mp_rank_00_model_states.pt", saved({"module": {"w": tensor(step, world)}, **told}), at)
    for rank in range(world):
        put(home / OPTIMIZER.format(rank), saved({"optimizer_state_dict": adam(step + rank)}), at + rank)
    put(root / "latest", f"global_step{step}", at + 10)


@pytest.mark.parametrize("world", [1, 2])
def test_what_a_larger_job_left_makes_no_save_old(world: int, tmp_path: Path) -> None:
    for step, ranks, hours in ((10, 4, 0), (20, 4, 1), (10, world, 24)):
        save(tmp_path, step, ranks, START + hours * HOUR)
    with pytest.raises(UsageError, match="no lower step was saved before it"):
        plan(str(tmp_path))
    made = plan(str(tmp_path), Selection(order="mtime"))
    assert (made.resume_step, made.world_size) == (10, world)
    loads = {f.path.rpartition("/")[2] for r in made.by_rank for f in r.files if f.role == "optimizer"}
    assert loads == {OPTIMIZER.format(rank) for rank in range(world)}
    codes = {f.code for f in made.warnings}
    assert "mixed-attempts" in codes and "stale-tracker" not in codes
    found = [f.path for f in verify(str(tmp_path)).findings if "left over" in f.message]
    assert found == [str(tmp_path / "global_step10")]


@pytest.mark.parametrize("kept", [True, False])
def test_leftovers_of_the_only_save_are_told(kept: bool, tmp_path: Path) -> None:
    save(tmp_path, 10, 4, START)
    assert not plan(str(tmp_path)).warnings  # of all its ranks
    save(tmp_path, 10, 1, START + HOUR if kept else START)
    for path in tmp_path.rglob("*.pt") if not kept else ():
        os.utime(path, (START, START))
    home = str(tmp_path / "global_step10")
    for root in (str(tmp_path), home):
        made = plan(root)
        assert (made.resume_step, made.world_size) == (10, 1)
        assert [f.path for f in made.warnings if "ranks 1–3 are left over" in f.message] == [home]
        assert any("left over" in f.message for f in verify(root).findings)


KINDS["named"] = lambda n: saved(
    {
        "global_step": n,
        "epoch": 1,
        "pytorch-lightning_version": "2.6",
        "model": {"w": tensor(n)},
        "optimizer": adam(n),
    }
)
TREES = table(
    """
    planted
        # One bit in one of two files of a step is no question.
        step_10.pt step_20.pt step_30.pt last.pt:whole30=; flip last.pt 1030 -> step_30.pt +crc-mismatch
        step_10.pt step_20.pt step_30.pt last.pt:whole30=; flip step_30.pt 1030 -> last.pt
        epoch=1-step=20.ckpt:named epoch=1-step=30.ckpt:named last.ckpt:named30=; flip last.ckpt 1030
            -> epoch=1-step=30.ckpt +crc-mismatch
        epoch=1-step=20.ckpt:named epoch=1-step=30.ckpt:named last.ckpt:named30=; flip epoch=1-step=30.ckpt 1030
            -> last.ckpt
    """
)


@pytest.mark.parametrize(("tree", "asked"), TREES)
def test_one_bit_in_one_of_two_files_of_a_step(tree: str, asked: list[Question], tmp_path: Path) -> None:
    hold(tree, asked, tmp_path)
