"""What only several files together show: MindFormers' records, replicas that stand out, attempts that were
mixed, files pruned rank by rank.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from described_layouts import HOUR, START
from msgspec.structs import replace
from small_files import adam, mindspore, saved, tensor
from timed import put

from ckpt_tools.api import plan, verify
from ckpt_tools.errors import NoneUsable, UsageError
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning import equal_files


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lacking", "what", "told"),
    [(1, "optimizer", False), (3, "optimizer", True), (5, "optimizer", True), (1, "model", True)],
)
def test_before_its_first_step_an_optimizer_has_no_state(
    lacking: int, what: str, told: bool, tmp_path: Path
) -> None:
    for step in range(1, 6):
        state = {"step": step, "model": {"w": tensor(step), "b": tensor(-step)}, "optimizer": adam(step)}
        if step == lacking:
            state[what] = {"state": {}, "param_groups": []} if what == "optimizer" else {"w": tensor(step)}
        for rank in range(2):
            put(tmp_path / f"step_{step}/rank_{rank}.pt", saved({**state, "rank": rank}), 100 * step)
    odd = {f.path for f in found(tmp_path) if f.code == "signature-changed"}
    assert odd == ({str(tmp_path / f"step_{lacking}/rank_{rank}.pt") for rank in range(2)} if told else set())


def found(root: Path) -> list[Finding]:
    """Those of files, with the paths of these."""
    return [replace(f, path=r.report.path) for r in verify([str(root)]).files for f in r.report.findings]


def test_replicas_are_not_read_to_compare_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand data parallel ranks hold the same bytes: a few pages of each tell that, and that it is so at
    other steps.
    """
    for i, step in enumerate((10, 20, 30)):
        for rank in range(4):
            put(tmp_path / f"rank_{rank}/net-1_{step}.ckpt", mindspore(True, 0, step_num=step), 100 * i)
    monkeypatch.setattr(equal_files, "are_equal", lambda a, b: pytest.fail(f"{a} and {b} were compared"))
    assert "same-content" not in {f.code for f in found(tmp_path)}
    assert plan(str(tmp_path)).resume_step == 30


@pytest.mark.slow
def test_a_number_that_no_rank_has_costs_no_memory(tmp_path: Path) -> None:
    put(tmp_path / "rank_99999999999/net-1_10.ckpt", mindspore(True, 0, step_num=10))
    assert verify([str(tmp_path)]).summary.broken == 0
    assert plan(str(tmp_path)).world_size in (None, 1)
    put(tmp_path / "many/rank_99999/net-1_10.ckpt", mindspore(True, 0, step_num=10))
    with pytest.raises(NoneUsable) as refused:
        plan(str(tmp_path / "many"))
    assert refused.value.plan is not None and len(refused.value.plan.rejected[0].findings) < 200


# --- Files of one step that two attempts wrote are never planned together.


def saves(root: Path, world: int, told: Callable[[int, int], tuple[int, int]]) -> None:
    """Two saves of Megatron's tensor parallel ranks, and the iteration and the samples that each file tells."""
    for step in (10, 20):
        for rank in range(world):
            iteration, samples = told(step, rank)
            sizes = {"world_size": world, "tensor_model_parallel_size": world}
            args = Namespace(rank=rank, iteration=iteration, consumed_train_samples=samples, **sizes)
            state = {"args": args, "checkpoint_version": 3.0, "iteration": iteration}
            data = saved({**state, "model": {"w": tensor(step, rank)}})
            put(root / f"iter_{step:07d}/mp_rank_{rank:02d}/model_optim_rng.pt", data, START + step)


@pytest.mark.slow
def test_counters_that_disagree_reject_the_checkpoint(tmp_path: Path) -> None:
    """Whatever the times say."""
    saves(tmp_path, 3, lambda step, rank: (step, 80 * step + 8 * ((step, rank) == (20, 2))))
    made = plan(str(tmp_path))
    (rejected,) = made.rejected
    found = {(f.code, os.path.relpath(f.path, tmp_path)) for f in rejected.findings}
    assert made.resume_step == 10
    assert ("mixed-attempts", "iter_0000020/mp_rank_02/model_optim_rng.pt") in found


def test_a_file_of_another_step_accuses_no_good_one(tmp_path: Path) -> None:
    """verify: of two files that disagree on the samples the one is wrong whose step is, too."""
    saves(tmp_path, 2, lambda step, rank: (10, 800) if (step, rank) == (20, 1) else (step, 80 * step))
    rows = [
        (r.report.path, f) for r in verify([str(tmp_path)]).files for f in r.report.findings if f.severity
    ]
    wrong = [(os.path.relpath(path, tmp_path), f.code) for path, f in rows]
    assert wrong == [("iter_0000020/mp_rank_01/model_optim_rng.pt", "step-mismatch")]


def test_one_number_of_ranks_that_count_restarts_differently_is_of_two_attempts(tmp_path: Path) -> None:
    """Rank 1 died before its first save: what it calls 2 since then are the saves that others call 3. Files of one
    number were loaded together, of which one was of the attempt after that of the others.
    """
    for attempt, steps in enumerate(((1, 6), (10, 20, 30), (10, 20, 30))):
        for rank, step in product((0, 1, 2), steps):
            count = attempt if rank == 1 else attempt + (attempt > 0)
            path = tmp_path / f"rank_{rank}/net{f'_{count}' if count else ''}-1_{step}.ckpt"
            at = START + attempt * HOUR + 60 * step + rank
            put(path, mindspore(True, rank, epoch_num=1, step_num=step), at)
    made = plan(str(tmp_path), Selection(world_size=3))
    assert len({int(os.stat(path).st_mtime - START) // HOUR for path in made.files()}) == 1
    assert "generation-mismatch" in {f.code for r in made.rejected for f in r.findings}


# --- A directory of DeepSpeed's that a smaller job has saved into again, and a tracker that was written
# last.


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
