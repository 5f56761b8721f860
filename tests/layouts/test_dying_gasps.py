"""Dying gasps beside the regular saves of a job: at one step, and in a job of another size."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
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
    told = {"epoch_num": epoch, "step_num": step, "cur_rank": rank, "batch_num": BATCH}
    return timed.put(path, small_files.mindspore(False, rank, **told), START + at)


def cut(path: Path, at: float) -> None:
    timed.put(path, path.read_bytes()[:40], START + at)


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


def train(root: Path, save: Writer = regular, steps: Sequence[int] = (10, 20, 30)) -> None:
    for step in steps:
        for rank in range(RANKS):
            save(root, step, rank, 60 * step + rank)


@pytest.mark.parametrize("later", [-60, 0, 3600])
@GASPS
def test_a_regular_save_goes_before_a_gasp_of_its_step_whenever_that_was_written(
    gasp: Writer, later: float, tmp_path: Path
) -> None:
    train(tmp_path)
    for rank in range(RANKS):
        gasp(tmp_path, 30, rank, 60 * 30 + rank + later)
    made = plan(str(tmp_path), Selection(world_size=RANKS))
    assert made.checkpoint and (made.checkpoint.kind, made.checkpoint.step) == (Kind.PERIODIC, 30)


@pytest.mark.parametrize("damaged", [False, True], ids=["sound", "damaged"])
@pytest.mark.parametrize("saved", [1, 2, 4])
@GASPS
def test_a_smaller_job_never_leaves_the_state_of_ranks_unread_in_silence(
    gasp: Writer, saved: int, damaged: bool, tmp_path: Path
) -> None:
    """A gasp lacks files of ranks whose state others hold, so it does not show that the job had shrunk."""
    train(tmp_path)
    for rank in range(saved):
        path = gasp(tmp_path, 35, rank, 60 * 35 + rank)
        if damaged:
            cut(path, 60 * 35 + rank)
    for world in range(1, RANKS):
        with pytest.raises(UsageError):
            plan(str(tmp_path), Selection(world_size=world))


@GASPS
def test_groups_that_leave_out_ranks_with_files_do_not_say_what_those_hold(
    gasp: Writer, tmp_path: Path
) -> None:
    train(tmp_path)
    for rank in range(2):
        gasp(tmp_path, 35, rank, 60 * 35 + rank)
    made = plan(
        str(tmp_path), Selection(world_size=2, replica_groups=ALIKE)
    )  # who says so may start a smaller job
    assert made.checkpoint is not None and made.checkpoint.kind is Kind.DYING_GASP
    assert [r.rank for r in made.by_rank] == [0, 1]
    for rank in range(2 * RANKS):
        gasp(tmp_path, 35, rank, 60 * 35 + rank)
    with pytest.raises(UsageError, match="8 ranks, to be loaded by 4"):
        plan(str(tmp_path), Selection(world_size=RANKS, replica_groups=ALIKE))


ALIKE = {"": ((0, 2), (1, 3))}
PAIRS = pytest.mark.parametrize(
    ("save", "gasp"),
    [(regular, mindio), (regular, breakpoint_), (megatron, megatron)],
    ids=["mindio", "breakpoint", "megatron"],
)


@pytest.mark.slow
@pytest.mark.parametrize("early", [600, 86400])
@PAIRS
def test_a_gasp_that_is_older_by_time_alone_is_never_passed_over_in_silence(
    save: Writer, gasp: Writer, early: float, tmp_path: Path
) -> None:
    """The clock of the node that wrote it may be behind."""
    train(tmp_path, save)
    for rank in (1, 2):
        gasp(tmp_path, 33, rank, 60 * 33 - early)
    asked = Selection(world_size=RANKS, replica_groups=ALIKE, fault_ranks=frozenset({0}))
    assert "mtime-disagrees-with-step" in {f.code for f in plan(str(tmp_path), asked).warnings}


@pytest.mark.slow
@pytest.mark.parametrize("died", [31, 39])
@PAIRS
def test_a_gasp_from_before_a_rollback_is_told_of(
    save: Writer, gasp: Writer, died: int, tmp_path: Path
) -> None:
    train(tmp_path, save, (10, 20))
    for rank in (1, 2):
        gasp(tmp_path, died, rank, 60 * died)
    for rank in range(RANKS):  # it went back to 20 all the same
        save(tmp_path, 30, rank, 60 * died + 100 + 60 * 10 + rank)
    made = plan(str(tmp_path), Selection(world_size=RANKS, replica_groups=ALIKE))
    assert made.checkpoint is not None and made.checkpoint.kind is Kind.PERIODIC
    assert "mtime-disagrees-with-step" in {f.code for f in made.warnings}


@pytest.mark.parametrize("at", [0, START])
def test_a_gasp_of_which_nothing_tells_the_step_is_asked_about_where_times_were_lost(
    at: float, tmp_path: Path
) -> None:
    """MindIO's tells its step; of a breakpoint file only the epoch and the step in it are known, where no two
    regular saves tell how many steps an epoch has.
    """
    for write, step in ((regular, 20), (mindio, 24), (breakpoint_, 25)):
        os.utime(write(tmp_path, step, 0, 60 * step), (at, at))
    with pytest.raises(UsageError, match=r"which checkpoint is the newest.*epoch 3 step 5"):
        plan(str(tmp_path), Selection(world_size=1))


@pytest.mark.parametrize("every", [20, 7])
def test_a_regular_save_that_the_save_interval_leaves_out_is_named(every: int, tmp_path: Path) -> None:
    train(tmp_path)
    for rank in range(RANKS):
        cut(mindio(tmp_path, 35, rank, 0), 60 * 35 + rank)
    made = plan(str(tmp_path), Selection(world_size=RANKS, save_interval=every))
    assert made.checkpoint is not None and made.rollback is not None
    named = [f.message for f in made.warnings if f.code == "passed-over"]
    assert len(named) == (every == 20) and all("--save-interval 20 leaves out step 30" in n for n in named)


def test_where_the_save_interval_leaves_out_all_that_is_usable_that_is_said(tmp_path: Path) -> None:
    for step in (10, 20):
        data = small_files.mindspore(False, 0, step_num=step).replace(b"step_num", b"some_num")
        timed.put(regular(tmp_path, step, 0, 0), data, START + 60 * step)
    cut(mindio(tmp_path, 25, 0, 0), 60 * 25)
    with pytest.raises(NoneUsable, match="save-interval 10 leaves out epoch 2 step 10 and 1 more") as e:
        plan(str(tmp_path), Selection(world_size=1, save_interval=10))
    assert "leave --save-interval out" in e.value.hint
