"""What ``ckpt prune`` costs grows as the number of checkpoints does: calls are counted at two sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_files
import timed
from counted import calls

from ckpt_tools.guard.prune import Policy, prune
from ckpt_tools.layouts.common.counters import borrowed, schedules
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Level, Report, Verdict
from ckpt_tools.model.selection import Selection

FEW, MANY = 15, 60
MOST = 1.25
"""Calls for each checkpoint of many, as a multiple of those for each of few. Work for each pair would make it 4."""


def megatron(root: Path, n: int) -> None:
    for step in range(1, n + 1):
        data = small_files.megatron(step, 0, 1, 1, 1)
        put(root / f"iter_{step:07d}/mp_rank_00/model_optim_rng.pt", data, step)
    put(root / "latest_checkpointed_iteration.txt", str(n).encode(), n)


def mindspore(root: Path, n: int) -> None:
    for step in range(1, n + 1):
        data = small_files.mindspore(False, 0, epoch_num=step - 1, step_num=10 * step)
        put(root / f"net-{step}_10.ckpt", data, step)


def put(path: Path, data: bytes, minute: int) -> None:
    timed.put(path, data, 60 * minute)


@pytest.mark.parametrize("make", [megatron, mindspore])
def test_each_checkpoint_costs_the_same_among_many(make: object, tmp_path: Path) -> None:
    cost = {}
    for n in (FEW, MANY):
        root = tmp_path / str(n)
        make(root, n)  # type: ignore[operator]

        def work(root: Path = root, n: int = n) -> None:
            made = prune(str(root), Policy(keep_last=3), selection=Selection(settle=0.0))
            assert sum(row.state == "would-remove" for row in made.changes) == n - 3, made

        if n == FEW:
            work()  # what is imported once
        cost[n] = calls(work) / n
    assert cost[MANY] < MOST * cost[FEW], cost


def counting(piece: str, step: int, **counted: int) -> tuple[Part, Report]:
    home = f"/run/checkpoint-{step}"
    part = Part(f"{home}/{piece}", "hf-trainer", piece, piece, ".", "/run", home=home, step=step)
    return part, Report(part.path, "torch", 1, Verdict.OK, Level.CONTENT, metadata=counted)


def test_comparing_counters_costs_the_same_among_many() -> None:
    """A counter of another unit grows at every second save."""

    def evaluations(n: int) -> int:
        rows = [counting("scheduler", 10 * k, last_epoch=k // 2) for k in range(1, n + 1)]
        return calls(lambda: list(borrowed(rows, {"scheduler": ("last_epoch",)})))

    assert evaluations(MANY) / MANY < 1.5 * evaluations(FEW) / FEW


def test_schedules_beside_an_optimizer_that_took_no_step() -> None:
    """One save, before the first step: nothing to compare it to."""
    rows = [counting("optimizer", 0, optimizer_step=0), counting("scheduler", 0, last_epoch=1)]
    assert list(schedules(rows, ())) == []
