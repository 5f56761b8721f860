"""Training loops of many fields, by the names and keys of their sources: the save that each one resumes from
is chosen without a question, and never an older one in silence, however the directory was copied.
"""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from places import LAYOUT_TREES
from small_files import adam, saved, tensor

from ckpt_tools.api import plan
from ckpt_tools.errors import NoneUsable, UsageError
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.selection import Selection

START = 1_700_000_000
Tree = Sequence[tuple[str, bytes]]
"""Files in the order in which they were saved."""


def state(step: int, /, **more: Any) -> bytes:
    """A whole state whose optimizer tells no count, and what its loop says of itself."""
    optimizer = {"state": {0: {"exp_avg": tensor(step, 1)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}
    return saved({"model": {"w": tensor(step)}, "optimizer": optimizer, **more})


@cache
def icefall() -> Tree:
    def told(batch: int, epoch: int) -> bytes:
        return state(batch, batch_idx_train=batch, start_epoch=1, cur_epoch=epoch)

    return [
        ("checkpoint-2000.pt", told(2000, 1)),
        ("epoch-1.pt", told(3000, 1)),
        ("checkpoint-4000.pt", told(4000, 2)),
        ("checkpoint-6000.pt", told(6000, 2)),
    ]


@cache
def monai() -> Tree:
    def told(n: int) -> bytes:
        return state(n, trainer={"epoch_length": 10, "max_epochs": 5, "iteration": n})

    return [
        ("checkpoint_epoch=1.pt", told(10)),
        ("checkpoint_epoch=2.pt", told(20)),
        ("checkpoint_key_metric=0.8832.pt", told(20)),
        ("checkpoint_epoch=3.pt", told(30)),
        ("checkpoint_final_iteration=34.pt", told(34)),  # when it ended, or died
    ]


@cache
def diffusion_policy() -> Tree:
    def told(epoch: int, step: int) -> bytes:
        counted = {"epoch": pickle.dumps(epoch, 4), "global_step": pickle.dumps(step, 4)}
        optimizer = {"state": {}, "param_groups": [{"lr": 0.1}]}
        return saved(
            {
                "cfg": {},
                "state_dicts": {"model": {"w": tensor(epoch)}, "optimizer": optimizer},
                "pickles": counted,
            }
        )

    return [
        ("epoch=0000-test_mean_score=0.100.ckpt", told(0, 90)),
        ("epoch=0050-test_mean_score=0.917.ckpt", told(50, 70000)),
        ("latest.ckpt", told(60, 84000)),
    ]


@cache
def wenet() -> Tree:
    """Weights alone, and all that counts lies in texts beside them."""
    return [
        (name, saved({"w": tensor(i)}))
        for i, name in enumerate(("epoch_0.pt", "step_500.pt", "epoch_1.pt", "step_1000.pt", "epoch_2.pt"))
    ]


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
def cyclegan() -> Tree:
    """The networks of the last epoch once more, each in a file that says nothing of it."""
    networks = list(enumerate(("G_A", "G_B", "D_A", "D_B")))
    return [
        (name, weights(name, n, i))
        for epoch, n in (("5", 5), ("10", 10), ("latest", 10))
        for i, network in networks
        for name in [f"{epoch}_net_{network}.pth"]
    ]


@cache
def chgnet() -> Tree:
    """Names tell the errors of each epoch, and the best of two of them are kept once more."""
    names = ["epoch0_e90_f200_sNA_mNA.pth.tar", "epoch1_e80_f190_sNA_mNA.pth.tar"]
    states = [state(10 * (n + 1)) for n in range(2)]
    best = [
        (f"best{letter}_{name}", data) for letter in "EF" for name, data in zip(names, states, strict=True)
    ]
    return [(names[0], states[0]), best[0], best[2], (names[1], states[1]), best[1], best[3]]


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
    "cyclegan": (cyclegan, "latest_net_G_A.pth"),
    "catalyst": (catalyst, "model.last.pth"),
    "diffusion-policy": (diffusion_policy, "latest.ckpt"),
    "wenet": (wenet, "epoch_2.pt"),
    "chgnet": (chgnet, "epoch1_e80_f190_sNA_mNA.pth.tar"),
    "dopamine": (dopamine, "checkpoints/ckpt.2"),
    "parlai": (parlai, "model.checkpoint"),
}


def lay(root: Path, tree: Tree, every: int = 600) -> None:
    for i, (name, data) in enumerate(tree):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (START + i * every,) * 2)


def answer(root: Path) -> LoadPlan:
    return plan(str(root), Selection(settle=0))


def picked(root: Path) -> str:
    answered = answer(root)
    assert answered.checkpoint is not None
    return os.path.relpath(answered.resume.path or answered.shared[0].path, root)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_goes_on_from_its_newest_save(tmp_path: Path, loop: str) -> None:
    made, newest = LOOPS[loop]
    lay(tmp_path, made())
    assert picked(tmp_path) == newest
    assert [f.code for f in answer(tmp_path).warnings] == []


@pytest.mark.parametrize("every", [0, 1])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_copy_is_no_reason_to_go_back_in_silence(tmp_path: Path, loop: str, every: int) -> None:
    """Neither where ``cp -r`` wrote the files in the order of their names, nor where all have one time."""
    made, newest = LOOPS[loop]
    lay(tmp_path, sorted(dict(made()).items()), every)
    try:
        chosen = picked(tmp_path)
    except UsageError:
        return
    assert chosen == newest


