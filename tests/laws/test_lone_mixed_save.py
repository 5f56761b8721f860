"""A save that is alone, and one of whose files is of another step: there is nothing to compare it with but
the files beside it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import small_files
from described_layouts import described_tree, put

from ckpt_tools import errors
from ckpt_tools.api import plan, verify
from ckpt_tools.model.finding import Verdict

AT = 1_760_000_000


@pytest.mark.parametrize("layout", ["megatron", "ascend", "mindspore", "mindio"])
def test_a_file_of_another_step_is_not_loaded_with_the_others(layout: str, tmp_path: Path) -> None:
    """Every file of these tells its step; of two that disagree nobody knows which is the other save's."""
    saves = described_tree(layout, tmp_path / "all", several=True)
    regular = [s for s in saves if not s.dying]
    older, newest = regular[0].files, regular[-1].files
    assert len(newest) > 1
    for at, f in enumerate(newest):
        root = tmp_path / "one"
        for i, other in enumerate(newest):
            put(root / other.path, older[i].data if i == at else other.data, AT)
        assert verify(str(root)).verdict is Verdict.BROKEN, f.path
        try:
            made = plan(str(root))
        except errors.NoneUsable:
            pass
        else:  # of one that has replicas
            assert not any(load.path.endswith(f.path) for rank in made.by_rank for load in rank.files)
        shutil.rmtree(root)


@pytest.mark.parametrize("epoch", [1, 3])
def test_files_of_dying_ranks_that_count_differently_are_not_loaded(epoch: int, tmp_path: Path) -> None:
    """A breakpoint file counts from the start of the run or of its epoch, which in the first is the same."""
    for counted, expected in (((38, 38), Verdict.OK), ((30, 38), Verdict.BROKEN)):
        for rank, step in enumerate(counted):
            data = small_files.mindspore(True, rank, epoch_num=epoch, step_num=step)
            put(tmp_path / f"rank_{rank}" / f"net-{epoch}_38_breakpoint.ckpt", data, AT)
        assert verify(str(tmp_path)).verdict is expected
    with pytest.raises(errors.NoneUsable):
        plan(str(tmp_path))


def _rated(home: Path, optimizer: float, schedule: float, step: int = 20) -> None:
    """A save of the Trainer, whose optimizer has one learning rate, and whose schedule has set one."""
    state = small_files.adam(step)
    state["param_groups"][0]["lr"] = optimizer
    counted = {"base_lrs": [0.1], "last_epoch": step, "_step_count": step + 1, "_last_lr": [schedule]}
    files = {"optimizer.pt": small_files.saved(state), "scheduler.pt": small_files.saved(counted)}
    for name, data in {**small_files.trainer(step), **files}.items():
        put(home / f"checkpoint-{step}" / name, data, AT + step)


@pytest.mark.parametrize(("taken", "found"), [(20, []), (10, ["step-mismatch"]), (17, [])])
def test_an_optimizer_and_its_schedule_are_not_those_of_the_save_before(
    taken: int, found: list[str], tmp_path: Path
) -> None:
    """Of both the Trainer tells how many steps they have taken; what a scaler of gradients skips is few."""
    _rated(tmp_path, 0.07, 0.07)
    home = tmp_path / "checkpoint-20"
    state = json.loads((home / "trainer_state.json").read_text())
    put(home / "trainer_state.json", json.dumps(state | {"save_steps": 10}, indent=2).encode() + b"\n", AT)
    put(home / "optimizer.pt", small_files.saved(small_files.adam(taken)), AT)
    put(home / "scheduler.pt", small_files.saved({"last_epoch": taken, "_last_lr": [0.001]}), AT)
    assert [f.code for f in plan(str(tmp_path)).warnings] == found


