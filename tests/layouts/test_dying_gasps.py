"""Dying gasps beside the regular saves of a job: at one step, and in a job of another size."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import small_files
import timed

from ckpt_tools import Selection, plan
from ckpt_tools.errors import NoneUsable, UsageError
from ckpt_tools.model.part import Kind

START, RANKS, BATCH = 1_750_000_000, 4, 10
Writer = Callable[[Path, int, int, float], Path]


def put(path: Path, rank: int, epoch: int, step: int, at: float) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    told = {"epoch_num": epoch, "step_num": step, "cur_rank": rank, "batch_num": BATCH}
    path.write_bytes(small_files.mindspore(False, rank, **told))
    os.utime(path, (START + at,) * 2)
    return path


def regular(root: Path, step: int, rank: int, at: float) -> Path:
    """The save at the end of an epoch."""
    return put(root / f"rank_{rank}/net-{step // BATCH}_{BATCH}.ckpt", rank, step // BATCH, step, at)


def mindio(root: Path, step: int, rank: int, at: float) -> Path:
    epoch, inside = (step - 1) // BATCH + 1, (step - 1) % BATCH + 1
    name = f"tft_saved_checkpoints-step_{step}/rank_{rank}/ttp_rank_{rank}-{epoch}_{inside}.ckpt"
    return put(root / "ttp" / name, rank, epoch, step, at)


def breakpoint_(root: Path, step: int, rank: int, at: float) -> Path:
    epoch, inside = (step - 1) // BATCH + 1, (step - 1) % BATCH + 1
    return put(root / f"rank_{rank}/net-{epoch}_{inside}_breakpoint.ckpt", rank, epoch, inside, at)


def megatron(root: Path, step: int, rank: int, at: float) -> Path:
    path = root / f"iter_{step:07d}/mp_rank_{rank % 2:02d}/model_optim_rng_{rank}.pt"
    timed.put(path, small_files.megatron(step, rank, 2, 1, RANKS), START + at)
    (root / "latest_checkpointed_iteration.txt").write_text(str(step // 10 * 10))
    return path


GASPS = pytest.mark.parametrize("gasp", [mindio, breakpoint_], ids=["mindio", "breakpoint"])


def train(root: Path) -> None:
    for step in (10, 20, 30):
        for rank in range(RANKS):
            regular(root, step, rank, 60 * step + rank)


@pytest.mark.parametrize("later", [-60, 0, 1, 60, 3600])
@GASPS
def test_a_regular_save_goes_before_a_gasp_of_its_step_whenever_that_was_written(
    gasp: Writer, later: float, tmp_path: Path
) -> None:
    train(tmp_path)
    for rank in range(RANKS):
        gasp(tmp_path, 30, rank, 60 * 30 + rank + later)
    made = plan(str(tmp_path), Selection(world_size=RANKS))
    assert made.checkpoint is not None
    assert (made.checkpoint.kind, made.checkpoint.step) == (Kind.PERIODIC, 30)


@pytest.mark.parametrize("damaged", [False, True], ids=["sound", "damaged"])
@pytest.mark.parametrize("saved", [range(1), range(2), range(3), range(4)], ids=len)
@GASPS
def test_a_smaller_job_never_leaves_the_state_of_ranks_unread_in_silence(
    gasp: Writer, saved: range, damaged: bool, tmp_path: Path
) -> None:
    """A gasp lacks files of ranks whose state others hold, so it does not show that the job had shrunk."""
    train(tmp_path)
    for rank in saved:
        path = gasp(tmp_path, 35, rank, 60 * 35 + rank)
        if damaged:
            os.truncate(path, 40)
            os.utime(path, (START + 60 * 35 + rank,) * 2)
    for world in range(1, RANKS):
        with pytest.raises(UsageError):
            plan(str(tmp_path), Selection(world_size=world))


@GASPS
def test_groups_that_leave_out_ranks_with_files_do_not_say_what_those_hold(
    gasp: Writer, tmp_path: Path
) -> None:
    train(tmp_path)
    for rank in range(2 * RANKS):
        gasp(tmp_path, 35, rank, 60 * 35 + rank)
    groups = {"": ((0, 2), (1, 3))}
    with pytest.raises(UsageError, match="8 ranks, to be loaded by 4"):
        plan(str(tmp_path), Selection(world_size=RANKS, replica_groups=groups))


@GASPS
def test_who_says_which_ranks_are_alike_may_start_a_smaller_job_from_a_gasp(
    gasp: Writer, tmp_path: Path
) -> None:
    train(tmp_path)
    for rank in range(2):
        gasp(tmp_path, 35, rank, 60 * 35 + rank)
    groups = {"": ((0, 2), (1, 3))}
    made = plan(str(tmp_path), Selection(world_size=2, replica_groups=groups))
    assert made.checkpoint is not None and made.checkpoint.kind is Kind.DYING_GASP
    assert [r.rank for r in made.by_rank] == [0, 1]


ALIKE = {"": ((0, 2), (1, 3))}


@pytest.mark.slow
@pytest.mark.parametrize("early", [600, 3600, 86400])
@pytest.mark.parametrize(
    ("save", "gasp"),
    [(regular, mindio), (regular, breakpoint_), (megatron, megatron)],
    ids=["mindio", "breakpoint", "megatron"],
)
def test_a_gasp_that_is_older_by_time_alone_is_never_passed_over_in_silence(
    save: Writer, gasp: Writer, early: float, tmp_path: Path
) -> None:
    """The clock of the node that wrote it may be behind."""
    for step in (10, 20, 30):
        for rank in range(RANKS):
            save(tmp_path, step, rank, 60 * step + rank)
    for rank in (1, 2):
        gasp(tmp_path, 33, rank, 60 * 33 - early)
    asked = Selection(world_size=RANKS, replica_groups=ALIKE, fault_ranks=frozenset({0}))
    assert "mtime-disagrees-with-step" in {f.code for f in plan(str(tmp_path), asked).warnings}


@pytest.mark.slow
@pytest.mark.parametrize("died", [31, 35, 39])
@pytest.mark.parametrize(
    ("save", "gasp"),
    [(regular, mindio), (regular, breakpoint_), (megatron, megatron)],
    ids=["mindio", "breakpoint", "megatron"],
)
def test_a_gasp_from_before_a_rollback_is_told_of(
    save: Writer, gasp: Writer, died: int, tmp_path: Path
) -> None:
    for step in (10, 20):
        for rank in range(RANKS):
            save(tmp_path, step, rank, 60 * step + rank)
    for rank in (1, 2):
        gasp(tmp_path, died, rank, 60 * died)
    for rank in range(RANKS):  # it went back to 20 all the same
        save(tmp_path, 30, rank, 60 * died + 100 + 60 * 10 + rank)
    made = plan(str(tmp_path), Selection(world_size=RANKS, replica_groups=ALIKE))
    assert made.checkpoint is not None and made.checkpoint.kind is Kind.PERIODIC
    assert "mtime-disagrees-with-step" in {f.code for f in made.warnings}


def two_gasps(root: Path, at: float | None) -> None:
    """MindIO's tells its step; of a breakpoint file only the epoch and the step in it are known, where no two
    regular saves tell how many steps an epoch has.
    """
    regular(root, 20, 0, 60 * 20)
    mindio(root, 24, 0, 60 * 24)
    breakpoint_(root, 25, 0, 60 * 25)
    for file in root.rglob("*.ckpt") if at is not None else ():
        os.utime(file, (at, at))


@pytest.mark.parametrize("at", [0, START])
def test_a_gasp_of_which_nothing_tells_the_step_is_asked_about_where_times_were_lost(
    at: float, tmp_path: Path
) -> None:
    two_gasps(tmp_path, at)
    with pytest.raises(UsageError, match=r"which checkpoint is the newest.*epoch 3 step 5"):
        plan(str(tmp_path), Selection(world_size=1))


@pytest.mark.parametrize("every", [20, 7])
def test_a_regular_save_that_the_save_interval_leaves_out_is_named(every: int, tmp_path: Path) -> None:
    train(tmp_path)
    for rank in range(RANKS):
        os.truncate(path := mindio(tmp_path, 35, rank, 60 * 35 + rank), 40)
        os.utime(path, (START + 60 * 35 + rank,) * 2)
    made = plan(str(tmp_path), Selection(world_size=RANKS, save_interval=every))
    assert made.checkpoint is not None and made.rollback is not None
    named = [f.message for f in made.warnings if f.code == "passed-over"]
    assert len(named) == (every == 20) and all("--save-interval 20 leaves out step 30" in n for n in named)


def test_where_the_save_interval_leaves_out_all_that_is_usable_that_is_said(tmp_path: Path) -> None:
    for step in (10, 20):
        path = regular(tmp_path, step, 0, 60 * step)
        timed.put(
            path,
            small_files.mindspore(False, 0, step_num=step).replace(b"step_num", b"some_num"),
            START + 60 * step,
        )
    os.truncate(path := mindio(tmp_path, 25, 0, 60 * 25), 40)
    os.utime(path, (START + 60 * 25,) * 2)
    with pytest.raises(NoneUsable, match="save-interval 10 leaves out epoch 2 step 10 and 1 more") as e:
        plan(str(tmp_path), Selection(world_size=1, save_interval=10))
    assert "leave --save-interval out" in e.value.hint
