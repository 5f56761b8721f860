"""The conventions of loops.toml: their names, and what the files under them tell; a name outside them means
nothing, whatever the word.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest
import timed
from in_process import executed
from small_files import adam, saved, tensor

from ckpt_tools.api import plan
from ckpt_tools.errors import UsageError
from ckpt_tools.layouts import BUILT_IN
from ckpt_tools.layouts.common.piece import Claim
from ckpt_tools.layouts.files import loops, numbers_named


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
    found, told = numbers_named(path)
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
