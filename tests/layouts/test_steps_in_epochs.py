"""Names that count steps from the start of each epoch: the later epoch is the later save."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from places import FIXTURES
from small_files import adam, saved, tensor
from timed import put

from ckpt_tools.api import plan, verify
from ckpt_tools.errors import UsageError
from ckpt_tools.model.selection import Selection


@pytest.mark.parametrize(
    "gone", ["", "optimizer/pytorch_optim-00001.bin", "lr_scheduler", "running_states.json"]
)
def test_saves_of_colossalais_examples_are_whole_ones(gone: str, tmp_path: Path) -> None:
    """The booster's files of its applications, under the names of ``examples/community/llama/pretrain.py``."""
    for save in (FIXTURES / "layouts/colossalai/booster/tree").iterdir():
        home = tmp_path / "run" / save.name.replace("epoch-", "epoch").replace("_step-", "-step")
        shutil.copytree(save, home)
        (home / "modeling").rename(home / "model")
    assert {p.name for p in (tmp_path / "run").iterdir()} >= {"epoch1-step2", "epoch1-step4"}
    assert {f.code for f in verify([str(tmp_path)]).findings} <= {"world-size-inferred"}
    if gone:
        (tmp_path / "run/epoch1-step4" / gone).unlink()
    made = plan(str(tmp_path / "run"), Selection(order="step"))
    assert made.resume.args == (
        "--load",
        str(tmp_path / "run" / ("epoch1-step2" if gone else "epoch1-step4")),
    )
    roles = {"model", "model_index", "optimizer", "optimizer_index", "groups", "scheduler", "state"}
    assert {f.role for f in made.shared} == roles


@pytest.mark.parametrize(
    ("saves", "kept", "newest"),
    [
        ([(1, 10), (2, 20), (3, 30), (1, 40)], True, (1, 40)),  # epochs that were counted anew
        ([(1, 20), (2, 10)], True, (2, 10)),
        ([(1, 20), (2, 10)], False, None),
        ([(1, 10), (2, 20), (3, 30), (1, 40)], False, None),
        ([(1, 10), (2, 20)], False, (2, 20)),
    ],
)
def test_what_is_counted_anew_is_what_times_tell(
    saves: list[tuple[int, int]], kept: bool, newest: tuple[int, int] | None, tmp_path: Path
) -> None:
    for n, (epoch, step) in enumerate(saves):
        put(
            tmp_path / f"epoch_{epoch}_step_{step}.pt",
            saved({"model": {"w": tensor(epoch, step)}, "optimizer": adam(1)}),
            1_735_700_000 + 100 * n * kept,
        )
    if newest is None:
        with pytest.raises(UsageError, match="it is unclear which checkpoint is the newest"):
            plan(str(tmp_path))
        assert plan(str(tmp_path), Selection(order="step")).checkpoint is not None
    else:
        assert plan(str(tmp_path)).resume.path == str(tmp_path / "epoch_{}_step_{}.pt".format(*newest))
