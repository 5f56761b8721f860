"""Files of one step under several names, of which a framework loads one: copies of each other, or other models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_files import adam, lightning, saved, tensor
from told_trees import KINDS, Question, hold, plant, table

from ckpt_tools.api import plan
from ckpt_tools.errors import UsageError

WEIGHTS = {
    "values": {"w": tensor(7)},
    "shapes": {"w": tensor(7, shape=(4, 3))},
    "keys": {"decoder.w": tensor(20)},
    "copy": {"w": tensor(20)},
}
"""Those of a whole state of the same step: others, of other tensors, or the same with more beside."""


def other(which: str) -> bytes:
    told = {
        "epoch": 1,
        "global_step": 20,
        "pytorch-lightning_version": "2.6.6",
        "loops": {},
        "lr_schedulers": [],
    }
    rest = {"callbacks": {"score": torch.tensor(0.25)}, "optimizer_states": [adam(20)]}
    return saved({**told, "state_dict": WEIGHTS[which], **rest})


KINDS |= {which: (lambda n, which=which: other(which)) for which in WEIGHTS}
KINDS["one"] = lambda n: lightning(1, 20)
TREES = table(
    """
    planted
        # Of other weights none is chosen in silence, whatever the order.
        encoder.ckpt:one decoder.ckpt:{values,shapes,keys}= -> exit 2 save/mixed-counters
        then as it is | order=step -> exit 2 save/mixed-counters
        then as it is | order=mtime -> exit 2 save/mixed-counters
        then as it is | exclude=decoder.ckpt -> encoder.ckpt
        epoch=1-step=20.ckpt:one epoch=1-step=20_b.ckpt:{values,shapes,keys} -> exit 2 save/mixed-counters
        then as it is | exclude=epoch=1-step=20_b.ckpt -> epoch=1-step=20.ckpt
        model-val_loss=0.42.ckpt:{values,shapes,keys} model-val_loss=0.31.ckpt:one -> exit 2 save/mixed-counters
        epoch=1-step=20.ckpt:one last.ckpt:{values,shapes,keys}= -> exit 2 save/mixed-counters
        then as it is | order=mtime -> exit 2 save/mixed-counters
        # Copies and a damaged one are no question.
        encoder.ckpt:one decoder.ckpt:{copy,one}= -> decoder.ckpt
        epoch=1-step=20.ckpt:one epoch=1-step=20_b.ckpt:{copy,one}= -> epoch=1-step=20.ckpt
        model-val_loss=0.31.ckpt:one model-val_loss=0.42.ckpt:{copy,one}= -> model-val_loss=0.31.ckpt
        epoch=1-step=20.ckpt:one last.ckpt:{copy,one}= -> epoch=1-step=20.ckpt
        epoch=1-step=20.ckpt:one last.ckpt:values!= -> epoch=1-step=20.ckpt -truncated +mtime-not-kept
    """
)


@pytest.mark.parametrize(("tree", "asked"), TREES)
def test_which_of_the_files_of_one_step_is_loaded(tree: str, asked: list[Question], tmp_path: Path) -> None:
    hold(tree, asked, tmp_path)


def test_the_hint_says_which_to_leave_out(tmp_path: Path) -> None:
    plant(tmp_path, "encoder.ckpt:one decoder.ckpt:values=")
    with pytest.raises(UsageError, match="hold other weights") as raised:
        plan(tmp_path)
    assert "--exclude decoder.ckpt to resume from encoder.ckpt" in raised.value.hint
