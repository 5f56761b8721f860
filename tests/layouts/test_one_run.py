"""Names of one run that read like those of several: a second phase of training, saves that are kept longer, words
that are written together. What may be another run stays a question.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from small_files import adam, saved, tensor

from ckpt_tools.api import plan
from ckpt_tools.errors import UsageError


def put(root: Path, rows: dict[str, int]) -> None:
    """Whole states that tell no step, by their names and times."""
    for name, at in rows.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(saved({"model": {"w": tensor(at), "b": tensor(at, 1)}, "optimizer": adam(at)}))
        os.utime(path, (1_735_700_000 + 10 * at,) * 2)


PHASES = {"x_run-1_epoch-8.pt": 8, "x_run-1_epoch-12_swa.pt": 12, "x_run-1_epoch-14_swa.pt": 14}
KEPT = {"p0/checkpoint_000000010_40960.pth": 10, "p0/checkpoint_000000020_81920.pth": 20}
COUNTED = {"model.ckpt.5": 5, "model.ckpt.10": 10}


@pytest.mark.parametrize(
    ("rows", "newest"),
    [
        (PHASES, "x_run-1_epoch-14_swa.pt"),
        ({"epoch_1.pt": 1, "epoch_2.pt": 2, "bestModel.pt": 1, "bestE_epoch_1.pt": 1}, "epoch_2.pt"),
        (COUNTED, "model.ckpt.10"),
        ({"ckpt.5": 5, "ckpt.10": 10}, "ckpt.10"),
        ({"model_loss_0.3.pt": 5, "model_loss_0.1.pt": 10}, "model_loss_0.1.pt"),
        ({"step1000-tokens4B.pt": 5, "step2000-tokens8B.pt": 10}, "step2000-tokens8B.pt"),
        ({"ep0_it100_0.5M_tok/w.pt": 5, "ep1_it200_1M_tok/w.pt": 10}, "ep1_it200_1M_tok/w.pt"),
        ({"step_5/model/w.pt": 5, "step_10/model/w.pt": 10, "best/model/w.pt": 5}, "step_10/model/w.pt"),
    ],
    ids=[
        "a second phase",
        "the best",
        "counted",
        "counted saves",
        "measured",
        "tokens",
        "tokens last",
        "roles",
    ],
)
def test_they_are_of_one_run(rows: dict[str, int], newest: str, tmp_path: Path) -> None:
    put(tmp_path, rows)
    made = plan(str(tmp_path))
    assert (made.resume.path, made.warnings) == (str(tmp_path / newest), ())


@pytest.mark.parametrize(
    "rows",
    [
        {"x_epoch-8.pt": 8, "x_epoch-12.pt": 12, "x_epoch-12_swa.pt": 13},
        {"x_epoch-8.pt": 8, "x_epoch-12_ft.pt": 12},
        KEPT | {"p0/milestones/checkpoint_000000030_99999.pth": 30},
        KEPT | {"p0/other/checkpoint_000000010_40960.pth": 10},
        {"model.ckpt.1": 10, "model.ckpt.2": 5},
        {"llama_1B_step_10.pt": 5, "llama_7B_step_20.pt": 10},
    ],
    ids=[
        "one number",
        "another word",
        "a later one",
        "another place",
        "rotated",
        "two sizes",
    ],
)
def test_what_may_be_another_run_or_order_is_asked(rows: dict[str, int], tmp_path: Path) -> None:
    put(tmp_path, rows)
    with pytest.raises(UsageError):
        plan(str(tmp_path))


@pytest.mark.parametrize("name", ["model.pt", "step_20.pt"])
def test_links_to_the_files_of_a_run_are_no_other_run(name: str, tmp_path: Path) -> None:
    """As wandb.save leaves them."""
    put(tmp_path, {"ckpts/step_10.pt": 10, "ckpts/step_20.pt": 20})
    link = tmp_path / "wandb/run-1/files" / name
    link.parent.mkdir(parents=True)
    link.symlink_to("../../../ckpts/step_20.pt")
    assert plan(str(tmp_path)).resume.path == str(tmp_path / "ckpts/step_20.pt")
    link.unlink()
    put(tmp_path, {str(link.relative_to(tmp_path)): 30})
    with pytest.raises(UsageError):
        plan(str(tmp_path))


@pytest.mark.parametrize("told", [True, False])
def test_directories_of_e_and_a_number_are_epochs_where_their_files_tell_them(
    told: bool, tmp_path: Path
) -> None:
    for epoch in (0, 1, 2):
        (tmp_path / f"e{epoch}").mkdir()
        state = {"model": {"w": tensor(epoch)}, "optimizer": adam(10 * epoch + 10)}
        path = tmp_path / f"e{epoch}/state.pt"
        path.write_bytes(saved(state | {"epoch": epoch} if told else state))
        os.utime(path, (1_735_700_000 + 10_000 * epoch,) * 2)
    if told:
        made = plan(str(tmp_path))
        assert made.checkpoint is not None and made.checkpoint.epoch == 2 and not made.warnings
    else:
        with pytest.raises(UsageError):
            plan(str(tmp_path))
