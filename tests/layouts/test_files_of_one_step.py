"""Files of one step under several names, of which a framework loads one: copies of each other, or other models."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from small_files import adam, lightning, saved, tensor
from timed import put

from ckpt_tools.api import latest, plan
from ckpt_tools.errors import UsageError
from ckpt_tools.model.selection import Selection

STEP, FIRST = 20, 1_790_000_000


@cache
def other(which: str) -> bytes:
    """A whole state of the same step: of other weights, of other tensors, or of the same with more beside."""
    weights = {
        "values": {"w": tensor(7)},
        "shapes": {"w": tensor(7, shape=(4, 3))},
        "keys": {"decoder.w": tensor(STEP)},
        "copy": {"w": tensor(STEP)},
    }[which]
    return saved(
        {
            "epoch": 1,
            "global_step": STEP,
            "pytorch-lightning_version": "2.6.6",
            "state_dict": weights,
            "loops": {},
            "callbacks": {"score": torch.tensor(0.25)},
            "optimizer_states": [adam(STEP)],
            "lr_schedulers": [],
        }
    )


NAMES = [
    ("encoder.ckpt", "decoder.ckpt"),
    ("epoch=1-step=20.ckpt", "epoch=1-step=20_b.ckpt"),
    ("model-val_loss=0.31.ckpt", "model-val_loss=0.42.ckpt"),
    ("epoch=1-step=20.ckpt", "last.ckpt"),
]
ASKED = [Selection(rank=0), Selection(rank=0, order="step"), Selection(rank=0, order="mtime")]


def tree(root: Path, names: tuple[str, str], which: str, later: int) -> list[Path]:
    made = [root / name for name in names]
    for i, (path, data) in enumerate(zip(made, (lightning(1, STEP), other(which)), strict=True)):
        put(path, data, FIRST + i * later)
    return made


@pytest.mark.parametrize("names", NAMES, ids=["/".join(names) for names in NAMES])
@pytest.mark.parametrize(("which", "later"), [("values", 0), ("shapes", 30), ("keys", -30)])
def test_of_other_weights_none_is_chosen_in_silence(
    which: str, names: tuple[str, str], later: int, tmp_path: Path
) -> None:
    one, two = tree(tmp_path, names, which, later)
    for asked in ASKED:
        with pytest.raises(UsageError, match="hold other weights") as raised:
            latest(tmp_path, asked)
        assert f"--exclude {two.name} to resume from {one.name}" in raised.value.hint
    left = plan(tmp_path, Selection(exclude=(two.name,)))
    assert left.resume.path == str(one)


@pytest.mark.parametrize("names", NAMES, ids=["/".join(names) for names in NAMES])
def test_a_copy_is_no_question(names: tuple[str, str], tmp_path: Path) -> None:
    made = tree(tmp_path, names, "copy", 0)
    assert plan(tmp_path).resume.path in map(str, made)
    made[1].write_bytes(made[0].read_bytes())
    assert plan(tmp_path).resume.path in map(str, made)


def test_a_damaged_one_is_no_question(tmp_path: Path) -> None:
    one, two = tree(tmp_path, NAMES[3], "values", 0)
    two.write_bytes(two.read_bytes()[:500])
    assert plan(tmp_path).resume.path == str(one)