@pytest.mark.parametrize(
    ("taken", "set_at", "more", "found"),
    [
        (20, 10, {}, ["scheduler.pt"]),
        (10, 20, {}, ["optimizer.pt"]),
        (20, 17, {}, []),  # of no save
        (20, 2, {"num_bad_epochs": 0}, []),
        (20, 10, {"num_bad_epochs": 0}, []),  # it counts evaluations
    ],
)
def test_one_of_them_alone_is_not_that_of_the_save_before(
    taken: int, set_at: int, more: dict[str, int], found: list[str], tmp_path: Path
) -> None:
    _rated(tmp_path, 0.07, 0.07)
    home = tmp_path / "checkpoint-20"
    state = json.loads((home / "trainer_state.json").read_text())
    put(home / "trainer_state.json", json.dumps(state | {"save_steps": 10}, indent=2).encode() + b"\n", AT)
    put(home / "optimizer.pt", small_files.saved(small_files.adam(taken)), AT)
    put(home / "scheduler.pt", small_files.saved({"last_epoch": set_at, "_last_lr": [0.001], **more}), AT)
    warnings = plan(str(tmp_path)).warnings
    assert [f.path for f in warnings if f.code == "step-mismatch"] == [str(home / name) for name in found]


@pytest.mark.parametrize("form", ["step_{}/{}.pt", "{1}_{0}.pt"], ids=["directories", "files"])
@pytest.mark.parametrize(
    ("optimizer", "scheduler", "found"),
    [
        (50, 50, []),
        (20, 50, ["optimizer"]),
        (50, 20, ["scheduler"]),
        (10, 10, []),  # begun anew at 40
        (50, 7, []),  # a schedule of a new phase of training
    ],
)
def test_a_counter_behind_that_of_an_older_save_is_of_one_that_is_gone(
    optimizer: int, scheduler: int, found: list[str], form: str, tmp_path: Path
) -> None:
    for step, counts in ((40, (40, 40)), (50, (optimizer, scheduler))):
        held = {
            "model": small_files.saved({"w": small_files.tensor(step)}),
            "optimizer": small_files.saved(small_files.adam(counts[0])),
            "scheduler": small_files.saved({"last_epoch": counts[1], "_last_lr": [0.001]}),
        }
        for name, data in held.items():
            put(tmp_path / form.format(step, name), data, AT + 60 * step)
    made = plan(str(tmp_path))
    assert made.resume_step == 50
    expected = [("step-mismatch", str(tmp_path / form.format(50, name))) for name in found]
    assert [(f.code, f.path) for f in made.warnings] == expected


@pytest.mark.parametrize("now", [0.1, 0.07], ids=["constant", "moved on"])
@pytest.mark.parametrize("beside", ["", "scheduler.bin", "custom_checkpoint_0.pkl"])
@pytest.mark.parametrize("steps", [(20,), (10, 20)], ids=["alone", "two"])
def test_an_optimizer_that_a_schedule_has_driven_has_one_beside_it(
    steps: tuple[int, ...], now: float, beside: str, tmp_path: Path
) -> None:
    """The optimizer notes the rate with which the schedule began; without that file it would begin again. A
    loop that never saves one makes it anew by itself.
    """
    for step in steps:
        state = small_files.adam(step)
        state["param_groups"][0] |= {
            "lr": now - step / 1000,
            "initial_lr": 0.1 if now < 0.1 else now - step / 1000,
        }
        names = ["model.safetensors", "optimizer.bin", *([beside] if beside else []), "random_states_0.pkl"]
        held = {"model.safetensors": small_files.trainer(step)["model.safetensors"]}
        held |= {
            "optimizer.bin": small_files.saved(state),
            "random_states_0.pkl": small_files.saved({"n": step}),
        }
        schedule = small_files.saved({"last_epoch": step, "_last_lr": [now - step / 1000]})
        for n, name in enumerate(names):
            put(tmp_path / f"step_{step}" / name, held.get(name, schedule), AT + 60 * step + n)
    expected = [] if beside or now == 0.1 or len(steps) > 1 else ["missing-part"]
    assert [f.code for f in plan(str(tmp_path)).warnings] == expected
    assert verify(str(tmp_path)).verdict is (Verdict.SUSPECT if expected else Verdict.OK)
