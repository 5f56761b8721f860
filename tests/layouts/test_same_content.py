"""The rule pair/same-content: a file copied over that of another step or rank, and what looks like it but is
none. Times say nothing.
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch.distributed.checkpoint as saver
from fixture_trees import overwrite, tree_of
from safetensors.torch import save as safetensors_save
from shards import DAY, copy, numbers, optimizer, put, shard
from small_files import dcp, saved, trainer
from told_trees import Made, Question, flipped, hold, table

from ckpt_tools.api import plan, verify
from ckpt_tools.errors import UsageError
from ckpt_tools.model.selection import Selection

Found = set[tuple[str, str]]


def states(
    tree: Path,
    steps: Sequence[int],
    of: Callable[[int, int], tuple[int, ...]] = lambda step, rank: (step, rank),
    world: int = 2,
) -> Path:
    """DLRover's file of every rank: nothing in it but its place tells the step."""
    for step in steps:
        for rank in range(world):
            put(tree / str(step) / f"rank_{rank}.pt", saved({"model": {"w": numbers(*of(step, rank))}}), step)
    put(tree / "dlrover_latest.txt", str(steps[-1]).encode(), steps[-1] + 1)
    return tree


def trained(tree: Path, steps: Sequence[int]) -> Path:
    """The Trainer's checkpoints: safetensors has no checksum, the optimizer counts its steps."""
    for step in steps:
        for name, data in trainer(step).items():
            put(tree / f"checkpoint-{step}" / name, data, step)
    return tree


def found(tree: Path) -> Found:
    """(path below the tree, severity) of the findings of copies."""
    rows = ((row.report.path, f) for row in verify([str(tree)]).files for f in row.report.findings)
    return {(os.path.relpath(path, tree), str(f.severity)) for path, f in rows if f.code == "same-content"}


TWO, THREE = (10, 20), (10, 20, 30)


def scaled(tree: Path, steps: Sequence[int] = THREE) -> Path:
    """The Trainer's, whose model is another one at each step."""
    trained(tree, steps)
    for step in steps:
        data = safetensors_save({"w": numbers(step)}, {"format": "pt"})
        put(tree / f"checkpoint-{step}" / "model.safetensors", data, step)
    return tree


def followed(tree: Path) -> Path:
    """A target network is what the trained one was at the save before."""
    for i, step in enumerate((10, 20, 30, 40)):
        for rank, seed in enumerate((step, (step - 10) if i else 1)):
            put(tree / str(step) / f"rank_{rank}.pt", saved({"model": {"w": numbers(seed)}}), step)
    return tree


def with_best(tree: Path) -> Path:
    for step in THREE:
        put(tree / f"model_{step}.pt", saved({"w": numbers(step)}), step)
    put(tree / "best.pt", (tree / "model_20.pt").read_bytes(), 40)
    return tree


