"""Files of several runs, or of the parts of one save, side by side under names of the user's own: none of them
is taken for a later save of another.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from places import LAYOUT_TREES
from small_files import adam, saved, tensor

from ckpt_tools.api import plan
from ckpt_tools.errors import UsageError
from ckpt_tools.model.selection import Selection

START_NS = 1_700_000_000_000_000_000
HOUR = 3600.0


def written(root: Path, names: list[str], every: float, **told: list[int]) -> None:
    """Whole training states, one every so many seconds; ``told``: what each says inside."""
    for i, name in enumerate(names):
        inside = {key: values[i] for key, values in told.items()}
        (root / name).write_bytes(
            saved({"model": {"w": tensor(i)}, "optimizer": adam(47 if every < 1 else 40 + i), **inside})
        )
        at = START_NS + int(i * every * 1e9)
        os.utime(root / name, ns=(at, at))


def chosen(root: Path) -> str | None:
    """The file that is resumed from; None where the user is asked."""
    try:
        made = plan(str(root), Selection(settle=0))
    except UsageError:
        return None
    assert made.checkpoint is not None
    return os.path.basename(made.checkpoint.path)


@pytest.mark.parametrize(
    "names",
    [
        "cifar_checkpoint.pth.tar imagenet_checkpoint.pth.tar",
        "resnet_last.pt vit_last.pt",
        "pretrain.pt finetune.pt",
        "ckpt_fold0.pt ckpt_fold1.pt",
        "best_model_seed1.pt best_model_seed2.pt",
        "run7.pt run9.pt",
    ],
)
def test_states_that_several_runs_write_over_are_asked_about(names: str, tmp_path: Path) -> None:
    written(tmp_path, names.split(), HOUR, epoch=[3, 7])
    assert chosen(tmp_path) is None


@pytest.mark.parametrize("names", ["resnet_100.pt resnet_200.pt vit_last.pt"])
def test_a_last_or_best_of_another_name_is_of_another_run(names: str, tmp_path: Path) -> None:
    steps = [100, 200, 500][: len(names.split())]
    written(tmp_path, names.split(), HOUR, step=steps)
    assert chosen(tmp_path) is None


@pytest.mark.parametrize(
    ("names", "newest"),
    [
        ("ckpt_prev.pt ckpt.pt", "ckpt.pt"),
        ("checkpoint_prev1.ckpt checkpoint_prev0.ckpt checkpoint.ckpt", "checkpoint.ckpt"),
        ("latest.pt emergency.pt", "emergency.pt"),
        ("stage1.pt stage2.pt", "stage2.pt"),
        ("resnet_last.pt resnet_interrupted.pt", "resnet_interrupted.pt"),
        ("model_e1.pt model_e2.pt", "model_e2.pt"),
    ],
)
def test_one_run_may_use_several_names(names: str, newest: str, tmp_path: Path) -> None:
    written(tmp_path, names.split(), HOUR, **({"epoch": [3, 7]} if len(names.split()) == 2 else {}))
    assert chosen(tmp_path) == newest


@pytest.mark.parametrize("names", ["encoder_last.pt classifier_last.pt", "online.pt target.pt"])
def test_half_of_what_was_saved_together_is_never_loaded(names: str, tmp_path: Path) -> None:
    written(tmp_path, names.split(), 0.1)
    assert chosen(tmp_path) is None


@pytest.mark.parametrize("name", ["agent_{}.pt", "agent{}.pt", "net{}.pth", "layer_{}.pt", "client_{}.pt"])
def test_what_is_counted_and_saved_at_once_may_be_parts_of_one_save(name: str, tmp_path: Path) -> None:
    written(tmp_path, [name.format(i) for i in range(3)], 0.1)
    assert chosen(tmp_path) is None


@pytest.mark.parametrize("name", ["ensemble_{}.pt", "member{}.pt", "model_{}.pth"])
def test_what_was_trained_as_far_as_its_neighbours_is_no_later_save(name: str, tmp_path: Path) -> None:
    written(tmp_path, [name.format(i) for i in range(3)], HOUR, epoch=[9, 9, 9])
    assert chosen(tmp_path) is None


@pytest.mark.parametrize(
    "names",
    [
        ["BPR-Nov-01-2026_10-00-00.pth", "BPR-Nov-02-2026_10-00-00.pth"],  # RecBole
        ["model_2026-11-01.pt", "model_2026-11-02.pt"],
        ["resnet_20261101_100000.pt", "resnet_20261102_100000.pt"],
        ["net_lr0.1_bs32.pt", "net_lr0.2_bs32.pt"],
        ["step_200_loss_0.47.pt", "step_200_loss_0.51.pt"],
    ],
)
def test_of_two_that_were_trained_as_far_neither_is_taken_unasked(names: list[str], tmp_path: Path) -> None:
    written(tmp_path, names, HOUR, epoch=[3, 3])
    assert chosen(tmp_path) is None


@pytest.mark.parametrize(
    ("every", "told"),
    [
        (0.1, {"epoch": [0, 1, 2]}),  # copied, and each tells its number
        (0.1, {"step": [0, 1, 2]}),
        (0.1, {"step": [500, 1000, 1500]}),  # copied, and no parts of a save are so far apart
        (HOUR, {}),
        (HOUR, {"epoch": [0, 0, 0], "step": [500, 1000, 1500]}),
        (HOUR, {"epoch": [9, 19, 29]}),
    ],
)
def test_a_number_that_grows_with_training_is_the_later_save(
    every: float, told: dict[str, list[int]], tmp_path: Path
) -> None:
    written(tmp_path, [f"model_{i}.pt" for i in range(3)], every, **told)
    assert chosen(tmp_path) == "model_2.pt"


@pytest.mark.parametrize(
    "names", ["last_model.pth trainer.pth", "model_latest.pt optim.pt", "last.pt opt.pt"]
)
@pytest.mark.parametrize("best", ["best_model.pth", None])
def test_an_optimizer_beside_the_last_model_is_of_its_save(
    names: str, best: str | None, tmp_path: Path
) -> None:
    """NequIP's ``trainer.pth``."""
    model, optimizer = names.split()
    held = {model: {"w": tensor(1)}, optimizer: {"optimizer": adam(40), "epoch": 3}}
    for name, state in (held if best is None else {**held, best: {"w": tensor(0)}}).items():
        (tmp_path / name).write_bytes(saved(state))
        os.utime(tmp_path / name, ns=(START_NS,) * 2)
    assert {os.path.basename(f.path) for f in plan(str(tmp_path), Selection(settle=0)).shared} == set(held)


