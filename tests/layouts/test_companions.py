"""One file that each save writes over beside weights that are kept (``optimizer.pt``, MindCV's ``optim_NAME.ckpt``):
it is loaded with the weights that it was written with, and with no others; what is damaged or gone is named.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from mindspore_writer import record
from safetensors.torch import save as safetensors_save
from small_files import adam, payload, saved, tensor

from ckpt_tools.api import plan, verify
from ckpt_tools.errors import NoneUsable
from ckpt_tools.model.finding import Severity, Verdict
from ckpt_tools.model.plan import LoadPlan

DAY = 1_700_000_000


def put(path: Path, data: bytes, at: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (DAY + at, DAY + at))
    return path


def loaded(made: LoadPlan) -> list[str]:
    return sorted(
        {f.path.rpartition("/")[2] for f in (*made.shared, *(f for r in made.ranks for f in r.files))}
    )


def named(made: LoadPlan) -> set[str]:
    """The files that a warning is about."""
    return {(f.path or "").rpartition("/")[2] for f in made.warnings if f.severity is not Severity.NOTE}


def lora(root: Path, *steps: int, optimizer: int) -> Path:
    """AI Toolkit's saves: a LoRA with its number, and then one optimizer.pt that is written over."""
    for step in steps:
        put(root / f"lora_{step:09d}.safetensors", safetensors_save({"a.weight": tensor(step)}), step)
    put(root / "optimizer.pt", saved(adam(optimizer)), optimizer)
    return root


def test_older_saves_never_had_what_each_save_writes_over(tmp_path: Path) -> None:
    made = plan(lora(tmp_path, 250, 500, 750, optimizer=750))
    assert loaded(made) == ["lora_000000750.safetensors", "optimizer.pt"]
    assert named(made) == set()
    assert verify(tmp_path).verdict is Verdict.OK


def test_a_job_that_was_killed_between_the_two_goes_on_from_the_save_before(tmp_path: Path) -> None:
    made = plan(lora(tmp_path, 250, 500, 750, optimizer=500))
    assert loaded(made) == ["lora_000000500.safetensors", "optimizer.pt"]
    assert [r.checkpoint.step for r in made.rejected] == [750]


def test_an_optimizer_of_a_save_that_is_damaged_is_loaded_with_no_other(tmp_path: Path) -> None:
    lora(tmp_path, 250, 500, 750, optimizer=750)
    newest = tmp_path / "lora_000000750.safetensors"
    put(newest, newest.read_bytes()[:-20], 750)
    with pytest.raises(NoneUsable) as e:
        plan(tmp_path)
    assert e.value.plan is not None
    said = " ".join(f.message for r in e.value.plan.rejected for f in r.findings)
    assert "which optimizer.pt beside it holds" in said


def test_a_healthy_loop_has_no_warning(tmp_path: Path) -> None:
    for epoch in range(1, 5):
        weights = saved({"w": tensor(epoch)})
        put(tmp_path / f"model_epoch{epoch}.pt", weights, 600 * epoch)
        put(tmp_path / f"opt_epoch{epoch}.pt", saved(adam(epoch)), 600 * epoch)
        put(tmp_path / "last.pt", weights, 600 * epoch)
        if epoch == 2:
            put(tmp_path / "best.pt", weights, 600 * epoch)
    assert verify(tmp_path).verdict is Verdict.OK
    made = plan(tmp_path)
    assert loaded(made) == ["model_epoch4.pt", "opt_epoch4.pt"]
    assert named(made) == set()


def mindcv(root: Path, *epochs: int, average: bool = False) -> Path:
    """NAME-E_S.ckpt of weights, EMA_NAME-E_S.ckpt beside it, and one optim_NAME.ckpt."""
    for epoch in epochs:
        weights = record("w", (3, 4), "Float32", payload(epoch)) + record(
            "b", (12,), "Float32", payload(epoch, 1)
        )
        moments = record("moments.w", (3, 4), "Float32", payload(epoch, 2))
        done = record("global_step", (1,), "Int32", (100 * epoch).to_bytes(4, "little"))
        put(root / "optim_net.ckpt", done + weights + moments, 600 * epoch)
        put(root / f"net-{epoch}_100.ckpt", weights, 600 * epoch + 1)
        if average:
            put(root / f"EMA_net-{epoch}_100.ckpt", weights, 600 * epoch + 2)
    return root


def test_the_optimizer_of_mindcv_is_of_the_epoch_that_it_tells(tmp_path: Path) -> None:
    made = plan(mindcv(tmp_path, 8, 9, 10, average=True))
    assert loaded(made) == ["net-10_100.ckpt", "optim_net.ckpt"]
    assert made.resume.path == str(tmp_path / "net-10_100.ckpt")
    assert named(made) == set()
    assert verify(tmp_path).verdict is Verdict.OK


def test_an_optimizer_of_mindcv_that_is_cut_is_named(tmp_path: Path) -> None:
    optimizer = mindcv(tmp_path, 8, 9, 10) / "optim_net.ckpt"
    put(optimizer, optimizer.read_bytes()[:-60], 6000)
    made = plan(tmp_path)
    assert loaded(made) == ["net-10_100.ckpt"]
    assert "optim_net.ckpt" in named(made)
    assert any("optimizer" in f.message for f in made.warnings)


def test_an_optimizer_of_mindcv_is_never_loaded_with_older_weights(tmp_path: Path) -> None:
    newest = mindcv(tmp_path, 8, 9, 10) / "net-10_100.ckpt"
    put(newest, newest.read_bytes()[:-30], 6001)
    made = plan(tmp_path)
    assert loaded(made) == ["net-9_100.ckpt"]
    assert [r.checkpoint.epoch for r in made.rejected] == [10]
    assert "optim_net.ckpt" in named(made)
