"""Megatron's formats torch_dcp, fsdp_dtensor and zarr, and torch_dist without its last file: the commit of a save is
what its own writer writes last.
"""

from __future__ import annotations

import os
import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import small_files
from fixture_trees import materialise
from places import LAYOUT_TREES

from ckpt_tools import NoneUsable, Selection, plan, verify
from ckpt_tools.errors import CkptError, UsageError
from ckpt_tools.model.report import Level

TRACKER = "latest_checkpointed_iteration.txt"


class Grid(NamedTuple):
    """A job's parallel sizes; ranks are numbered along tp first, then pp where ``stages_first``, then dp."""

    tp: int
    pp: int
    ep: int
    dp: int
    stages_first: bool = False

    @property
    def world(self) -> int:
        return self.tp * self.pp * self.dp

    def home(self, rank: int) -> str:
        """Where a rank saves: numbers of stages and of experts only where there are several."""
        stage = rank // self.tp % self.pp if self.stages_first else rank // (self.tp * self.dp)
        numbers = [*([stage] if self.pp > 1 else []), *([rank // self.tp % self.ep] if self.ep > 1 else [])]
        return "_".join((f"mp_rank_{rank % self.tp:02d}", *(f"{n:03d}" for n in numbers)))

    def save(self, root: Path, step: int, *, optimizers: bool = False, lost: str = "") -> None:
        for rank in reversed(range(self.world)):  # the first of those with a place writes
            home = root / f"iter_{step:07d}" / self.home(rank)
            if home.name == lost:
                continue
            args = Namespace(
                world_size=self.world,
                rank=rank,
                tensor_model_parallel_size=self.tp,
                pipeline_model_parallel_size=self.pp,
                expert_model_parallel_size=self.ep,
            )
            home.mkdir(parents=True, exist_ok=True)
            model = {"args": args, "iteration": step, "model": {"w": small_files.tensor(step, rank)}}
            (home / "model_optim_rng.pt").write_bytes(small_files.saved(model))
            if optimizers:
                (home / "distrib_optim.pt").write_bytes(small_files.megatron_optimizer(step, rank))
        for path in (root / f"iter_{step:07d}").rglob("*"):
            os.utime(path, (1_750_000_000 + 60 * step,) * 2)

    def loaded(self, root: Path) -> dict[int, set[str]]:
        """Where each rank is to load from."""
        made = plan(str(root), Selection(world_size=self.world))
        return {r.rank: {Path(f.path).parent.name for f in r.files} for r in made.by_rank}

    @property
    def right(self) -> dict[int, set[str]]:
        return {rank: {self.home(rank)} for rank in range(self.world)}


EXPERTS = Grid(2, 1, 2, 4)


@pytest.mark.parametrize("optimizers", [False, True])
@pytest.mark.parametrize("grid", [Grid(1, 1, 2, 4), Grid(2, 1, 2, 2), Grid(2, 1, 4, 4)])
def test_each_rank_loads_the_experts_of_its_place(tmp_path: Path, grid: Grid, optimizers: bool) -> None:
    """Whatever files lie beside those that tell the parallel sizes."""
    grid.save(tmp_path, 10, optimizers=optimizers)
    assert grid.loaded(tmp_path) == grid.right


@pytest.mark.slow
@pytest.mark.parametrize("after", [Grid(2, 2, 2, 4), Grid(2, 2, 1, 4)])
def test_each_save_says_itself_whether_its_names_count_experts(tmp_path: Path, after: Grid) -> None:
    for n, grid in enumerate((EXPERTS, after, EXPERTS, after), 1):
        grid.save(tmp_path, 10 * n)
        assert grid.loaded(tmp_path) == grid.right


@pytest.mark.slow
def test_a_save_that_lost_a_stage_does_not_hide_the_order_of_the_ranks(tmp_path: Path) -> None:
    """What is left of it stands where every order has it."""
    grid = Grid(1, 2, 1, 2, stages_first=True)
    grid.save(tmp_path, 10)
    grid.save(tmp_path, 20, lost="mp_rank_00_001")
    assert grid.loaded(tmp_path) == grid.right


@pytest.mark.parametrize("lost", [(), (1,)])
def test_a_dying_gasp_that_was_not_renamed_is_unfinished(tmp_path: Path, lost: tuple[int, ...]) -> None:
    """MindIO writes it into ``iter_N_tmp`` and renames that when all ranks have written."""
    root = materialise(LAYOUT_TREES / "megatron/tp/expected.json", tmp_path)
    begun = (root / "iter_0000030").rename(root / "iter_0000030_tmp")
    for tp in lost:
        shutil.rmtree(begun / f"mp_rank_{tp:02d}")
    (root / TRACKER).write_text("20")
    made = plan(str(root))
    assert made.checkpoint and made.checkpoint.step == 20
    assert [f.path for f in made.warnings if f.code == "unfinished-save"] == [str(begun)]
    assert [f.path for f in verify(str(root)).findings if f.code == "unfinished-save"] == [str(begun)]
    for selection in (Selection(), Selection(sizes={"tp": 2}), Selection(layout="files")):
        with pytest.raises(CkptError):
            plan(str(begun), selection)


def test_files_of_mindspore_in_the_tree_of_megatron_have_the_places_of_their_directories(
    tmp_path: Path,
) -> None:
    for tp in range(2):
        for pp in range(2):
            home = tmp_path / f"iter_0000005/mp_rank_{tp:02d}_{pp:03d}"
            home.mkdir(parents=True)
            for n, name in enumerate(("model_optim_rng.ckpt", "distrib_optim.ckpt")):
                (home / name).write_bytes(small_files.mindspore(False, 4 * n + 2 * tp + pp, step_num=5))
    (tmp_path / TRACKER).write_text("5")
    made = plan(str(tmp_path), Selection(world_size=8))
    assert made.checkpoint and (made.checkpoint.layout, made.checkpoint.step) == ("megatron", 5)
    for r in made.by_rank:
        place = f"mp_rank_{r.rank % 2:02d}_{r.rank // 4:03d}"
        assert [f.path.split("/")[-2] for f in r.files] == [place, place]
    shutil.rmtree(tmp_path / "iter_0000005/mp_rank_01_001")
    with pytest.raises(NoneUsable, match="missing-rank"):
        plan(str(tmp_path), Selection(world_size=8, replicas_all=True))


@pytest.mark.parametrize(("sizes", "refused"), [((2, 1), True), ((1, 2), True), ((1, 1), False)])
@pytest.mark.parametrize("flags", [{}, {"sizes": {"tp": 2}}, {"sizes": {"tp": 1}}, {"replicas_all": True}])
def test_a_file_that_is_told_to_be_of_one_place_is_given_to_none(
    tmp_path: Path, sizes: tuple[int, int], refused: bool, flags: dict[str, Any]
) -> None:
    args = Namespace(tensor_model_parallel_size=sizes[0], pipeline_model_parallel_size=sizes[1])
    state = {"model": {"w": small_files.tensor(1)}, "args": args, "iteration": 7}
    (tmp_path / "weights_7.pt").write_bytes(small_files.saved(state))
    selection = Selection(world_size=4, level=Level.STRUCTURE, **flags)
    if refused:
        with pytest.raises(
            UsageError, match=r"topology-mismatch: \S+weights_7.pt holds the state of one place"
        ):
            plan(str(tmp_path), selection)
    elif "tp" not in flags.get("sizes", {}):
        assert [f.path for f in plan(str(tmp_path), selection).shared] == [str(tmp_path / "weights_7.pt")]


@pytest.mark.parametrize("groups", [{"replicas_all": True}, {"replica_groups": {"": ((0, 1),)}}])
def test_no_flag_makes_a_file_stand_in_for_another_place(tmp_path: Path, groups: dict[str, Any]) -> None:
    for rank in range(2):
        args = Namespace(tensor_model_parallel_size=2, rank=rank, world_size=2)
        state = {"model": {"w": small_files.tensor(rank)}, "args": args, "step": 5}
        (tmp_path / "step_5").mkdir(exist_ok=True)
        (tmp_path / f"step_5/rank_{rank}.pt").write_bytes(small_files.saved(state))
    (tmp_path / "step_5/rank_1.pt").write_bytes(b"PK")
    with pytest.raises(NoneUsable) as raised:
        plan(str(tmp_path), Selection(world_size=2, **groups))
    codes = {f.code for r in raised.value.plan.rejected for f in r.findings}  # type: ignore[union-attr]
    assert {"missing-rank", "replica-mismatch"} <= codes
