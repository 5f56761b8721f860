"""An optimizer's state that is written over at every save beside models that are kept: of the newest, where both
were written together, and else of none.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from safetensors.torch import save as safetensors_save
from small_files import adam, saved, tensor

from ckpt_tools.api import plan
from ckpt_tools.errors import NoneUsable

START = 1_735_700_000


def put(path: Path, step: float) -> None:
    if "optimizer" in path.name:
        data = saved(adam(int(step)))
    elif "scheduler" in path.name:
        data = saved({"last_epoch": int(step), "base_lrs": [0.1]})
    else:
        weights = {"w": tensor(step), "b": tensor(step, 1)}
        data = safetensors_save(weights) if path.suffix == ".safetensors" else saved(weights)
    path.write_bytes(data)
    os.utime(path, ns=(int((START + step) * 1e9),) * 2)


def loaded(root: Path) -> list[str] | None:
    """The files that are planned; None where nothing is usable."""
    try:
        made = plan(str(root))
    except NoneUsable:
        return None
    files = [*made.shared, *(f for r in made.by_rank for f in r.files)]
    return sorted(os.path.basename(f.path) for f in files)


@pytest.mark.parametrize("name", ["lora_{:09d}.safetensors", "model_{}.pt", "epoch_{}.pth"])
def test_it_is_of_the_model_that_it_was_written_with(name: str, tmp_path: Path) -> None:
    """As ai-toolkit keeps it."""
    for step in (250, 500):
        put(tmp_path / name.format(step), step)
    newest = tmp_path / name.format(500)
    for at in (500.5, 499.5):
        put(tmp_path / "optimizer.pt", at)
        assert loaded(tmp_path) == sorted([newest.name, "optimizer.pt"])
    put(tmp_path / "scheduler.pt", 500.7)
    assert loaded(tmp_path) == sorted([newest.name, "optimizer.pt", "scheduler.pt"])
    (tmp_path / "scheduler.pt").unlink()
    put(tmp_path / "optimizer.pt", 250.5)  # the job was killed between the two files of its last save
    assert loaded(tmp_path) == sorted([name.format(250), "optimizer.pt"])
    for at in (375, 600):  # of a save whose model is gone
        put(tmp_path / "optimizer.pt", at)
        assert loaded(tmp_path) is None, at
