"""Saves of one step in two places: copies of each other, or of two attempts, between which no name chooses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from small_files import adam, dcp, deepspeed_model, deepspeed_zero, mindspore, saved, tensor
from told_trees import KINDS, SETS, Question, hold, table


def zero(step: int, seed: int) -> Mapping[str, bytes]:
    files = {f"zero_pp_rank_{r}_mp_rank_00_optim_states.pt": deepspeed_zero(step, 2, r) for r in (0, 1)}
    return {"mp_rank_00_model_states.pt": deepspeed_model(step, 2, 1, seed), **files}


def crashed(seed: int) -> bytes:
    state = {"epoch": 0, "global_step": 7, "pytorch-lightning_version": "2.6.6", "loops": {}, "callbacks": {}}
    rest = {"optimizer_states": [adam(7)], "lr_schedulers": []}
    return saved({**state, "state_dict": {"w": tensor(seed)}, **rest})


SETS |= {
    "zero": lambda n: zero(n, 0),
    "zeroagain": lambda n: zero(n, 7),
    "dcpagain": lambda n: dcp(n, seed=7),
}
KINDS |= {
    "crashed": crashed,
    "gasp": lambda n: mindspore(False, n, epoch_num=2, step_num=7),
    "told": lambda n: mindspore(False, 0, epoch_num=1, step_num=n),
}
TREES = table(
    """
    # Of two attempts the later is loaded; a copy is no question, and neither is a damaged one.
    planted
        global_step5/:zero global_step10/:zero step_10/:zeroagain -> step_10 +missing-tracker
        global_step5/:zero global_step10/:zero step_10/:zero= -> global_step10 +missing-tracker
        global_step5/:zero global_step10/:zero step_10/:zeroagain!= -> global_step10 +missing-tracker
        step-10/:dcp step-20/:dcp step_20/:dcpagain -> step_20
        step-10/:dcp step-20/:dcp step_20/:dcp= -> step-20
        step-10/:dcp step-20/:dcp step_20/:dcpagain!= -> step-20
        checkpoints/epoch=0-step=4.ckpt:lightning checkpoints/on_exception.ckpt:crashed7 crash/on_exception.ckpt:crashed9
            -> crash/on_exception.ckpt
        checkpoints/epoch=0-step=4.ckpt:lightning checkpoints/on_exception.ckpt:crashed7 crash/on_exception.ckpt:crashed7=
            -> checkpoints/on_exception.ckpt
        checkpoints/epoch=0-step=4.ckpt:lightning checkpoints/on_exception.ckpt:crashed7 crash/on_exception.ckpt:crashed9!=
            -> checkpoints/on_exception.ckpt -truncated
        net-1_2.ckpt:told net-1_4.ckpt:told net-2_3_breakpoint.ckpt:gasp0 b/net-2_3_breakpoint.ckpt:gasp5
            -> b/net-2_3_breakpoint.ckpt
        net-1_2.ckpt:told net-1_4.ckpt:told net-2_3_breakpoint.ckpt:gasp0 b/net-2_3_breakpoint.ckpt:gasp0{,=}
            -> b/net-2_3_breakpoint.ckpt
        net-1_2.ckpt:told net-1_4.ckpt:told net-2_3_breakpoint.ckpt:gasp0 b/net-2_3_breakpoint.ckpt:gasp5!=
            -> net-2_3_breakpoint.ckpt -missing-rank -truncated
    """
)


@pytest.mark.parametrize(("tree", "asked"), TREES)
def test_of_two_saves_of_one_step_one_is_loaded(tree: str, asked: list[Question], tmp_path: Path) -> None:
    hold(tree, asked, tmp_path)
