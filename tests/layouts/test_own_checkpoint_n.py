"""Loops of one's own whose directories are called as a framework's: they save their own files there, and none
of those that only the framework writes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
import small_files
from small_files import adam, saved, tensor

from ckpt_tools.api import plan
from ckpt_tools.errors import NoCheckpoint

START = 1_735_700_000


def state(step: int) -> dict[str, bytes]:
    model = small_files.trainer(step)["model.safetensors"]
    schedule = saved({"last_epoch": step, "base_lrs": [0.1]})
    return {"model.safetensors": model, "optimizer.pt": saved(adam(step)), "scheduler.pt": schedule}


def written(home: Path, files: Mapping[str, bytes], at: int) -> Path:
    for name, data in files.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (START + at, START + at))
    return home


@pytest.mark.parametrize("saves", [1, 2, 3])
@pytest.mark.parametrize("beside", [{}, {"config.json": b'{"model_type": "llama"}'}])
def test_checkpoint_n_without_what_the_trainer_writes_is_whole(
    saves: int, beside: dict[str, bytes], tmp_path: Path
) -> None:
    for n in range(1, saves + 1):
        written(tmp_path / f"checkpoint-{10 * n}", state(10 * n) | beside, 60 * n)
    made = plan(str(tmp_path))
    assert made.checkpoint and made.checkpoint.step == 10 * saves and not made.warnings
    assert sorted(os.path.basename(f.path) for f in made.shared) == sorted(state(1))


@pytest.mark.parametrize("last", range(3, 7))
def test_a_save_of_the_trainer_that_was_killed_stays_unfinished(last: int, tmp_path: Path) -> None:
    """Its arguments come before its optimizer."""
    names = [*("config.json", "model.safetensors", "training_args.bin"), *list(state(1))[1:], "rng_state.pth"]
    files = small_files.trainer(10)
    written(tmp_path / "checkpoint-10", {name: files[name] for name in names[:last]}, 60)
    with pytest.raises(NoCheckpoint):
        plan(str(tmp_path))


def test_settings_beside_a_model_do_not_make_it_a_framework_s(tmp_path: Path) -> None:
    """NeMo-RL saves a ``config.yaml`` into ``step_N``, as many do."""
    for step in (10, 20):
        files = {"model.pt": saved({"w": tensor(step)}), "config.yaml": b"dim: 12\n"}
        written(tmp_path / f"step_{step}", files, step)
    made = plan(str(tmp_path))
    assert made.checkpoint and made.checkpoint.step == 20 and not made.warnings


@pytest.mark.parametrize("name", ["checkpoint-10", "ckpt"])
def test_the_state_of_an_optimizer_that_is_left_of_a_save_is_not_planned_in_silence(
    name: str, tmp_path: Path
) -> None:
    """Accelerate's ``save_state`` with FSDP, whose model was lost."""
    home = written(tmp_path / name / "optimizer_0", small_files.dcp(10, 2), 60)
    made = plan(str(tmp_path))
    assert [(f.code, f.path) for f in made.warnings] == [("missing-part", str(home))]


@pytest.mark.parametrize("ending", ["lora", "adapter", "adapter_v2"])
def test_an_adapter_that_litgpt_trains_is_a_checkpoint(ending: str, tmp_path: Path) -> None:
    for step in (10, 20):
        weights = {f"lit_model.pth.{ending}": saved({"w": tensor(step)})}
        written(tmp_path / f"step-{step:06d}", weights, step)
    made = plan(str(tmp_path))
    assert made.checkpoint and made.checkpoint.step == 20 and not made.warnings


@pytest.mark.parametrize("home", ["epoch_{}", "checkpoint-{}"])
@pytest.mark.parametrize("gone", ["", "unet", "text_encoder", "optimizer.pt"])
def test_components_of_a_pipeline_and_an_optimizer_are_one_save(gone: str, home: str, tmp_path: Path) -> None:
    """``unet.save_pretrained(f"{home}/unet")``, and ``torch.save`` of the optimizer beside it."""
    names = {"unet/diffusion_pytorch_model.safetensors": 1, "text_encoder/model.safetensors": 2}
    for step in (1, 2):
        files = {name: small_files.safetensors_save({"w": tensor(step, n)}) for name, n in names.items()}
        files |= {f"{name.partition('/')[0]}/config.json": b"{}" for name in names}
        written(tmp_path / home.format(step), files | {"optimizer.pt": saved(adam(step))}, 60 * step)
    newest = tmp_path / home.format(2)
    for path in list(newest.rglob("*")) if gone else []:
        if path.is_file() and gone in path.parts:
            path.unlink()
    made = plan(str(tmp_path))
    assert made.checkpoint and made.checkpoint.path == (
        str(tmp_path / home.format(1)) if gone else str(newest)
    )
    assert len(made.shared) == 3 and bool(made.rejected) == bool(gone)