@pytest.mark.parametrize(
    ("name", "data"), [("second/policy.pt", saved({"w": tensor(99)})), ("eval/policy.pt", state(99, iter=99))]
)
def test_what_lies_below_a_run_is_one_unless_its_directory_and_contents_say_otherwise(
    tmp_path: Path, name: str, data: bytes
) -> None:
    lay(tmp_path, [("model_50.pt", state(50, iter=50)), (name, data)])
    with pytest.raises(UsageError, match="several runs"):
        answer(tmp_path)


def network(*shape: int) -> bytes:
    return saved({"w": torch.full(shape, float(len(shape)))})


@pytest.mark.slow
@pytest.mark.parametrize(
    "beside",
    [("optimizer.pt",), ("actor_optim.pt", "critic_optim.pt"), ("training_state.pt", "scheduler.pt")],
)
def test_what_no_word_calls_otherwise_is_of_the_only_model(tmp_path: Path, beside: tuple[str, ...]) -> None:
    """Whatever that is called: it is loaded with all of it, or not at all."""
    files = {name: saved(adam(n)) for n, name in enumerate(beside, 1) if name != "scheduler.pt"}
    files |= {"scheduler.pt": saved({"last_epoch": 3, "_step_count": 4})} if "scheduler.pt" in beside else {}
    lay(tmp_path, [("policy.pt", weights("policy.pt", 1)), *files.items()], every=1)
    assert {f.path.rpartition("/")[2] for f in answer(tmp_path).shared} == {"policy.pt", *beside}
    for name in ("policy.pt", *beside):
        data = (tmp_path / name).read_bytes()
        os.truncate(tmp_path / name, len(data) // 2)
        with pytest.raises(NoneUsable):
            answer(tmp_path)
        (tmp_path / name).write_bytes(data)
    lay(tmp_path, [("policy.pt", weights("policy.pt", 1))], every=1)
    if "scheduler.pt" in beside:
        (tmp_path / "training_state.pt").unlink()
        with pytest.raises(NoneUsable, match="missing-part"):
            answer(tmp_path)


@pytest.mark.parametrize("first", [0, 1])
def test_an_optimizer_whose_network_is_gone_is_said(tmp_path: Path, first: int) -> None:
    files = [
        ("act_optimizer.pth", saved(adam(1))),
        ("cri.pth", network(2)),
        ("cri_optimizer.pth", saved(adam(2))),
    ]
    lay(tmp_path, [*files[first:], *files[:first]], every=1)
    made = answer(tmp_path)
    told = [*made.warnings, *(f for r in made.rejected for f in r.findings)]
    assert {f.path for f in told} == {str(tmp_path / "act_optimizer.pth")}


@pytest.mark.parametrize("export", ["onnx/inside/tree/model.onnx", "gguf/whole/tree/llama-q8_0.gguf"])
@pytest.mark.parametrize("name", ["model", "step_3"])
def test_an_export_beside_states_never_hides_them(tmp_path: Path, export: str, name: str) -> None:
    saves = [(f"step_{step}.pt", state(step)) for step in (1, 2, 3)]
    of = LAYOUT_TREES / export
    lay(tmp_path, [*saves, (f"{name}{of.suffix}", of.read_bytes())])
    assert picked(tmp_path) == "step_3.pt"


@pytest.mark.parametrize("home", ["", "step_100/"])
@pytest.mark.parametrize("gone", ["actor", "critic"])
def test_one_of_two_networks_is_missed_whose_optimizer_is_there(tmp_path: Path, gone: str, home: str) -> None:
    """Of a lone save, too. That each has its optimizer says nothing where one file holds both (SAC's)."""
    names = [f"{network}{kind}.pt" for network in ("actor", "critic") for kind in ("", "_optim")]
    files = {name: weights(name, 1) for name in names if "optim" not in name}
    files |= {name: saved(adam(n)) for n, name in enumerate(names, 1) if "optim" in name}
    lay(tmp_path, [(home + name, data) for name, data in files.items() if name != f"{gone}.pt"])
    with pytest.raises(NoneUsable) as caught:
        answer(tmp_path)
    assert caught.value.exit_code == 4
    if not home:
        return
    for name in ("actor.pt", "critic.pt"):
        (tmp_path / home / name).unlink(missing_ok=True)
    lay(tmp_path, [(f"{home}policy.pt", weights("policy.pt", 1))])
    assert "policy.pt" in {f.path.rpartition("/")[2] for f in answer(tmp_path).shared}


def test_the_same_network_under_another_name_is_an_older_or_newer_one(tmp_path: Path) -> None:
    lay(tmp_path, [("unet_prior.pt", weights("unet_prior.pt", 1)), ("unet.pt", weights("unet.pt", 2))])
    assert picked(tmp_path) == "unet.pt"


def test_one_number_is_no_network(tmp_path: Path) -> None:
    """SAC learns a temperature beside its networks."""
    saves = [("policy.pt", network(2, 3)), ("value.pt", network(4)), ("alpha.pt", network())]
    lay(tmp_path, saves, every=1)
    assert {f.path.rpartition("/")[2] for f in answer(tmp_path).shared} == {name for name, _ in saves}
