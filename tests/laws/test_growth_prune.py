"""What ``ckpt prune`` costs grows as the number of checkpoints does: calls are counted at two sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_files
import timed
from counted import calls
from mindspore_writer import record

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
        put(
            root / f"iter_{step:07d}/mp_rank_00/model_optim_rng.pt",
            small_files.megatron(step, 0, 1, 1, 1),
            step,
        )
    put(root / "latest_checkpointed_iteration.txt", str(n).encode(), n)


def mindspore(root: Path, n: int) -> None:
    for step in range(1, n + 1):
        weights = b"".join((1.0 + step + i).hex().encode()[:8] for i in range(4))
        records = [
            record("weight", [8], "Float32", weights),
            record("epoch_num", [0], "Int64", (step - 1).to_bytes(8, "little")),
            record("step_num", [0], "Int64", (10 * step).to_bytes(8, "little")),
        ]
        put(root / f"net-{step}_10.ckpt", b"".join(records), step)


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


def evaluations(n: int) -> int:
    """A counter of another unit grows at every second save."""
    rows = [counting("scheduler", 10 * k, last_epoch=k // 2) for k in range(1, n + 1)]
    return len(list(borrowed(rows, {"scheduler": ("last_epoch",)})))


@pytest.mark.parametrize("work", [evaluations])
def test_comparing_counters_costs_the_same_among_many(work: object) -> None:
    cost = {n: calls(lambda n=n: work(n)) / n for n in (FEW, MANY)}  # type: ignore[misc, operator]
    assert cost[MANY] < 1.5 * cost[FEW], cost


def test_schedules_beside_an_optimizer_that_took_no_step() -> None:
    """One save, before the first step: nothing to compare it to."""
    rows = [counting("optimizer", 0, optimizer_step=0), counting("scheduler", 0, last_epoch=1)]
    assert list(schedules(rows, ())) == []