def test_a_number_that_counts_saves_keeps_the_files_of_each_together(tmp_path: Path) -> None:
    for i in range(3):
        model = {"model": {"w": tensor(i)}, "epoch": 0, "step": 500 * (i + 1)}
        for name, held in ((f"model_{i}.pt", model), (f"optimizer_{i}.pt", adam(40 + i))):
            (tmp_path / name).write_bytes(saved(held))
            os.utime(tmp_path / name, ns=(START_NS + i * 3_600_000_000_000,) * 2)
    made = plan(str(tmp_path), Selection(settle=0))
    assert made.resume_step == 1500
    assert {os.path.basename(f.path) for f in made.shared} | {
        os.path.basename(f.path) for r in made.by_rank for f in r.files
    } == {"model_2.pt", "optimizer_2.pt"}


def test_a_copy_in_place_of_the_link_to_the_newest_tells_which_that_is(tmp_path: Path) -> None:
    """``cp -rL`` of Composer's, in whatever order the files are copied."""
    tree = LAYOUT_TREES / "composer/kept/tree"
    names = ["ep4-ba16-rank0.pt", "latest-rank0.pt", "ep3-ba15-rank0.pt"]
    for i, name in enumerate(names):
        shutil.copyfile(tree / name, tmp_path / name)
        os.utime(tmp_path / name, ns=(START_NS + i * 1_000_000,) * 2)
    assert plan(str(tmp_path), Selection(settle=0)).resume_step == 16


def test_a_tar_that_is_called_a_number_is_a_save_where_torch_wrote_it(tmp_path: Path) -> None:
    written(tmp_path, ["001000.tar", "002000.tar"], HOUR, global_step=[1000, 2000])
    assert chosen(tmp_path) == "002000.tar"


def saved_in(root: Path, source: str, names: list[str]) -> None:
    """Directories of one framework, hours apart."""
    for i, name in enumerate(names):
        place = shutil.copytree(LAYOUT_TREES / source, root / name)
        for path in place.rglob("*"):
            os.utime(path, (1_700_000_000 + 7200 * i,) * 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [
        "resnet vit",
        "exp1 exp2",
        "seed_1 seed_2",
        "vit last resnet",
        "vit_10 vit_20 resnet_5",
        "vit_5 resnet_9",
    ],
)
@pytest.mark.parametrize("source", ["dcp/two/tree/step-20", "deepspeed/zero1/tree/global_step8"])
def test_directories_that_several_runs_write_over_are_asked_about(
    source: str, names: str, tmp_path: Path
) -> None:
    saved_in(tmp_path, source, names.split())
    assert chosen(tmp_path) is None
    assert plan(str(tmp_path / names.split(maxsplit=1)[0]), Selection(settle=0)).checkpoint is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    "names", ["last interrupted", "best last", "slot_a slot_b", "save1 save2", "20-abce 30-fade"]
)
def test_one_run_may_write_over_several_directories(names: str, tmp_path: Path) -> None:
    saved_in(tmp_path, "dcp/two/tree/step-20", names.split())
    assert chosen(tmp_path) is not None


def test_the_tracker_tells_which_directory_is_meant(tmp_path: Path) -> None:
    saved_in(tmp_path, "deepspeed/zero1/tree/global_step8", ["warmup", "annealed"])
    (tmp_path / "latest").write_text("annealed")
    assert chosen(tmp_path) == "annealed"
