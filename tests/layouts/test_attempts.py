"""Files of one step that two attempts wrote are never planned together."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from described_layouts import HOUR, START
from small_files import mindspore, saved, tensor
from timed import put
from told_trees import Question, hold, table

from ckpt_tools.api import plan, verify
from ckpt_tools.model.selection import Selection


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


TREES = table(
    """
    planted
        # A job went back from a damaged save, and died as it saved that step again under the same names.
        checkpoint-10/:halves checkpoint-15/:halves -> checkpoint-15 => ok
        then at checkpoint-15/model.pt 1 -> checkpoint-15 => ok
        then at checkpoint-15/model.pt 140 -> checkpoint-15 +mixed-attempts => suspect mixed-attempts
        checkpoint-10/:trainer checkpoint-15/:trainer -> checkpoint-15 => ok
        then at checkpoint-15/model.safetensors 1 -> checkpoint-15 => ok
        then at checkpoint-15/model.safetensors 140 -> checkpoint-15 +mixed-attempts => suspect mixed-attempts
        checkpoint-10/:dcp checkpoint-15/:dcp -> checkpoint-15 => ok
        then at checkpoint-15/__0* 1 -> checkpoint-15 => ok
        then at checkpoint-15/__0* 140 -> checkpoint-15 +mixed-attempts => suspect mixed-attempts
        # MindSpore counts restarts in the names: a step of which one rank's file is of the next restart, hours later,
        # was not saved at once.
        rank_0/net-1_10.ckpt:mindspore rank_1/net-1_10.ckpt:mindspore= rank_0/net-1_20.ckpt:mindspore;
            rank_1/net-1_20.ckpt:mindspore= rank_0/net-1_30.ckpt:mindspore;
            rank_1/net_1-1_30.ckpt:mindspore@240 -> step 20 -missing-rank +world-size-inferred
    """
)


@pytest.mark.parametrize(("tree", "asked"), TREES)
def test_what_two_attempts_left(tree: str, asked: list[Question], tmp_path: Path) -> None:
    hold(tree, asked, tmp_path)
