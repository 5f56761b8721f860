"""MindSpore files that a training loop calls as it likes: weights alone never go before a state."""

from __future__ import annotations

import os
import struct
from itertools import permutations
from pathlib import Path

import pytest
from mindspore_writer import record

from ckpt_tools import plan, scan

START = 1_760_000_000


def weights(step: int) -> bytes:
    return record("weight", (4,), "Float32", struct.pack("<4f", *[step / 7] * 4))


def state(step: int) -> bytes:
    """What save_checkpoint(optimizer) writes: the parameters, too, and what it counts."""
    counted = record("global_step", (1,), "Int32", struct.pack("<i", step))
    moments = record("moment1.weight", (4,), "Float32", struct.pack("<4f", *[step / 9] * 4))
    return weights(step) + moments + counted


@pytest.mark.parametrize(
    ("names", "states"),
    [
        (("opensora-s10.ckpt", "opensora-s20.ckpt"), ("train_resume.ckpt",)),
        (("model_1.ckpt", "model_2.ckpt"), ("optim_1.ckpt", "optim_2.ckpt")),
    ],
    ids=["one state", "one for each"],
)
def test_weights_never_go_before_a_state_in_whatever_order_they_were_written(
    names: tuple[str, ...], states: tuple[str, ...], tmp_path: Path
) -> None:
    for i, name in enumerate(names, 1):
        (tmp_path / name).write_bytes(weights(10 * i))
        os.utime(tmp_path / name, (START, START))
    for i, name in enumerate(reversed(states)):
        (tmp_path / name).write_bytes(state(20 - 10 * i))
        os.utime(tmp_path / name, (START, START))
    for order in permutations([*names[len(states) - 1 :], *states[-1:]]):
        for i, name in enumerate(order, 1):
            os.utime(tmp_path / name, (START + i, START + i))
        made = plan(str(tmp_path))
        assert made.checkpoint is not None and made.resume_step == 20, order
        assert {Path(f.path).name for f in made.shared} == {states[-1]}, order
    assert {c.layout for c in scan(str(tmp_path)).checkpoints} == {"files"}
