"""Dying gasps beside the regular saves of a job: at one step, and in a job of another size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
import small_files
from told_trees import SETS, Question, change, hold, plant, rewrite, table

from ckpt_tools import Selection, plan
from ckpt_tools.errors import NoneUsable

BATCH = 10


def of_rank(rank: int, epoch: int, step: int) -> bytes:
    return small_files.mindspore(False, rank, epoch_num=epoch, step_num=step, cur_rank=rank, batch_num=BATCH)


def regular(step: int, ranks: Iterable[int]) -> Mapping[str, bytes]:
    """The save at the end of an epoch."""
    epoch = step // BATCH
    return {f"rank_{r}/net-{epoch}_{BATCH}.ckpt": of_rank(r, epoch, step) for r in ranks}


def mindio(step: int, ranks: Iterable[int]) -> Mapping[str, bytes]:
    epoch, inside = (step - 1) // BATCH + 1, (step - 1) % BATCH + 1
    name = f"ttp/tft_saved_checkpoints-step_{step}/rank_{{0}}/ttp_rank_{{0}}-{epoch}_{inside}.ckpt"
    return {name.format(r): of_rank(r, epoch, step) for r in ranks}


def breakpoint_(step: int, ranks: Iterable[int]) -> Mapping[str, bytes]:
    epoch, inside = (step - 1) // BATCH + 1, (step - 1) % BATCH + 1
    return {f"rank_{r}/net-{epoch}_{inside}_breakpoint.ckpt": of_rank(r, epoch, inside) for r in ranks}


def megatron(step: int, ranks: Iterable[int]) -> Mapping[str, bytes]:
    home = f"iter_{step:07d}/mp_rank_{{:02d}}/model_optim_rng_{{}}.pt"
    files = {home.format(r % 2, r): small_files.megatron(step, r, 2, 1, 4) for r in ranks}
    return {**files, "latest_checkpointed_iteration.txt": str(step // 10 * 10).encode()}


SAVES = {"regular": regular, "mindio": mindio, "breakpoint": breakpoint_, "grid": megatron}
RANKS = {"": range(4), "first": [0], "half": [0, 1], "middle": [1, 2], "eight": range(8)}
SETS |= {
    f"{kind}{which}": (lambda n, save=save, ranks=ranks: save(n, ranks))
    for kind, save in SAVES.items()
    for which, ranks in RANKS.items()
}
MADE = {
    "trained": ("planted", "./:regular10@10 ./:regular20@20 ./:regular30@30"),
    "grids": ("planted", "./:grid10@10 ./:grid20@20 ./:grid30@30"),
}
TREES = table(
    """
    trained
        # A regular save goes before a gasp of its step, whenever that was written.
        ./:{mindio,breakpoint}30@{29,30,90} | world_size=4 -> is mindspore periodic step 30
        # A gasp lacks files of ranks whose state others hold, so it does not show that the job had shrunk: no state of
        # a rank stays unread in silence.
        ./:mindiofirst35{,!}@35 | world_size=1 -> exit 2 save/topology-mismatch
        then as it is | world_size=2 -> exit 2 save/groups-needed
        then as it is | world_size=3 -> exit 2 save/groups-needed
        ./:mindiohalf35{,!}@35 | world_size=1 -> exit 2 save/topology-mismatch
        then as it is | world_size=2 -> exit 2 save/topology-mismatch
        then as it is | world_size=3 -> exit 2 save/groups-needed
        ./:{mindio,breakpointfirst,breakpointhalf,breakpoint}35{,!}@35 | world_size=1 -> exit 2 save/topology-mismatch
        then as it is | world_size=2 -> exit 2 save/topology-mismatch
        then as it is | world_size=3 -> exit 2 save/topology-mismatch
        # Who says which ranks hold the same may start a smaller job, but not one that leaves out what others hold.
        ./:mindiohalf35@35 | world_size=2 replica_groups=0,2/1,3
            -> loads ttp/tft_saved_checkpoints-step_35/rank_0/ttp_rank_0-4_5.ckpt ttp/tft_saved_checkpoints-step_35/rank_1/ttp_rank_1-4_5.ckpt
        ./:breakpointhalf35@35 | world_size=2 replica_groups=0,2/1,3
            -> loads rank_0/net-4_5_breakpoint.ckpt rank_1/net-4_5_breakpoint.ckpt
        ./:{mindio,breakpoint}eight35@35 | world_size=4 replica_groups=0,2/1,3 -> exit 2 save/topology-mismatch
    # One that is older by time alone is not passed over in silence: the clock of its node may be behind.
    trained slow
        ./:{mindio,breakpoint}middle33@{23,0} | world_size=4 replica_groups=0,2/1,3 fault_ranks=0
            -> step 30 +mtime-disagrees-with-step
    grids slow
        ./:gridmiddle33@{23,0} | world_size=4 replica_groups=0,2/1,3 fault_ranks=0
            -> iter_0000030 +mtime-disagrees-with-step
    planted slow
        # The job went back to 20 all the same.
        ./:regular10@10 ./:regular20@20 ./:{mindio,breakpoint}middle{31,39}@39 ./:regular30@52 | world_size=4 replica_groups=0,2/1,3
            -> step 30 +mtime-disagrees-with-step
        ./:grid10@10 ./:grid20@20 ./:gridmiddle{31,39}@39 ./:grid30@52 | world_size=4 replica_groups=0,2/1,3
            -> iter_0000030 +mtime-disagrees-with-step
    planted
        # MindIO's tells its step; of a breakpoint file only the epoch and the step in it are known, where no two regular
        # saves tell how many steps an epoch has.
        ./:regularfirst20 ./:mindiofirst24= ./:breakpointfirst25= | world_size=1 -> exit 2 order/times-mute
    """,
    **MADE,
)


@pytest.mark.parametrize(("tree", "asked"), TREES)
def test_which_save_is_loaded_beside_a_gasp(tree: str, asked: list[Question], tmp_path: Path) -> None:
    hold(tree, asked, tmp_path)


@pytest.mark.parametrize("every", [20, 7])
def test_a_regular_save_that_the_save_interval_leaves_out_is_named(every: int, tmp_path: Path) -> None:
    change(tmp_path, f"{MADE['trained'][1]} ./:mindio35!@35")
    made = plan(str(tmp_path), Selection(world_size=4, save_interval=every))
    assert made.checkpoint is not None and made.rollback is not None
    named = [f.message for f in made.warnings if f.code == "passed-over"]
    assert len(named) == (every == 20) and all("--save-interval 20 leaves out step 30" in n for n in named)


def test_where_the_save_interval_leaves_out_all_that_is_usable_that_is_said(tmp_path: Path) -> None:
    plant(tmp_path, "./:regularfirst10 ./:regularfirst20 ./:mindiofirst25!")
    for path in tmp_path.glob("rank_0/*"):
        rewrite(path, lambda data: data.replace(b"step_num", b"some_num"))
    with pytest.raises(NoneUsable, match="save-interval 10 leaves out epoch 2 step 10 and 1 more") as e:
        plan(str(tmp_path), Selection(world_size=1, save_interval=10))
    assert "leave --save-interval out" in e.value.hint
