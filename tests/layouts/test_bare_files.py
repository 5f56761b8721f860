"""Checkpoints of somebody's own training loop, flat in a directory: the newest whole training state is
chosen, never a half and never an export.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import pickle
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from places import LAYOUT_TREES
from safetensors.torch import save as safetensors_save
from small_files import adam, saved, tensor

from ckpt_tools.api import plan, verify
from ckpt_tools.cli import execute
from ckpt_tools.errors import CkptError, UsageError
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.selection import Selection

START = 1_700_000_000


@cache
def full(step: int) -> bytes:
    return saved({"model": {"w": tensor(step), "b": tensor(step, 1)}, "optimizer": adam(step), "step": step})


@cache
def uncounted(step: int) -> bytes:
    return saved({"model": {"w": tensor(step)}, "optimizer": {"state": {}, "param_groups": [{"lr": 0.1}]}})


@cache
def epochs(epoch: int) -> bytes:
    return saved({"model": {"w": tensor(epoch)}, "optimizer": adam(epoch), "epoch": epoch})


@cache
def weights(step: int) -> bytes:
    return saved({"w": tensor(step), "b": tensor(step, 1)})


@cache
def optimizer(step: int) -> bytes:
    return saved(adam(step))


@cache
def sgd(step: int) -> bytes:
    return saved({"state": {}, "param_groups": [{"lr": 1 / step}]})


@cache
def vits(epoch: int, net: str) -> bytes:
    """Its ``iteration`` is the epoch, and its names tell the step."""
    return saved(
        {
            "model": {"w": tensor(epoch, ord(net))},
            "iteration": epoch,
            "optimizer": {"state": {}, "param_groups": [{}]},
            "learning_rate": 0.1,
        }
    )


@cache
def yolox(epoch: int) -> bytes:
    return saved(
        {
            "start_epoch": epoch,
            "model": {"w": tensor(epoch)},
            "optimizer": {"state": {}, "param_groups": [{}]},
        }
    )


@cache
def scheduler(step: int) -> bytes:
    return saved({"base_lrs": [0.1], "last_epoch": step, "_step_count": step + 1})


@cache
def rng(step: int) -> bytes:
    return saved({"cpu": torch.full((16,), step % 251, dtype=torch.uint8)})


@cache
def plain(step: int) -> bytes:
    return safetensors_save({"w": tensor(step)}, {"format": "pt"})


@cache
def wide(tensors: int) -> bytes:
    """Of 1 a model's weights, of 3 as long as these with the state of their optimizer."""
    return saved({f"w{i}": torch.arange(4096.0) + i for i in range(tensors)})


def no_end(data: bytes) -> bytes:
    """A file that is as long as it was, and cannot be read."""
    return data[:-30] + bytes(30)


def put(root: Path, files: Mapping[str, bytes]) -> str:
    """Write the files one after the other, ten minutes between two saves: files of one number, and pairs that
    are written over, are of one save.
    """
    root.mkdir(parents=True, exist_ok=True)
    at, before = -1, ""
    for name, data in files.items():
        number = "".join(c for c in name if c.isdigit()) or (
            "pair" if name in ("model.pt", "optim.pt") else name
        )
        at, before = at + (number != before), number
        (root / name).write_bytes(data)
        os.utime(root / name, (START + 600 * at,) * 2)
    return str(root)


def answer(root: str, selection: Selection | None = None) -> tuple[int, list[str]]:
    """(exit code, names of the files that every rank loads)."""
    try:
        made = plan(root, selection)
    except CkptError as e:
        return e.exit_code, []
    assert not made.by_rank
    return 0, sorted(os.path.relpath(f.path, root) for f in made.shared)


class Case(NamedTuple):
    """Files in the order in which they were written, and what is loaded; an int is an exit code."""

    files: Mapping[str, bytes]
    wanted: Sequence[str] | int


