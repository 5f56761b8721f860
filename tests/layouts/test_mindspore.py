"""MindSpore files that a training loop calls as it likes, and that count nothing inside."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from mindspore_writer import record

from ckpt_tools import plan
from ckpt_tools.errors import UsageError
from ckpt_tools.layouts.common.bare_names import read_bare_name

START = 1_760_000_000


def saved(root: Path, home: str, steps: list[int]) -> None:
    """One after the other, in one directory or in those of two ranks."""
    for i, step in enumerate(steps):
        for rank in range(2 if home else 1):
            path = root / (home and f"rank_{rank}") / f"model_{step}.ckpt"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(record("weight", (4,), "Float32", struct.pack("<4f", *[step / 7 + rank] * 4)))
            os.utime(path, (START + i, START + i))


@pytest.mark.parametrize("steps", [(9, 10), (8, 9, 10), (998, 999, 1000)])
@pytest.mark.parametrize("home", ["", "rank"])
def test_no_older_step_is_the_newest_after_a_copy_in_the_order_of_names(
    home: str, steps: tuple[int, ...], tmp_path: Path
) -> None:
    """``cp -r`` writes model_10.ckpt before model_9.ckpt."""
    saved(tmp_path, home, sorted(steps, key=str))
    with pytest.raises(UsageError, match="newest is in doubt"):
        plan(str(tmp_path))


@pytest.mark.parametrize("home", ["", "rank"])
def test_the_newest_is_planned(home: str, tmp_path: Path) -> None:
    saved(tmp_path, home, [9, 10, 100])
    assert plan(str(tmp_path)).resume_step == 100


@pytest.mark.parametrize("version", ["2.10", "2.10.0", "0.13.1", "2.0.0.1"])
@pytest.mark.parametrize("name", ["net-{}.ckpt", "resnet-v{}-best.ckpt", "trained-{}-append.ckpt"])
def test_a_version_in_a_name_counts_nothing(name: str, version: str) -> None:
    said = read_bare_name(name.format(version))
    assert (said.number, said.step, said.epoch) == (None, None, None)
