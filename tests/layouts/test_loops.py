"""The conventions of loops.toml: their names, and what the files under them tell; a name outside them means
nothing, whatever the word.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pickle
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timed
import torch
from fixture_trees import tree_of
from in_process import executed
from places import LAYOUT_TREES
from small_files import adam, saved, tensor
from told_trees import content

from ckpt_tools.api import plan
from ckpt_tools.errors import CkptError, NoneUsable, UsageError
from ckpt_tools.layouts import BUILT_IN
from ckpt_tools.layouts.common.piece import Claim
from ckpt_tools.layouts.files import loops, read_convention
from ckpt_tools.model.selection import Selection


@cache
def full(step: int, /, **told: int) -> bytes:
    return saved({"model": {"w": tensor(step)}, "optimizer": adam(step), **told})


@cache
def weights(step: int) -> bytes:
    return saved({"w": tensor(step)})


@cache
def optimizer(step: int) -> bytes:
    return saved(adam(step))


def put(root: Path, files: Mapping[str, bytes]) -> str:
    """Write the files one after the other, ten minutes apart where their numbers differ."""
    at, before = 0, ""
    for name, data in files.items():
        number = "".join(filter(str.isdigit, name))
        at, before = at + (number != before or not number), number
        timed.put(root / name, data, 600 * at)
    return str(root)


def test_each_convention_has_a_source_a_name_of_its_own_and_fits_what_it_says() -> None:
    names = [loop.name for loop in loops()]
    assert len(names) == len(set(names)) and len(names) <= 45
    pieces = BUILT_IN["files"].pieces
    assert all(piece.claim is Claim.WEAK and piece.readers.shared for piece in pieces)


@pytest.mark.parametrize(
    ("path", "loop", "step", "epoch"),
    [
        ("step_100.pt", "step", 100, None),
        ("net_iter_100.caffemodel.pt", None, None, None),
        ("model_ep2_step100.pt", "epoch-and-step", 100, 2),
        ("epoch=3-loss_0.52.pt", "epoch", None, 3),
        ("checkpoint0099.pth", "number", 99, None),
        ("model-10.pt", "number", 10, None),
        ("100.pth", "numeral", 100, None),
        ("last.pt", "last", None, None),
        ("checkpoint_latest.pth", "latest", None, None),
        ("model_best.pth.tar", "best", None, None),
        ("ckpt.pt", "rolling", None, None),
        ("ckpt_20261128_120000.pt", "date", None, None),
        ("2026-11-28.pt", "date", None, None),
        ("step_100/unet/model.safetensors", "step-directory", 100, None),
        ("e12/model.pt", "epoch-directory", None, 12),
        ("snap_3/state.pt", "save-directory", 3, None),
        ("300/state.pt", "numeral-directory", 300, None),
        ("best/step_100.pt", "step", 100, None),
        ("agent_0.pt", None, None, None),
        ("final.pt", None, None, None),
        ("exp_3/weights_of_it.pt", None, None, None),
        ("step_100.log", None, None, None),
    ],
)
def test_what_a_name_fits(path: str, loop: str | None, step: int | None, epoch: int | None) -> None:
    found, told = read_convention(path)
    assert (found and found.name) == loop
    numbers = [int(n) if (n := told.get(key)) else None for key in ("step", "epoch")]
    assert numbers == [step, epoch]


@pytest.mark.parametrize("name", ["42", "20261128", "e4", "step_5", "epoch_1", "run"])
def test_the_own_name_of_the_root_says_nothing(name: str, tmp_path: Path) -> None:
    """The directory of a job is called by its number: what lay below was one save of that step."""
    root = put(tmp_path / name, {f"ckpt_{n}.pt": full(n) for n in (100, 200)})
    assert plan(root).resume_step == 200
    if name not in ("step_5", "epoch_1"):  # such a directory is a save with a file of each rank
        pairs = {
            f"{kind}_{n}.pt": of(n)
            for n in (100, 200)
            for kind, of in (("model", weights), ("optimizer", optimizer))
        }
        made = plan(put(tmp_path / "halves" / name, pairs))
        assert (made.resume_step, len(made.shared)) == (200, 2)
    root = put(tmp_path / "runs" / name, {f"{run}/ckpt_100.pt": full(100) for run in ("a", "b")})
    with pytest.raises(UsageError, match=r"several runs: a .*, b "):
        plan(root)


@pytest.mark.parametrize(
    "words", ["agent_0 agent_1", "student teacher", "left right", "policy reward", "finished dernier final"]
)
def test_a_name_outside_the_conventions_means_the_same_whatever_the_word(words: str, tmp_path: Path) -> None:
    names = [f"{word}{number}.pt" for word in words.split() for number in ("", "_300")]
    codes = {executed(["plan", put(tmp_path / name, {name: full(300)})])[0] for name in names}
    assert len(codes) == 1 and 0 not in codes


def test_a_list_of_files_that_no_layout_places_is_a_list(tmp_path: Path) -> None:
    root = put(tmp_path, {"qwen_3_4b.pt": weights(1)})
    assert executed(["ls", root])[0] == 0
    assert executed(["ls", root, "--max-step", "5"])[0] == 3


def test_a_network_that_is_lost_is_named_by_its_file(tmp_path: Path) -> None:
    files = {f"net{of}_epoch_{n}.pth": weights(10 * n + (of == "D")) for n in (1, 2) for of in "GD"}
    del files["netD_epoch_2.pth"]
    (lost,) = plan(put(tmp_path, files)).rejected
    said = "netG_epoch_2.pth has no file like netD_epoch_1.pth, which epoch 1 beside it has"
    assert [f.message for f in lost.findings] == [said]


@pytest.mark.parametrize("named", ["iter_epoch_4", "latest"])
@pytest.mark.parametrize("size", [0, 200])
def test_the_framework_is_never_told_of_a_file_that_another_one_stands_in_for(
    named: str, size: int, tmp_path: Path
) -> None:
    """PaddleOCR saves each epoch under two names."""
    tree = tree_of("files/paddle-ocr", tmp_path)
    for path in tree.iterdir():
        timed.put(path, path.read_bytes()[: size if path.name == f"{named}.pdparams" else None])
    made = plan(str(tree))
    assert made.checkpoint is not None and {made.resume.path, made.checkpoint.path} <= {*made.files()}


# --- any directory, whose truth is known


def _tar(data: bytes) -> bytes:
    head, out = tarfile.TarInfo("step_200.pt"), io.BytesIO()
    head.size = len(data)
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.addfile(head, io.BytesIO(data))
    return out.getvalue()


REPLACED: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zip-in-gzip-in-tar": lambda data: _tar(gzip.compress(data)),
    "pickle": lambda _: pickle.dumps({"step": 200, "loss": 1.5}),
    "json": lambda _: b'{"step": 200}',
    "text": lambda _: b"moved to /archive\n",
    "page": lambda _: b"<!DOCTYPE html><html><body>502</body></html>",
    "noise": lambda data: hashlib.sha256(data).digest() * 40,
    "picture": lambda _: b"\x89PNG\r\n\x1a\n" + bytes(60),
}


@pytest.mark.parametrize("name", ["step_{}.pt", "ckpt_{}.ckpt"])
@pytest.mark.parametrize("kind", REPLACED)
def test_whatever_stands_where_the_newest_save_should_is_no_reason_to_go_back_in_silence(
    kind: str, name: str, tmp_path: Path
) -> None:
    timed.put(tmp_path / name.format(100), content("whole", 100), 60)
    newest = timed.put(tmp_path / name.format(200), REPLACED[kind](content("whole", 200)), 120)
    if kind == "page":  # the data is elsewhere
        with pytest.raises(UsageError, match="was not fetched"):
            plan(str(tmp_path))
        return
    lost = plan(str(tmp_path)).rejected
    assert str(newest) in [*(r.checkpoint.path for r in lost), *(f.path for r in lost for f in r.findings)]
    with pytest.raises(CkptError):
        plan(str(tmp_path), Selection(no_fallback=True))


PADDLE_SPEECH = {
    "checkpoint_latest": ("{}.pdparams", "model_checkpoint_path:{}\n"),
    "records.jsonl": (
        "snapshot_iter_{}.pdz",
        '{{"path": "/out/checkpoints/snapshot_iter_{0}.pdz", "iteration": {0}}}\n',
    ),
}


@pytest.mark.parametrize("tracker", PADDLE_SPEECH)
def test_paddlespeech_names_its_latest_save_in_a_list(tracker: str, tmp_path: Path) -> None:
    name, row = PADDLE_SPEECH[tracker]
    held = [pickle.dumps({"w": np.full((3, 4), n, np.float32)}, 2) for n in (1, 2)]
    files = [timed.put(tmp_path / name.format(n), data, n) for n, data in enumerate(held, 1)]
    timed.put(tmp_path / tracker, row.format(2))
    assert not plan(str(tmp_path)).rejected
    timed.put(tmp_path / tracker, row.format(2) + row.format(3))
    made = plan(str(tmp_path))
    assert made.resume.path == str(files[1])
    assert [f.code for r in made.rejected for f in r.findings] == ["missing-part"]
    for path in files:
        path.unlink()
    with pytest.raises(NoneUsable):
        plan(str(tmp_path), Selection(allow_none=True))
    for other in (b"", b"{}", b'{"path": 7, "iteration": 1}', b"\xff" * 9, b"[" * 100_000):
        timed.put(tmp_path / tracker, other)
        assert plan(str(tmp_path), Selection(allow_none=True)).checkpoint is None


# --- Training loops of many fields, by the names and keys of their sources: the save that each one resumes
# from is chosen without a question, and never an older one in silence, however the directory was copied.


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
    return [(name, named_weights(f"{name}-{n}", n)) for name, n in zip(names, (1, 1, 2, 2), strict=True)]


def named_weights(name: str, *seed: int) -> bytes:
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
        timed.put(root / name, data, i * every)


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


@pytest.mark.parametrize("unit", ["step", "epoch"])
def test_two_files_that_are_written_over_and_tell_other_saves_are_not_one(tmp_path: Path, unit: str) -> None:
    weights = saved({"model": {"w": tensor(9)}, unit: 9})
    lay(tmp_path, [("optimizer.pt", saved({"optimizer": adam(6), unit: 6})), ("model.pt", weights)], 1)
    with pytest.raises(NoneUsable, match=f"{unit}-mismatch"):
        plan(str(tmp_path), Selection(settle=0))
    lay(tmp_path, [("optimizer.pt", saved({"optimizer": adam(9), unit: 9}))], 1)
    assert picked(tmp_path)[0] == "model.pt"