CASES = {
    "steps": Case({"step_100.pt": full(100), "step_200.pt": full(200)}, ["step_200.pt"]),
    "one number": Case({"ckpt-100.pth": full(100), "ckpt-200.pth": full(200)}, ["ckpt-200.pth"]),
    "glued": Case({"model_step100.bin": full(100), "model_step200.bin": full(200)}, ["model_step200.bin"]),
    "zeros": Case({"checkpoint_000100.pt": full(100), "checkpoint_000200.pt": full(200)}, ["checkpoint_000200.pt"]),
    "epochs": Case({"epoch_2.pt": epochs(2), "epoch_3.pt": epochs(3)}, ["epoch_3.pt"]),
    "best is newer and has weights alone": Case({"step_100.pt": full(100), "step_200.pt": full(200), "best.pt": weights(150)}, ["step_200.pt"]),
    "best with a number": Case({"step_100.pt": full(100), "step_200.pt": full(200), "best_model_200.pt": weights(200)}, ["step_200.pt"]),
    "best is whole, and older": Case({"step_100.pt": full(100), "step_200.pt": full(200), "best.pt": full(100)}, ["step_200.pt"]),
    "best is whole, and ahead": Case({"step_100.pt": full(100), "step_200.pt": full(200), "best.pt": full(250)}, ["best.pt"]),
    "best is a copy": Case({"step_100.pt": full(100), "step_200.pt": full(200), "best.pt": full(200)}, ["step_200.pt"]),
    "final export": Case({"step_100.pt": full(100), "step_200.pt": full(200), "final.pt": weights(200)}, ["step_200.pt"]),
    "final is whole, and ahead": Case({"step_100.pt": full(100), "step_200.pt": full(200), "final.pt": full(250)}, 2),
    "final is whole, and a copy": Case({"step_100.pt": full(100), "step_200.pt": full(200), "final.pt": full(200)}, 2),
    "final is whole, beside the best": Case({"checkpoint_best.pth": full(100), "checkpoint_final.pth": full(200)}, ["checkpoint_final.pth"]),
    "model export": Case({"step_100.pt": full(100), "step_200.pt": full(200), "model.safetensors": plain(200)}, ["step_200.pt"]),
    "a half": Case({"step_100.pt": full(100), "optim_200.pt": optimizer(200)}, ["step_100.pt"]),
    "halves": Case(
        {"model_100.pt": weights(100), "optim_100.pt": optimizer(100), "model_200.pt": weights(200), "optim_200.pt": optimizer(200)},
        ["model_200.pt", "optim_200.pt"],
    ),
    "halves of which one was not written": Case(
        {"model_100.pt": weights(100), "optim_100.pt": sgd(100), "model_200.pt": weights(200)}, ["model_100.pt", "optim_100.pt"]
    ),
    "the other half was not written": Case(
        {"model_100.pt": weights(100), "optim_100.pt": sgd(100), "optim_200.pt": sgd(200)}, ["model_100.pt", "optim_100.pt"]
    ),
    "everything apart": Case(
        {f"{name}_{n}.pt": make(n) for n in (100, 200) for name, make in (("model", weights), ("optimizer", optimizer), ("scheduler", scheduler), ("rng", rng), ("ema", weights))},
        ["ema_200.pt", "model_200.pt", "optimizer_200.pt", "rng_200.pt", "scheduler_200.pt"],
    ),
    "two networks": Case({f"{net}_{n}.pth": vits(n // 100, net) for n in (1000, 2000) for net in "DG"}, ["D_2000.pth", "G_2000.pth"]),
    "two networks of a name": Case(
        {f"net{net}_epoch_{n}.pth": weights(10 * n + (net == "D")) for n in (1, 2) for net in "DG"}, ["netD_epoch_2.pth", "netG_epoch_2.pth"]
    ),
    "two networks of which one was not written": Case(
        {**{f"{net}_{n}.pth": full(n) for n in (1000, 2000) for net in "DG"}, "G_3000.pth": full(3000)}, ["D_2000.pth", "G_2000.pth"]
    ),
    "the other network was not written": Case(
        {**{f"{net}_{n}.pth": full(n) for n in (1000, 2000) for net in "DG"}, "D_3000.pth": full(3000)}, ["D_2000.pth", "G_2000.pth"]
    ),
    "two networks of which one is cut": Case(
        {**{f"{net}_{n}.pth": full(n) for n in (1000, 2000) for net in "DG"}, "D_3000.pth": no_end(full(3000)), "G_3000.pth": full(3000)},
        ["D_2000.pth", "G_2000.pth"],
    ),
    "two networks, never of one step": Case({"G_1000.pth": full(1000), "D_2000.pth": full(2000)}, 4),
    "one network": Case({"G_1000.pth": full(1000), "G_2000.pth": full(2000)}, ["G_2000.pth"]),
    "epochs that are done": Case(
        {**{f"epoch_{n}_ckpt.pth": yolox(n) for n in (10, 20)}, "best_ckpt.pth": yolox(15), "latest_ckpt.pth": yolox(20)}, ["epoch_20_ckpt.pth"]
    ),
    "further than the last epoch": Case({**{f"epoch_{n}_ckpt.pth": yolox(n) for n in (10, 20)}, "latest_ckpt.pth": yolox(25)}, ["latest_ckpt.pth"]),
    "written over": Case({"last.pt": full(300), "best.pt": weights(100)}, ["last.pt"]),
    "best is written once more when all has ended": Case({"last.pt": weights(300), "best.pt": weights(200)}, ["last.pt"]),
    "the same, and an epoch that says so": Case({f"{n}.pt": saved({"epoch": -1, "model": {"w": tensor(i)}}) for i, n in enumerate(("last", "best"))}, ["last.pt"]),
    "best, and the end, with a file of no tensors": Case(
        {f"{at}{kind}.pt": of(step) for at, step in (("", 100), ("train_end_", 200)) for kind, of in (("params", weights), ("optimizer", optimizer), ("criterion", lambda _: saved({})))},
        [f"train_end_{kind}.pt" for kind in ("params", "optimizer", "criterion")],
    ),
    "the same, whose model is gone": Case(
        {f"{at}{kind}.pt": of(step) for at, step in (("", 100), ("train_end_", 200)) for kind, of in (("params", weights), ("optimizer", optimizer), ("criterion", lambda _: saved({}))) if (at, kind) != ("train_end_", "params")},
        [f"{kind}.pt" for kind in ("params", "optimizer", "criterion")],
    ),
    "last is ahead": Case({"step_100.pt": full(100), "step_200.pt": full(200), "last.pt": full(250)}, ["last.pt"]),
    "last is a copy": Case({"step_100.pt": full(100), "step_200.pt": full(200), "last.pt": full(200)}, ["step_200.pt"]),
    "weights of many epochs, and all of the last": Case(
        {**{f"epoch_{n}.pth": weights(n) for n in (1, 2, 3, 4)}, "latest.pth": epochs(4)}, ["latest.pth"]
    ),
    "weights of each epoch, and all of the last": Case({"epoch_1.pth": weights(1), "epoch_2.pth": weights(2), "latest.pth": epochs(2)}, ["latest.pth"]),
    "weights of each step, and all of the last": Case(
        {"model_100.pt": weights(100), "model_200.pt": weights(200), "training_state.pt": full(200)}, ["training_state.pt"]
    ),
    "all of the last is damaged": Case({"model_100.pt": wide(1), "model_200.pt": wide(1), "latest.pt": no_end(wide(3))}, 4),
    "last of weights alone is damaged": Case({"model_100.pt": weights(100), "model_200.pt": weights(200), "last.pt": no_end(weights(200))}, ["model_200.pt"]),
    "an optimizer tells it": Case(
        {n: saved({"model": {"w": tensor(k)}, "optimizer": adam(k)}) for n, k in (("step_100.pt", 100), ("step_200.pt", 200), ("last.pt", 250))}, ["last.pt"]
    ),
    "a pair that is written over": Case({"model.pt": weights(200), "optim.pt": optimizer(200)}, ["model.pt", "optim.pt"]),
    "weights alone": Case({"model_100.pt": weights(100), "model_200.pt": weights(200)}, ["model_200.pt"]),
    "weights alone, and an export": Case({"model_100.pt": plain(100), "model_200.pt": plain(200), "final.safetensors": plain(200)}, 2),
    "an export alone": Case({"model.safetensors": plain(200)}, ["model.safetensors"]),
    "optimizers alone": Case({"optim_100.pt": optimizer(100), "optim_200.pt": optimizer(200)}, 4),
    "counters are gone": Case({"step_100.pt": full(100), "step_200.pt": full(200), "step_300.pt": uncounted(300)}, ["step_200.pt"]),
    "an optimizer is gone": Case({"step_100.pt": full(100), "step_200.pt": full(200), "step_300.pt": weights(300)}, ["step_200.pt"]),
    "weights alone beside states of another name": Case({"llama_100.pt": full(100), "llama_200.pt": full(200), "best.pt": weights(150)}, 2),
    "saved at another step": Case({"step_100.pt": full(100), "step_200.pt": full(100)}, ["step_100.pt"]),
    "a number and another step": Case({"ckpt_100.pt": full(100), "ckpt_200.pt": full(100)}, ["ckpt_100.pt"]),
    "an epoch of another": Case({"epoch_1.pt": epochs(1), "epoch_3.pt": epochs(3), "epoch_5.pt": epochs(1)}, ["epoch_3.pt"]),
    "torn": Case({"step_100.pt": full(100), "step_200.pt": full(200)[:900]}, ["step_100.pt"]),
    "torn last": Case({"step_100.pt": full(100), "last.pt": full(200)[:900]}, ["step_100.pt"]),
    "a pair of two steps": Case({"model.pt": saved({"model": {"w": tensor(200)}, "step": 200}), "optim.pt": saved({**adam(100), "step": 100})}, 4),
    "the other optimizer copied": Case(
        {"model_100.pt": weights(100), "optim_100.pt": optimizer(100), "model_200.pt": weights(200), "optim_200.pt": optimizer(100)},
        ["model_100.pt", "optim_100.pt"],
    ),
    "the other model copied": Case(
        {"model_100.pt": weights(100), "optim_100.pt": optimizer(100), "model_200.pt": weights(100), "optim_200.pt": optimizer(200)},
        2,
    ),
}  # fmt: skip


@pytest.mark.share(2)
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_which_files_are_loaded(case: Case, tmp_path: Path) -> None:
    root = put(tmp_path / "run", case.files)
    assert answer(root) == ((case.wanted, []) if isinstance(case.wanted, int) else (0, sorted(case.wanted)))


@pytest.mark.parametrize(
    "name",
    [
        "best is newer and has weights alone",
        "halves",
        "two networks",
        "two networks of a name",
        "epochs that are done",
        "everything apart",
        "weights of many epochs, and all of the last",
        "weights alone",
        "weights alone beside states of another name",
        "last is a copy",
        "final export",
    ],
)
def test_a_sound_directory_has_no_alarm(name: str, tmp_path: Path) -> None:
    result = verify([put(tmp_path / "run", CASES[name].files)])
    assert (result.verdict, [f for f in result.findings if f.code != "world-size-inferred"]) == (
        Verdict.OK,
        [],
    )


def test_every_rank_is_told_all_files_of_a_step(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = put(tmp_path / "run", CASES["halves"].files)
    assert execute(["latest", root, "--rank", "1", "--no-cache"]) == 0
    assert capfd.readouterr().out.split() == [f"{root}/model_200.pt", f"{root}/optim_200.pt"]


@pytest.mark.parametrize("named", ["iter_epoch_4", "latest"])
@pytest.mark.parametrize("size", [0, 200])
def test_the_framework_is_never_told_of_a_file_that_another_one_stands_in_for(
    named: str, size: int, tmp_path: Path
) -> None:
    """PaddleOCR saves each epoch under two names."""
    tree = tmp_path / "tree"
    shutil.copytree(LAYOUT_TREES / "files/paddle-ocr/tree", tree)
    for path in tree.iterdir():
        os.truncate(path, size if path.name == f"{named}.pdparams" else path.stat().st_size)
        os.utime(path, (1_750_000_000,) * 2)
    made = plan(str(tree))
    loaded = {f.path for f in made.shared}
    assert made.checkpoint is not None and {made.resume.path, made.checkpoint.path} <= loaded


# --- any directory, whose truth is known


class Save(NamedTuple):
    """One save of a training loop: how it writes a state, and which of its files a job that died did not
    write, or cut.
    """

    step: int
    lost: str
    cut: bool


class Program(NamedTuple):
    """How a training loop names and fills its files. ``halves`` are roles in files of their own, in the order
    in which they are written.
    """

    pattern: str
    halves: tuple[str, ...]
    counts: bool
    best: str
    extra: tuple[str, ...]
    saves: tuple[Save, ...]


PATTERNS = [
    "{}step_{}.pt",
    "{}ckpt-{}.pth",
    "{}ckpt_{}.pkl",
    "{}checkpoint_{}.th",
    "{}checkpoint_epoch_{:05d}.pyth",
    "{}step{}.bin",
    "{}checkpoint_{:06d}.pt",
    "{}{}.pth.tar",
    "{}iter_{:07d}.pt",
    "llama-{}{}.pt",
]
HALF = {"model": weights, "optim": optimizer, "scheduler": scheduler, "rng": rng, "ema": weights}
EXTRA = {
    "best.pt": weights,
    "final.pt": weights,
    "model.safetensors": plain,
    "export.bin": weights,
    "best_model.pt": full,
    "ema.pt": weights,
}
STEPS = [100, 200, 300, 400]


def written(program: Program) -> dict[str, bytes]:
    """The directory, in the order of time."""
    out: dict[str, bytes] = {}
    for save in program.saves:
        whole = full if program.counts else uncounted
        files = {program.pattern.format("", save.step): whole(save.step)}
        if program.halves:
            files = {
                program.pattern.format(f"{half}_", save.step): HALF[half](save.step)
                for half in program.halves
            }
        out.update(
            {
                n: d[: len(d) // 2] if save.cut and n.find(save.lost) >= 0 else d
                for n, d in files.items()
                if save.cut or not save.lost or save.lost not in n
            }
        )
        if program.best and save.step % 200:
            out.pop(program.best, None)
            out[program.best] = EXTRA[program.best](save.step)
    return {
        **out,
        **{name: EXTRA[name](program.saves[-1].step) for name in program.extra if name != program.best},
    }


@st.composite
def programs(draw: st.DrawFn) -> Program:
    halves = draw(
        st.sampled_from(
            [
                (),
                ("model", "optim"),
                ("optim", "model"),
                ("model", "optim", "scheduler"),
                ("rng", "optim", "ema", "model"),
            ]
        )
    )
    steps = sorted(draw(st.sets(st.sampled_from(STEPS), min_size=2)))
    lost = draw(st.sampled_from(["", *[h for h in halves if h in ("model", "optim")]]))
    cut = draw(st.booleans()) and bool(lost)
    last = [Save(step, lost if step == steps[-1] else "", cut and step == steps[-1]) for step in steps]
    extra = draw(st.sets(st.sampled_from(sorted(EXTRA)), max_size=3))
    best = draw(st.sampled_from(["", "best.pt", "best_model.pt"]))
    return Program(
        draw(st.sampled_from(PATTERNS)), halves, draw(st.booleans()), best, tuple(sorted(extra)), tuple(last)
    )


@pytest.mark.slow
@examples(40)
@given(programs())
def test_the_newest_whole_training_state_is_chosen(program: Program) -> None:
    """Whatever the names, whatever lies beside: never a half, never an export, never older than need be."""
    with tempfile.TemporaryDirectory() as name:
        root = put(Path(name) / "run", written(program))
        newest = next(save for save in reversed(program.saves) if not save.lost)
        code, loaded = answer(root)
        wanted = [program.pattern.format(f"{half}_", newest.step) for half in program.halves] or [
            program.pattern.format("", newest.step)
        ]
        whole_best = "best_model.pt" in {program.best, *program.extra}
        if whole_best and loaded == ["best_model.pt"]:
            assert (plan(root).resume_step or 0) >= newest.step  # a whole state as well
        else:
            assert (code, loaded) == (0, sorted(wanted)), program


@pytest.mark.slow
@examples(25)
@given(st.lists(st.sampled_from(["model_{}.pt", "net-{}.pth", "{}.bin", "weights_step{}.pt"]), min_size=1, max_size=1), st.sets(st.sampled_from(STEPS), min_size=1),
       st.sets(st.sampled_from(["best.pt", "final.pt", "model.safetensors", "last.pt"]), max_size=2))  # fmt: skip
def test_weights_alone_still_answer(patterns: list[str], steps: set[int], extra: set[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        files = {patterns[0].format(step): weights(step) for step in sorted(steps)}
        root = put(
            Path(name) / "run",
            {**files, **{e: plain(1) if e.endswith("s") else weights(max(steps)) for e in sorted(extra)}},
        )
        code, loaded = answer(root)
        newest = [["last.pt"]] if "last.pt" in extra else []  # it holds the same
        assert (code == 0 and loaded in [[patterns[0].format(max(steps))], *newest]) or (
            code == 2 and extra - {"best.pt"}
        )


def _tar(data: bytes) -> bytes:
    head, out = tarfile.TarInfo("step_200.pt"), io.BytesIO()
    head.size = len(data)
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.addfile(head, io.BytesIO(data))
    return out.getvalue()


REPLACED: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "xz": lzma.compress,
    "zip-in-gzip-in-tar": lambda data: _tar(gzip.compress(data)),
    "tar": _tar,
    "pickle": lambda _: pickle.dumps({"step": 200, "loss": 1.5}),
    "json": lambda _: b'{"step": 200}',
    "text": lambda _: b"moved to /archive\n",
    "page": lambda _: b"<!DOCTYPE html><html><body>502</body></html>",
    "zeros": lambda data: bytes(len(data)),
    "noise": lambda data: hashlib.sha256(data).digest() * 40,
    "picture": lambda _: b"\x89PNG\r\n\x1a\n" + bytes(60),
}


@pytest.mark.share(2)
@pytest.mark.parametrize("name", ["step_{}.pt", "model-{}.pth", "ckpt_{}.ckpt", "epoch_{}.pt"])
@pytest.mark.parametrize("kind", REPLACED)
def test_whatever_stands_where_the_newest_save_should_is_no_reason_to_go_back_in_silence(
    kind: str, name: str, tmp_path: Path
) -> None:
    for at, data in zip((100, 200), (full(100), REPLACED[kind](full(200))), strict=True):
        (tmp_path / name.format(at)).write_bytes(data)
        os.utime(tmp_path / name.format(at), (1_750_000_000 + 60 * at,) * 2)
    newest = str(tmp_path / name.format(200))
    if kind == "page":  # the data is elsewhere
        with pytest.raises(UsageError, match="was not fetched"):
            plan(str(tmp_path))
        return
    made = plan(str(tmp_path))
    named = [f.path for r in made.rejected for f in r.findings] + [r.checkpoint.path for r in made.rejected]
    assert newest in named, made.warnings
    with pytest.raises(CkptError):
        plan(str(tmp_path), Selection(no_fallback=True))
