"""Training loops of many fields, by the names and keys of their sources: the save that each one resumes from
is chosen without a question, and never an older one in silence, however the directory was copied.
"""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from places import LAYOUT_TREES
from small_files import saved, tensor
from timed import put

from ckpt_tools.api import plan
from ckpt_tools.errors import UsageError
from ckpt_tools.model.selection import Selection

Tree = Sequence[tuple[str, bytes]]
"""Files in the order in which they were saved."""


def state(step: int, /, **more: Any) -> bytes:
    """A whole state whose optimizer tells no count, and what its loop says of itself."""
    optimizer = {"state": {0: {"exp_avg": tensor(step, 1)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}
    return saved({"model": {"w": tensor(step)}, "optimizer": optimizer, **more})


@cache
def icefall() -> Tree:
    steps = (2000, 3000, 4000, 6000)
    told = {n: state(n, batch_idx_train=n, start_epoch=1, cur_epoch=1 + (n > 3000)) for n in steps}
    return [("epoch-1.pt" if n == 3000 else f"checkpoint-{n}.pt", data) for n, data in told.items()]


@cache
def monai() -> Tree:
    names = {"epoch=1": 10, "epoch=2": 20, "key_metric=0.8832": 20, "epoch=3": 30, "final_iteration=34": 34}
    told = {"epoch_length": 10, "max_epochs": 5}
    return [
        (f"checkpoint_{name}.pt", state(n, trainer={**told, "iteration": n})) for name, n in names.items()
    ]


@cache
def diffusion_policy() -> Tree:
    def told(epoch: int, step: int) -> bytes:
        counted = {"epoch": pickle.dumps(epoch, 4), "global_step": pickle.dumps(step, 4)}
        optimizer = {"state": {}, "param_groups": [{"lr": 0.1}]}
        states = {"model": {"w": tensor(epoch)}, "optimizer": optimizer}
        return saved({"cfg": {}, "state_dicts": states, "pickles": counted})

    names = ("epoch=0000-test_mean_score=0.100.ckpt", "epoch=0050-test_mean_score=0.917.ckpt", "latest.ckpt")
    return [(name, told(n, 100 * n)) for name, n in zip(names, (1, 50, 60), strict=True)]


@cache
def wenet() -> Tree:
    """Weights alone, and all that counts lies in texts beside them."""
    names = ("epoch_0.pt", "step_500.pt", "epoch_1.pt", "step_1000.pt", "epoch_2.pt")
    return [(name, saved({"w": tensor(i)})) for i, name in enumerate(names)]


@cache
def sovits() -> Tree:
    """Its ``iteration`` is the epoch, and training begins with a model of step 0."""
    return [
        (f"{net}_{800 * n}.pth", state(n + 9 * i, iteration=2 * n, learning_rate=0.1))
        for n in range(3)
        for i, net in enumerate("GD")
    ]


@cache
def catalyst() -> Tree:
    """The last model once more under its own name, and nothing in either that counts."""
    names = ("model.0001.pth", "model.last.pth", "model.0002.pth", "model.last.pth")
    return [(name, weights(f"{name}-{n}", n)) for name, n in zip(names, (1, 1, 2, 2), strict=True)]


def weights(name: str, *seed: int) -> bytes:
    """As ``torch.save`` to a path writes them: with the file's name inside."""
    with tempfile.TemporaryDirectory() as place:
        torch.save({"w": tensor(*seed)}, f"{place}/{name}")
        return Path(place, name).read_bytes()


@cache
def dopamine() -> Tree:
    def told(n: int) -> bytes:
        params = {"Dense_0": {"kernel": np.full((3, 4), float(n), "float32")}}
        return pickle.dumps({"current_iteration": n, "logs": {}, "online_params": params})

    done = [(f"checkpoints/sentinel_checkpoint_complete.{n}", b"done") for n in range(3)]
    return [f for n in range(3) for f in ((f"checkpoints/ckpt.{n}", told(n)), done[n])]


@cache
def parlai() -> Tree:
    files = [("model.opt", b"{}"), ("model.checkpoint", state(20, number_training_updates=20))]
    return [*files, ("model.checkpoint.trainstats", b"{}")]


LOOPS: Mapping[str, tuple[Any, str]] = {
    "icefall": (icefall, "checkpoint-6000.pt"),
    "monai": (monai, "checkpoint_final_iteration=34.pt"),
    "so-vits": (sovits, "G_1600.pth"),
    "catalyst": (catalyst, "model.last.pth"),
    "diffusion-policy": (diffusion_policy, "latest.ckpt"),
    "wenet": (wenet, "epoch_2.pt"),
    "dopamine": (dopamine, "checkpoints/ckpt.2"),
    "parlai": (parlai, "model.checkpoint"),
}


def lay(root: Path, tree: Tree, every: int = 600) -> None:
    for i, (name, data) in enumerate(tree):
        put(root / name, data, i * every)


def picked(root: Path) -> tuple[str, list[str]]:
    made = plan(str(root), Selection(settle=0))
    assert made.checkpoint is not None
    return os.path.relpath(made.resume.path or made.files()[0], root), [f.code for f in made.warnings]


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_goes_on_from_its_newest_save(tmp_path: Path, loop: str) -> None:
    made, newest = LOOPS[loop]
    lay(tmp_path, made())
    assert picked(tmp_path) == (newest, [])


@pytest.mark.parametrize("every", [0, 1])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_copy_is_no_reason_to_go_back_in_silence(tmp_path: Path, loop: str, every: int) -> None:
    """Neither where ``cp -r`` wrote the files in the order of their names, nor where all have one time."""
    made, newest = LOOPS[loop]
    lay(tmp_path, sorted(dict(made()).items()), every)
    with suppress(UsageError):
        assert picked(tmp_path)[0] == newest


@pytest.mark.parametrize("export", ["onnx/inside/tree/model.onnx", "gguf/whole/tree/llama-q8_0.gguf"])
@pytest.mark.parametrize("name", ["model", "step_3"])
def test_an_export_beside_states_never_hides_them(tmp_path: Path, export: str, name: str) -> None:
    of = LAYOUT_TREES / export
    exported = (f"{name}{of.suffix}", of.read_bytes())
    lay(tmp_path, [*((f"step_{step}.pt", state(step)) for step in (1, 2, 3)), exported])
    assert picked(tmp_path)[0] == "step_3.pt"