MADE: dict[str, Made] = {
    "shards-2": lambda tree: shard(tree, TWO),
    "shards-3": lambda tree: shard(tree, THREE),
    "shards-alike": lambda tree: shard(tree, THREE, lambda step, rank: (step,)),
    "ranks-1": lambda tree: states(tree, (10,)),
    "ranks-2": lambda tree: states(tree, TWO),
    "ranks-3": lambda tree: states(tree, THREE),
    "ranks-12": lambda tree: states(tree, range(10, 130, 10)),
    "replicas-2": lambda tree: states(tree, THREE, lambda step, rank: (step, 0)),
    "replicas-4": lambda tree: states(tree, THREE, lambda step, rank: (step, rank % 2), 4),
    "frozen": lambda tree: states(tree, THREE, lambda step, rank: (1, rank)),
    "frozen-rank": lambda tree: states(tree, THREE, lambda step, rank: (step if rank else 1, rank)),
    "trainer-2": lambda tree: scaled(tree, TWO),
    "trainer-3": scaled,
    "followed": followed,
    "best": with_best,
}
TREES = table(
    """
    # --- Over the file of another step: either may have been overwritten, and nobody knows which.
    shards-2 slow
        cp iter_0000010/mp_rank_01/distrib_optim.pt iter_0000020/
            -> exit 2 pair/same-content => broken same-content
        then as it is | max_step=15 -> exit 2 pair/same-content
        then as it is | max_step=10 -> iter_0000010 ~same-content
        then as it is | level=structure -> iter_0000020
    shards-3 slow
        # The newer of the two loses anyway; what is left may hold another step's optimizer.
        cp iter_0000030/mp_rank_01/distrib_optim.pt iter_0000020/;
            cut iter_0000030/mp_rank_00/model_optim_rng.pt -> exit 2 pair/same-content
        then as it is | max_step=10 -> iter_0000010
        then as it is | max_step=20 -> iter_0000020 ~same-content
        # Other checkpoints of the run are witnesses even when they are hidden.
        cp iter_0000010/mp_rank_00/distrib_optim.pt iter_0000020/ -> iter_0000030
        then as it is | max_step=10 -> iter_0000010 ~same-content
        then as it is | max_step=30 -> iter_0000030
        then as it is | max_step=25 -> exit 2 pair/same-content
    ranks-2 slow
        # With two saves nobody knows whether a rank's part of the model is trained at all: so it is said.
        cp 10/rank_1.pt 20/ -> 20 +same-content +world-size-inferred => suspect same-content
        # Another rank's: one other save may have begun differently by chance, two are enough to know.
        cp 20/rank_0.pt 20/rank_1.pt -> 20 +same-content +world-size-inferred => suspect same-content
    ranks-3 slow
        cp 20/rank_1.pt 30/ -> exit 2 pair/same-content => broken same-content
        then as it is | max_step=20 -> 20 +world-size-inferred ~same-content
        cp 30/rank_0.pt 30/rank_1.pt
            -> 20 -missing-rank -same-content +dangling-tracker +world-size-inferred => broken same-content
    ranks-1
        cp 10/rank_0.pt 10/rank_1.pt -> 10 +world-size-inferred => ok   # nothing to compare with
    shards-3 slow
        cp iter_0000030/mp_rank_00/distrib_optim.pt iter_0000030/mp_rank_01/distrib_optim.pt
            -> iter_0000020 -missing-rank -same-content +dangling-tracker => broken same-content
    ranks-12 slow
        # All checkpoints of the run are compared, not the next ones alone.
        cp 10/rank_1.pt 120/ -> exit 2 pair/same-content
        then as it is | max_step=110 -> 110 +world-size-inferred
        cp 10/rank_0.pt 120/rank_1.pt -> exit 2 pair/same-content
    trainer-2 slow
        # The optimizer moved on, and there is nothing else that it could have changed.
        as it is -> checkpoint-20 => ok
        # Where a counter tells, the copy is what is wrong, and the other, which is sound, is not called so.
        cp checkpoint-10/{optimizer.pt,scheduler.pt,trainer_state.json} checkpoint-20/
            -> checkpoint-10 -step-mismatch => broken step-mismatch
        cp checkpoint-20/{optimizer.pt,scheduler.pt,trainer_state.json} checkpoint-10/
            -> checkpoint-20 => broken step-mismatch
        cp checkpoint-10/model.safetensors checkpoint-20/ -> exit 2 pair/same-content => broken same-content
    trainer-3 slow
        cp checkpoint-20/{optimizer.pt,scheduler.pt,trainer_state.json} checkpoint-30/
            -> checkpoint-20 -step-mismatch => broken step-mismatch
        cp checkpoint-20/model.safetensors checkpoint-30/ -> exit 2 pair/same-content => broken same-content
        # A frozen model is saved once more because a framework saves everything: an adapter is what is trained.
        cp checkpoint-10/model.safetensors checkpoint-20/; cp checkpoint-10/model.safetensors checkpoint-30/
            -> checkpoint-30
    planted
        # A file of another step in a directory whose name tells none: another file there tells the step.
        step-10/:dcp step-20/:dcp step-30/:dcp30; cp step-20/__0_1.distcp step-30/__0_1.distcp
            -> exit 2 pair/same-content
        step-10/:dcp step-20/:dcp good/:dcp30; cp step-20/__0_1.distcp good/__0_1.distcp -> exit 2 pair/same-content
        step-10/:dcp step-20/:dcp step-30-ok/:dcp30; cp step-20/__0_1.distcp step-30-ok/__0_1.distcp
            -> exit 2 pair/same-content
    # --- What is no copy
    followed slow
        as it is -> 40 +world-size-inferred
    best slow
        as it is -> model_30.pt => ok
        then cp model_20.pt model_30.pt -> exit 2 pair/same-content
        then as it is | max_step=20 -> model_20.pt ~same-content
    replicas-2 slow
        as it is -> 30 +world-size-inferred => ok
    replicas-4 slow
        as it is -> 30 +world-size-inferred => ok
    shards-alike
        as it is -> iter_0000030 => ok
    frozen slow
        as it is -> 30 +world-size-inferred => ok
    frozen-rank
        as it is -> 30 +world-size-inferred => ok
    shards-2
        # Damaged files are damaged and no copies.
        zero iter_00000*/mp_rank_01/distrib_optim.pt
            -> exit 4 choice/none-usable -missing-rank -zero-filled => broken zero-filled
        # A hard link was meant.
        rm iter_0000020/mp_rank_01/distrib_optim.pt; hl iter_0000010/mp_rank_01/distrib_optim.pt iter_0000020/
            -> iter_0000020 => ok
    accelerate/epoch_last slow
        as it is -> epoch_0
        cp step_30/model.safetensors epoch_0/ -> exit 2 pair/same-content
        cp step_30/scheduler.bin epoch_0/ -> step_30 -step-mismatch
    accelerate/both_names slow
        # Nothing says that training moved on between step_32 and epoch_1, until their models differ.
        as it is -> epoch_1 => ok
        flip epoch_1/model.safetensors -4 -> exit 2 pair/same-content => broken same-content
    """,
    **MADE,
)


