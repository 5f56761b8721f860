"""Megatron's formats torch_dcp, fsdp_dtensor and zarr, and torch_dist without its last file: the commit of a save is
what its own writer writes last.
"""

from __future__ import annotations

import shutil
from argparse import Namespace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import small_files
from timed import lay, put

from ckpt_tools import NoneUsable, Selection, plan
from ckpt_tools.errors import UsageError
from ckpt_tools.model.report import Level


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
        sizes = {"tensor": self.tp, "pipeline": self.pp, "expert": self.ep}
        told = {f"{name}_model_parallel_size": size for name, size in sizes.items()}
        for rank in reversed(range(self.world)):  # the first of those with a place writes
            args = Namespace(world_size=self.world, rank=rank, **told)
            model = {"args": args, "iteration": step, "model": {"w": small_files.tensor(step, rank)}}
            files = {"model_optim_rng.pt": small_files.saved(model)}
            files |= {"distrib_optim.pt": small_files.megatron_optimizer(step, rank)} if optimizers else {}
            if self.home(rank) != lost:
                lay(root / f"iter_{step:07d}" / self.home(rank), files, 60 * step)

    def loads_its_own(self, root: Path) -> bool:
        """Whether each rank is to load what it has saved."""
        made = plan(str(root), Selection(world_size=self.world))
        loads = {r.rank: {Path(f.path).parent.name for f in r.files} for r in made.by_rank}
        return loads == {rank: {self.home(rank)} for rank in range(self.world)}


@pytest.mark.parametrize("optimizers", [False, True])
@pytest.mark.parametrize("grid", [Grid(1, 1, 2, 4), Grid(2, 1, 2, 2), Grid(2, 1, 4, 4)])
def test_each_rank_loads_the_experts_of_its_place(tmp_path: Path, grid: Grid, optimizers: bool) -> None:
    """Whatever files lie beside those that tell the parallel sizes."""
    grid.save(tmp_path, 10, optimizers=optimizers)
    assert grid.loads_its_own(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("after", [Grid(2, 2, 2, 4), Grid(2, 2, 1, 4)])
def test_each_save_says_itself_whether_its_names_count_experts(tmp_path: Path, after: Grid) -> None:
    for n, grid in enumerate((Grid(2, 1, 2, 4), after) * 2, 1):
        grid.save(tmp_path, 10 * n)
        assert grid.loads_its_own(tmp_path)


@pytest.mark.slow
def test_a_save_that_lost_a_stage_does_not_hide_the_order_of_the_ranks(tmp_path: Path) -> None:
    """What is left of it stands where every order has it."""
    grid = Grid(1, 2, 1, 2, stages_first=True)
    grid.save(tmp_path, 10)
    grid.save(tmp_path, 20, lost="mp_rank_00_001")
    assert grid.loads_its_own(tmp_path)


def test_files_of_mindspore_in_the_tree_of_megatron_have_the_places_of_their_directories(
    tmp_path: Path,
) -> None:
    for i, (tp, pp) in enumerate(product(range(2), repeat=2)):
        one, two = (small_files.mindspore(False, 2 * i + n, step_num=5) for n in (0, 1))
        files = {"model_optim_rng.ckpt": one, "distrib_optim.ckpt": two}
        lay(tmp_path / f"iter_0000005/mp_rank_{tp:02d}_{pp:03d}", files)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("5")
    made = plan(str(tmp_path), Selection(world_size=8))
    assert made.checkpoint and (made.checkpoint.layout, made.checkpoint.step) == ("megatron", 5)
    for r in made.by_rank:
        assert [f.path.split("/")[-2] for f in r.files] == [f"mp_rank_{r.rank % 2:02d}_{r.rank // 4:03d}"] * 2
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
    path = put(tmp_path / "weights_7.pt", small_files.saved(state))
    selection = Selection(world_size=4, level=Level.STRUCTURE, **flags)
    if refused:
        why = r"topology-mismatch: \S+weights_7.pt holds the state of one place"
        with pytest.raises(UsageError, match=why):
            plan(str(tmp_path), selection)
    elif "tp" not in flags.get("sizes", {}):
        assert plan(str(tmp_path), selection).files() == [str(path)]


@pytest.mark.parametrize("groups", [{"replicas_all": True}, {"replica_groups": {"": ((0, 1),)}}])
def test_no_flag_makes_a_file_stand_in_for_another_place(tmp_path: Path, groups: dict[str, Any]) -> None:
    args = Namespace(tensor_model_parallel_size=2, rank=0, world_size=2)
    state = {"model": {"w": small_files.tensor(0)}, "args": args, "step": 5}
    lay(tmp_path / "step_5", {"rank_0.pt": small_files.saved(state), "rank_1.pt": b"PK"})
    with pytest.raises(NoneUsable) as raised:
        plan(str(tmp_path), Selection(world_size=2, **groups))
    codes = {f.code for r in raised.value.plan.rejected for f in r.findings}  # type: ignore[union-attr]
    assert {"missing-rank", "replica-mismatch"} <= codes
