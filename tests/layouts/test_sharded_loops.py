"""A loop of one's own that saves a model in shards (``save_pretrained``) and its state beside it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import save as safetensors_save
from small_files import adam, saved, tensor

from ckpt_tools.api import plan
from ckpt_tools.errors import CkptError
from ckpt_tools.model.plan import LoadPlan

START = 1_735_700_000
SHARDS = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
INDEX = "model.safetensors.index.json"
NAMES = ["optimizer.pt", "optim.bin", "training_state.pt", "trainer_state.pth"]


def save(home: Path, step: int, state: str = "optimizer.pt") -> None:
    home.mkdir(parents=True)
    for i, shard in enumerate(SHARDS):
        (home / shard).write_bytes(safetensors_save({f"w{i}": tensor(step, i)}))
    weights = {f"w{i}": shard for i, shard in enumerate(SHARDS)}
    (home / INDEX).write_text(json.dumps({"metadata": {"total_size": 96}, "weight_map": weights}))
    (home / "config.json").write_text('{"model_type": "llama"}')
    (home / state).write_bytes(
        saved({"optimizer": adam(step), "step": step} if "train" in state else adam(step))
    )
    (home / "scheduler.pt").write_bytes(saved({"last_epoch": step, "base_lrs": [0.1]}))
    for path in home.iterdir():
        os.utime(path, (START + step, START + step))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for step in (10, 20):
        save(tmp_path / f"step_{step}", step)
    return tmp_path


def loaded(made: LoadPlan) -> list[str]:
    return sorted(os.path.basename(f.path) for f in made.shared)


@pytest.mark.parametrize("state", NAMES)
@pytest.mark.parametrize("home", ["step_{}", "{}", "epoch_{}"])
def test_the_state_beside_the_shards_is_loaded_with_them(home: str, state: str, tmp_path: Path) -> None:
    for step in (1, 2):
        save(tmp_path / home.format(step), step, state)
    made = plan(str(tmp_path))
    assert made.checkpoint and made.checkpoint.path.endswith(f"/{home.format(2)}") and not made.warnings
    assert loaded(made) == sorted([*SHARDS, INDEX, state, "scheduler.pt"])


DAMAGES: dict[str, Callable[[Path], object]] = {
    "optimizer lost": lambda home: (home / "optimizer.pt").unlink(),
    "optimizer cut": lambda home: os.truncate(home / "optimizer.pt", 300),
    "shard lost": lambda home: (home / SHARDS[1]).unlink(),
    "index lost": lambda home: (home / INDEX).unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_newest_save_without_a_part_loses_with_a_reason(damage: str, root: Path) -> None:
    DAMAGES[damage](root / "step_20")
    made = plan(str(root))
    assert made.checkpoint and made.checkpoint.step == 10
    assert [os.path.basename(r.checkpoint.path) for r in made.rejected] == ["step_20"]


def test_a_state_whose_model_is_gone_is_a_question(root: Path) -> None:
    for name in (*SHARDS, INDEX, "config.json"):
        (root / "step_20" / name).unlink()
    with pytest.raises(CkptError) as raised:
        plan(str(root))
    assert raised.value.exit_code == 2 and "step_20" in str(raised.value)
    shutil.rmtree(root / "step_10")
    with pytest.raises(CkptError) as raised:
        plan(str(root))
    assert raised.value.exit_code == 4


def test_another_file_of_a_state_is_a_question(root: Path) -> None:
    for step in (10, 20):
        (root / f"step_{step}/muon.pt").write_bytes(saved(adam(step)))
    with pytest.raises(CkptError) as raised:
        plan(str(root))
    assert raised.value.exit_code == 2 and "muon.pt" in str(raised.value)