@pytest.mark.parametrize(("tree", "asked"), TREES)
def test_what_is_answered_about_a_copy(tree: str | Made, asked: list[Question], tmp_path: Path) -> None:
    hold(tree, asked, tmp_path)


@pytest.mark.slow
def test_each_answer_that_is_offered_leads_on(tmp_path: Path) -> None:
    """Either may have been overwritten: to go back would lose training for nothing, or load the very copy."""
    tree = shard(tmp_path, TWO)
    older, newer = optimizer(10, 1), optimizer(20, 1)
    os.utime(tree / older, (DAY + 11, DAY + 11))  # ranks do not finish in the same second
    copy(tree, newer, older)
    assert found(tree) == {(newer, "error"), (older, "note")}
    with pytest.raises(UsageError) as e:
        plan(str(tree))
    assert f"{older} and {newer} are byte for byte the same" in str(e.value)
    assert "restore whichever is the copy" in e.value.hint
    offered = dict(re.findall(r"(--max-step|--exclude) (\S+) ", e.value.hint))
    for asked, step in (
        (Selection(max_step=int(offered["--max-step"])), 10),
        (Selection(exclude=(offered["--exclude"],)), 20),
    ):
        made = plan(str(tree), asked)
        told = "same-content" in {f.code for f in made.warnings}
        assert (made.resume_step, told) == (step, step == 10)


def test_equal_pages_are_not_equal_files(tmp_path: Path) -> None:
    """Only a few pages of each file are looked at first; what has the same ones is compared byte by byte."""
    trained(tmp_path, TWO)
    names = [f"checkpoint-{step}/model.safetensors" for step in TWO]
    data = safetensors_save({"w": numbers(1)}, {"format": "pt"})
    for name in names:
        put(tmp_path / name, data, 10)
    assert found(tmp_path) == {(names[0], "note"), (names[1], "error")}
    overwrite(tmp_path / names[1], flipped(data, len(data) // 8), 0)  # in none of those pages
    assert found(tmp_path) == set()


@pytest.mark.parametrize("older", [0, 2])
def test_a_file_over_that_of_a_save_that_only_its_date_places(older: int, tmp_path: Path) -> None:
    """What it holds tells the step of the save that it was copied from; nothing else tells that of its own."""
    root = tree_of("ray/train-v2", tmp_path)
    saves = sorted(root.glob("checkpoint_2*/checkpoint.pt"))
    copied = str(shutil.copyfile(saves[older], saves[-1]))
    if older:  # of the same epoch, so times tell
        assert [f.path for f in plan(str(root)).warnings if f.code == "same-content"] == [copied]
    else:
        with pytest.raises(UsageError, match="which checkpoint is the newest"):
            plan(str(root))
    told = {path for path, severity in found(root) if severity != "note"}
    assert told == {os.path.relpath(copied, root)}


def test_a_damaged_shard_of_an_older_save_is_no_question_about_the_newest(tmp_path: Path) -> None:
    root = tree_of("tensorflow/sharded", tmp_path)
    for old in sorted(root.glob("model.ckpt-200*")):  # two of the three shards stay as they are
        minute = old.stat().st_mtime_ns - 60 * 10**9
        overwrite(root / old.name.replace("-200", "-100"), old.read_bytes(), minute)
    for file in sorted(root.glob("model.ckpt-200.data*")):
        data = file.read_bytes()
        for damaged in (bytes(len(data)), b""):
            overwrite(file, damaged, 0)
            assert plan(root).resume.path == str(root / "model.ckpt-300")
        overwrite(file, data, 0)


def test_equal_metadata_of_two_saves_is_no_copy(tmp_path: Path) -> None:
    metadata = pickle.loads(dcp(10)[".metadata"])
    metadata.storage_meta = None  # up to torch 2.3 nothing in it tells the save
    for step in THREE:
        for name, data in {**dcp(step), ".metadata": pickle.dumps(metadata)}.items():
            put(tmp_path / f"step-{step}" / name, data, step)
    assert found(tmp_path) == set()
    overwrite(tmp_path / "step-30" / ".metadata", b"", 0)
    assert plan(tmp_path).resume.path == str(tmp_path / "step-20")


def test_a_file_for_each_tensor_may_stay_and_is_called_by_a_number_that_means_nothing(tmp_path: Path) -> None:
    for step in TWO:
        state = {f"m{i}": numbers(step, i) for i in range(4)} | {"frozen": numbers(1)}
        state |= {"a": numbers(step)} if step > 10 else {}  # what comes first moves all other numbers on
        home = tmp_path / f"step-{step}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            writer = saver.FileSystemWriter(home, single_file_per_rank=False)
            saver.save({"model": state, "step": step, "lr": 0.1}, storage_writer=writer, no_dist=True)
        for file in home.iterdir():
            put(file, file.read_bytes(), step)
    assert found(tmp_path) == set()
    for limit in (10, None):
        made = plan(tmp_path, Selection(max_step=limit))
        assert (made.resume_step, made.warnings) == (limit or 20, ())
