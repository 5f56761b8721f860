"""Saves of one step in two places: copies of each other, or of two attempts, between which no name chooses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from small_files import adam, dcp, deepspeed_model, deepspeed_zero, lightning, mindspore, saved, tensor
from timed import lay

from ckpt_tools.api import plan

FIRST = 1_790_000_000
Files = Mapping[str, bytes]


class Twice(NamedTuple):
    """Where a step was saved, what one attempt and another one have written, and what was saved before."""

    one: str
    two: str
    first: Files
    other: Files
    before: Files


def of_deepspeed() -> Twice:
    def files(step: int, seed: int) -> Files:
        zero = {f"zero_pp_rank_{r}_mp_rank_00_optim_states.pt": deepspeed_zero(step, 2, r) for r in (0, 1)}
        return {"mp_rank_00_model_states.pt": deepspeed_model(step, 2, 1, seed), **zero}

    before = {f"global_step5/{name}": data for name, data in files(5, 0).items()}
    return Twice("global_step10", "step_10", files(10, 0), files(10, 7), before)


def of_dcp() -> Twice:
    before = {f"step-10/{name}": data for name, data in dcp(10).items()}
    return Twice("step-20", "step_20", dcp(20), dcp(20, seed=7), before)


def of_lightning() -> Twice:
    state = {"epoch": 0, "global_step": 7, "pytorch-lightning_version": "2.6.6", "loops": {}, "callbacks": {}}
    again = saved(
        {**state, "state_dict": {"w": tensor(9)}, "optimizer_states": [adam(7)], "lr_schedulers": []}
    )
    one, two = "checkpoints/on_exception.ckpt", "crash/on_exception.ckpt"
    before = {"checkpoints/epoch=0-step=4.ckpt": lightning(0, 4)}
    return Twice(one, two, {"": lightning(0, 7)}, {"": again}, before)


def of_mindspore() -> Twice:
    one, two = (mindspore(False, seed, epoch_num=2, step_num=7) for seed in (0, 5))
    before = {f"net-1_{s}.ckpt": mindspore(False, 0, epoch_num=1, step_num=s) for s in (2, 4)}
    name = "net-2_3_breakpoint.ckpt"
    return Twice(name, f"b/{name}", {"": one}, {"": two}, before)


MAKERS = [of_deepspeed, of_dcp, of_lightning, of_mindspore]


@pytest.fixture(params=MAKERS, ids=[made.__name__.removeprefix("of_") for made in MAKERS])
def twice(request: pytest.FixtureRequest) -> Twice:
    made = request.param()
    assert isinstance(made, Twice)
    return made


def tree(root: Path, twice: Twice, files: Files, *, later: int) -> Path:
    lay(root, twice.before, FIRST - 900)
    lay(root / twice.one, twice.first, FIRST)
    lay(root / twice.two, files, FIRST + later)
    return root


def test_of_two_the_later_is_loaded(twice: Twice, tmp_path: Path) -> None:
    made = plan(tree(tmp_path / "run", twice, twice.other, later=600))
    assert made.checkpoint is not None
    assert made.checkpoint.path == str(tmp_path / "run" / twice.two)


@pytest.mark.parametrize("later", [0, 600])
def test_a_copy_is_no_question(later: int, twice: Twice, tmp_path: Path) -> None:
    made = plan(tree(tmp_path / "run", twice, twice.first, later=later))
    assert made.checkpoint is not None
    assert made.checkpoint.path in [str(tmp_path / "run" / name) for name in (twice.one, twice.two)]
    assert "passed-over" not in {f.code for f in made.warnings}


def test_a_damaged_one_is_no_question(twice: Twice, tmp_path: Path) -> None:
    cut = {name: data[: len(data) // 2] for name, data in twice.other.items()}
    made = plan(tree(tmp_path / "run", twice, cut, later=0))
    assert made.checkpoint is not None
    assert made.checkpoint.path == str(tmp_path / "run" / twice.one)
