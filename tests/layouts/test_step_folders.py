"""A directory for each save of somebody's own training loop: one run, of which the newest whole save is chosen;
what may be something else is asked about.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from safetensors.torch import save as safetensors_save
from small_files import adam, saved, tensor

from ckpt_tools.api import plan, verify
from ckpt_tools.errors import CkptError
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.plan import LoadPlan


@cache
def full(step: int) -> bytes:
    return saved({"model": {"w": tensor(step), "b": tensor(step, 1)}, "optimizer": adam(step), "step": step})


@cache
def unplaced(step: int) -> bytes:
    return saved({"model": {"w": tensor(step)}, "optimizer": {"state": {}, "param_groups": [{"lr": 0.1}]}})


@cache
def weights(step: int) -> bytes:
    return saved({"w": tensor(step), "b": tensor(step, 1)})


@cache
def optimizer(step: int) -> bytes:
    return saved(adam(step))


@cache
def arrays(step: int, *names: str) -> bytes:
    """What MLX saves of a model or of its optimizer: arrays, whose names no other framework has."""
    return safetensors_save({name: tensor(step, len(name)) for name in names})


def nested(home: str, step: int, model: str = "model", state: str = "state.pt") -> dict[str, bytes]:
    """The halves, each in a directory that is called after it."""
    return {f"{home}/{model}/{state}": weights(step), f"{home}/optimizer/{state}": optimizer(step)}


def halves(home: str, step: int) -> dict[str, bytes]:
    return {f"{home}/model.pt": weights(step), f"{home}/optimizer.pt": optimizer(step)}


def paddle(n: int, ending: str, **told: int) -> bytes:
    """A model or its optimizer as PaddlePaddle saves it: arrays in a pickle."""
    array = np.arange(4, dtype=np.float32) + n
    return pickle.dumps({"w": array} if ending != "pdopt" else {"w_moment1_0": array, **told}, protocol=4)


PADDLE = ("pdopt", "pdparams")


def put(root: Path, files: Mapping[str, bytes]) -> str:
    """Write the files one after the other, ten minutes between those of two directories."""
    at, before = 0, ""
    for name, data in files.items():
        home = name.partition("/")[0] if "exp" not in name else name.rpartition("/")[0]
        at, before = at + (home != before), home
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
        os.utime(root / name, (1_700_000_000 + 600 * at,) * 2)
    return str(root)


class Case(NamedTuple):
    """Files in the order in which they were written, and what is loaded; an int is an exit code."""

    files: Mapping[str, bytes]
    wanted: Sequence[str] | int


BOTH = {**halves("step_100", 100), **halves("step_200", 200)}
ALONE = {"ckpt-100/state.pt": full(100), "ckpt-200/state.pt": full(200)}
HALVES = ["step_200/model.pt", "step_200/optimizer.pt"]
CASES = {
    "two files": Case(BOTH, HALVES),
    "one file": Case(ALONE, ["ckpt-200/state.pt"]),
    "a prefix": Case(
        {**halves("bert-epoch3", 3), **halves("bert-epoch4", 4)},
        ["bert-epoch4/model.pt", "bert-epoch4/optimizer.pt"],
    ),
    "the number in both": Case(
        {f"iter_{n:07d}/model_{n}.pth": full(n) for n in (5, 10)}, ["iter_0000010/model_10.pth"]
    ),
    "one of two was not written": Case({**BOTH, "step_300/model.pt": weights(300)}, HALVES),
    "one of two is cut": Case(
        {**BOTH, "step_300/model.pt": weights(300), "step_300/optimizer.pt": optimizer(300)[:-200]}, HALVES
    ),
    "weights alone are newer": Case({**ALONE, "ckpt-300/state.pt": weights(300)}, ["ckpt-200/state.pt"]),
    "all are cut": Case({name: data[:-300] for name, data in ALONE.items()}, 4),
    "still being written": Case({**BOTH, **halves("step_300.tmp", 300)}, HALVES),
    "a file beside is newer": Case({**ALONE, "ckpt-300.pt": full(300)}, ["ckpt-300.pt"]),
    "a file beside is older": Case({"ckpt-050.pt": full(50), **ALONE}, ["ckpt-200/state.pt"]),
    "last is further": Case({**ALONE, "last/state.pt": full(250)}, ["last/state.pt"]),
    "last is newer and tells no step": Case({**BOTH, "last/state.pt": unplaced(250)}, 2),
    "best has weights alone": Case({**BOTH, "best/model.pt": weights(150)}, HALVES),
    "final is an export": Case({**BOTH, "final/model.pt": weights(250)}, HALVES),
    "a directory of another name": Case({**ALONE, "again/state.pt": full(250)}, 2),
    "a number that its files tell": Case(
        {**halves("100", 100), **halves("200", 200)}, ["200/model.pt", "200/optimizer.pt"]
    ),
    "a number, and one of two was not written": Case(
        {**halves("100", 100), **halves("200", 200), "300/model.pt": weights(300)},
        ["200/model.pt", "200/optimizer.pt"],
    ),
    "a number, and one of two is empty": Case(
        {**halves("100", 100), **halves("200", 200), **halves("300", 300), "300/optimizer.pt": b""},
        ["200/model.pt", "200/optimizer.pt"],
    ),
    "numbers that count epochs from 0": Case(
        {
            f"{n}/state.pt": saved({"model": {"w": tensor(n)}, "optimizer": adam(n * 70), "epoch": n - 1})
            for n in (1, 2)
        },
        ["2/state.pt"],
    ),
    "numbers of which nothing tells": Case({"100/model.pt": weights(100), "200/model.pt": weights(200)}, 2),
    "one number": Case({"100/state.pt": full(100), "other/state.pt": full(90)}, 2),
    "ranks without a word that counts": Case(
        {
            f"step_{n}/tp_rank_world_size={r}_2_pp_rank_world_size=0_1.pth": full(n)
            for n in (100, 200)
            for r in (0, 1)
        },
        2,
    ),
    "epochs of steps, the newest is cut": Case(
        {
            **{f"epoch_{n // 200}/iter_{n}.pt": full(n) for n in (100, 200)},
            "epoch_1/iter_300.pt": full(300)[:-300],
        },
        ["epoch_1/iter_200.pt"],
    ),
    "steps that begin again": Case(
        {f"epoch_{e}/iter_{n}.pt": full(n) for e in (0, 1) for n in (100, 200)}, 2
    ),
    "two runs": Case({"exp_a/step_1/model.pt": full(1), "exp_b/step_2/model.pt": full(2)}, 2),
    "two prefixes": Case({"bert_step_1/state.pt": full(1), "gpt_step_2/state.pt": full(2)}, 2),
    "steps of a recipe": Case({"step1_sft/state.pt": full(90), "step2_reward/state.pt": full(30)}, 2),
    "members of an ensemble": Case({"model_1/state.pt": full(90), "model_2/state.pt": full(30)}, 2),
    "files count something else": Case(
        {f"epoch_{n}/ckpt_{m}.pt": full(10 * n + m) for n in (1, 2) for m in (7, 8)}, 2
    ),
    "two models": Case(
        {f"step_{n}/{name}.pt": full(n) for n in (1, 2) for name in ("teacher", "student")},
        ["step_2/student.pt", "step_2/teacher.pt"],
    ),
    "two networks": Case(
        {f"step_{n}/{name}.pt": full(n) for n in (1, 2) for name in ("generator", "discriminator")},
        ["step_2/discriminator.pt", "step_2/generator.pt"],
    ),
    "a directory for each half": Case(
        {**nested("step_100", 100), **nested("step_200", 200)},
        ["step_200/model/state.pt", "step_200/optimizer/state.pt"],
    ),
    "one half in a directory": Case(
        {
            f"step_{n}/{name}": make(n)
            for n in (1, 2)
            for name, make in (("w.pt", weights), ("optim/o.pt", optimizer))
        },
        ["step_2/optim/o.pt", "step_2/w.pt"],
    ),
    "one half of two directories was not written": Case(
        {**nested("epoch_1", 1), **nested("epoch_2", 2), "epoch_3/model/state.pt": weights(3)},
        ["epoch_2/model/state.pt", "epoch_2/optimizer/state.pt"],
    ),
    "directories of no step": Case({**nested("exp_a", 100), **nested("exp_b", 200)}, 2),
    "arrays called an optimizer's": Case(
        {
            f"step_{n}/{name}.safetensors": arrays(n, *names)
            for n in (1, 2)
            for name, names in (("model", ("0.w", "1.w")), ("optimizer", ("0.w.m", "0.w.v")))
        },
        ["step_2/model.safetensors", "step_2/optimizer.safetensors"],
    ),
    "arrays of both": Case(
        {f"step_{n}/{name}.safetensors": arrays(n, "0.w") for n in (1, 2) for name in ("a", "model_optim")},
        ["step_2/a.safetensors", "step_2/model_optim.safetensors"],
    ),
    "names that only lie in directories of epochs": Case(
        {f"{n}/rec.{of}": paddle(n, of) for n in (9, 10) for of in PADDLE},
        ["10/rec.pdopt", "10/rec.pdparams"],
    ),
    "numbers from 0 of epochs that are done": Case(
        {f"{n}/{n}.{of}": paddle(n, of, last_epoch=n + 1) for n in (0, 1) for of in PADDLE},
        ["1/1.pdopt", "1/1.pdparams"],
    ),
    "files of PaddleSpeech": Case(
        {f"checkpoints/snapshot_iter_{n}.pdz": paddle(n, "") for n in (1, 2)},
        ["checkpoints/snapshot_iter_2.pdz"],
    ),
    "more below": Case(
        {f"step_{n}/{name}": weights(n) for n in (1, 2) for name in ("model.pt", "optim/state.pt")},
        ["step_2/model.pt", "step_2/optim/state.pt"],
    ),
}


@pytest.mark.share(2)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_which_files_are_loaded(case: Case, tmp_path: Path) -> None:
    root = put(tmp_path / "run", case.files)
    if isinstance(case.wanted, int):
        with pytest.raises(CkptError) as caught:
            plan(root)
        assert caught.value.exit_code == case.wanted
        return
    made = plan(root)
    assert not made.by_rank
    assert sorted(os.path.relpath(f.path, root) for f in made.shared) == case.wanted


def chosen(root: str) -> tuple[str, int | None, LoadPlan]:
    made = plan(root)
    assert made.checkpoint is not None
    return os.path.relpath(made.checkpoint.path, root), made.resume_step, made


def test_the_directory_is_the_checkpoint_and_tells_its_step(tmp_path: Path) -> None:
    root = put(tmp_path / "run", BOTH)
    path, step, made = chosen(root)
    assert (path, step, made.resume.path) == ("step_200", 200, f"{root}/step_200")
    result = verify([root])
    assert (result.verdict, result.findings) == (Verdict.OK, ())


@pytest.mark.parametrize(
    "damaged", ["step_200/model.pt", "step_200/optimizer.pt"], ids=["the model", "the optimizer"]
)
def test_a_lost_file_is_named_where_an_older_save_is_taken(damaged: str, tmp_path: Path) -> None:
    root = put(tmp_path / "run", {k: v for k, v in BOTH.items() if k != damaged})
    path, _, made = chosen(root)
    assert path == "step_100"
    assert [f.code for r in made.rejected for f in r.findings] == ["missing-part"]


def test_a_file_of_another_save_is_told(tmp_path: Path) -> None:
    root = put(tmp_path / "run", {**ALONE, "ckpt-300/state.pt": full(200)})
    path, _, made = chosen(root)
    assert path == "ckpt-200" and [f.code for r in made.rejected for f in r.findings] == ["step-mismatch"]


def test_a_link_is_no_other_checkpoint(tmp_path: Path) -> None:
    root = put(tmp_path / "run", ALONE)
    os.symlink("ckpt-200", f"{root}/latest")
    assert chosen(root)[:2] == ("ckpt-200", 200)


def test_one_of_them_may_be_the_root(tmp_path: Path) -> None:
    root = put(tmp_path / "run", BOTH)
    made = plan(f"{root}/step_100")
    assert sorted(f.path for f in made.shared) == [
        f"{root}/step_100/model.pt",
        f"{root}/step_100/optimizer.pt",
    ]


def test_directories_that_count_otherwise_are_asked_about(tmp_path: Path) -> None:
    root = put(tmp_path / "run", {"weights/step_10.pt": weights(10), "ema/step_15.pt": weights(15)})
    with pytest.raises(CkptError, match="several runs"):
        plan(root)
