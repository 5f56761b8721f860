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
from typing import Any

import pytest
import torch.distributed.checkpoint as saver
from fixture_trees import materialise, overwrite
from places import LAYOUT_TREES
from safetensors.torch import save as safetensors_save
from shards import DAY, copy, numbers, optimizer, put, shard
from small_files import dcp, saved, trainer

from ckpt_tools.api import plan, verify
from ckpt_tools.errors import UsageError
from ckpt_tools.model.finding import Severity
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.report import Level
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


def found(tree: Path, code: str = "same-content", level: Level = Level.CONTENT) -> Found:
    """(path below the tree, severity) of the findings of that code."""
    return {
        (os.path.relpath(f.report.path, tree), str(x.severity))
        for f in verify([str(tree)], level).files
        for x in f.report.findings
        if x.code == code
    }


def bad(tree: Path) -> set[str]:
    return {
        x.code for f in verify([str(tree)]).files for x in f.report.findings if x.severity > Severity.NOTE
    }


def asked(tree: Path, older: str, newer: str, **more: Any) -> dict[str, LoadPlan]:
    """The plan that each flag leads to which the question about those two files offers."""
    with pytest.raises(UsageError) as e:
        plan(str(tree), Selection(**more))
    assert f"{tree / older} and {tree / newer} are byte for byte the same" in str(e.value)
    assert "restore the one that is the copy" in e.value.hint and "ckpt diff" in e.value.hint
    offered = dict(re.findall(r"(--max-step|--exclude) (\S+) ", e.value.hint))
    answers = {"--max-step": lambda n: {"max_step": int(n)}, "--exclude": lambda glob: {"exclude": (glob,)}}
    return {
        flag: plan(str(tree), Selection(**more, **answers[flag](value))) for flag, value in offered.items()
    }


TWO, THREE = (10, 20), (10, 20, 30)


# --- over the file of another step


@pytest.mark.slow
def test_a_copy_that_the_times_do_not_give_away_is_asked_about(tmp_path: Path) -> None:
    """Either may have been overwritten: to go back would lose training for nothing, or load the very copy."""
    shard(tmp_path, TWO)
    os.utime(tmp_path / optimizer(10, 1), (DAY + 11, DAY + 11))  # ranks do not finish in the same second
    copy(tmp_path, optimizer(20, 1), optimizer(10, 1))
    assert found(tmp_path) == {(optimizer(20, 1), "error"), (optimizer(10, 1), "note")}
    made = asked(tmp_path, optimizer(10, 1), optimizer(20, 1))
    assert {flag: m.resume_step for flag, m in made.items()} == {"--max-step": 10, "--exclude": 20}
    assert {flag: "same-content" in {f.code for f in m.warnings} for flag, m in made.items()} == {
        "--max-step": True,
        "--exclude": False,
    }
    with pytest.raises(UsageError):  # a limit that says nothing about the two is no answer
        plan(str(tmp_path), Selection(max_step=15))


@pytest.mark.slow
def test_a_damaged_newest_is_not_asked_about_but_the_older_one_is(tmp_path: Path) -> None:
    """The newer of the two loses anyway; what is left may hold another step's optimizer, and nobody knows."""
    shard(tmp_path, THREE)
    copy(tmp_path, optimizer(30, 1), optimizer(20, 1))
    (tmp_path / "iter_0000030/mp_rank_00/model_optim_rng.pt").write_bytes(b"cut")
    os.utime(tmp_path / "iter_0000030/mp_rank_00/model_optim_rng.pt", (DAY + 30, DAY + 30))
    made = asked(tmp_path, optimizer(20, 1), optimizer(30, 1))
    assert {flag: m.resume_step for flag, m in made.items()} == {"--max-step": 20, "--exclude": 20}
    assert plan(str(tmp_path), Selection(max_step=10)).resume_step == 10


@pytest.mark.slow
def test_a_model_without_a_counter_needs_a_third_save_as_witness(tmp_path: Path) -> None:
    """With two saves nobody knows whether the rank's part of the model is trained at all: the other rank's
    is, so it is said.
    """
    states(tmp_path / "two", TWO)
    copy(tmp_path / "two", "10/rank_1.pt", "20/rank_1.pt")
    assert found(tmp_path / "two") == {("20/rank_1.pt", "warning"), ("10/rank_1.pt", "note")}
    made = plan(str(tmp_path / "two"))
    assert (made.resume_step, "same-content" in {f.code for f in made.warnings}) == (20, True)
    states(tmp_path / "three", THREE)
    copy(tmp_path / "three", "20/rank_1.pt", "30/rank_1.pt")
    assert found(tmp_path / "three") == {("30/rank_1.pt", "error"), ("20/rank_1.pt", "note")}
    made_ = asked(tmp_path / "three", "20/rank_1.pt", "30/rank_1.pt")
    assert {flag: m.resume_step for flag, m in made_.items()} == {"--max-step": 20, "--exclude": 30}


@pytest.mark.slow
@pytest.mark.parametrize("steps", [TWO, THREE])
def test_the_whole_model_of_another_step_is_damage(tmp_path: Path, steps: tuple[int, ...]) -> None:
    """The optimizer moved on, and there is nothing else that it could have changed; a third save's numbers
    show that the model is trained.
    """
    trained(tmp_path, steps)
    for step in steps:
        put(
            tmp_path / f"checkpoint-{step}" / "model.safetensors",
            safetensors_save({"w": numbers(step)}, {"format": "pt"}),
            step,
        )
    assert bad(tmp_path) == set()
    before, last = steps[-2:]
    two = [f"checkpoint-{step}/model.safetensors" for step in (before, last)]
    copy(tmp_path, *two)
    assert found(tmp_path) == {(two[1], "error"), (two[0], "note")}
    assert {m.resume_step for m in asked(tmp_path, *two).values()} == {before, last}


@pytest.mark.share(2)
@pytest.mark.slow
@pytest.mark.parametrize("steps", [TWO, THREE])
@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "trainer_state.json"])
@pytest.mark.parametrize("forward", [True, False])
def test_where_a_counter_tells_the_copy_is_what_is_wrong(
    tmp_path: Path, steps: tuple[int, ...], name: str, forward: bool
) -> None:
    """Whichever of the two was overwritten; and the other, which is sound, is not called the copy."""
    trained(tmp_path, steps)
    before, last = (f"checkpoint-{step}/{name}" for step in steps[-2:])
    copy(tmp_path, *((before, last) if forward else (last, before)))
    copied = last if forward else before
    assert found(tmp_path, "step-mismatch") == {(copied, "error")}
    assert found(tmp_path) == set()
    assert plan(str(tmp_path)).resume_step == (steps[-2] if forward else steps[-1])


# --- over the file of another rank


@pytest.mark.parametrize(("steps", "severity"), [(TWO, "warning"), (THREE, "error")])
def test_the_file_of_another_rank(tmp_path: Path, steps: tuple[int, ...], severity: str) -> None:
    """One other save may have begun differently by chance; two are enough to know that these ranks hold
    different things.
    """
    states(tmp_path, steps)
    copy(tmp_path, f"{steps[-1]}/rank_0.pt", f"{steps[-1]}/rank_1.pt")
    assert found(tmp_path) == {(f"{steps[-1]}/rank_{rank}.pt", severity) for rank in range(2)}
    made = plan(str(tmp_path))
    assert made.resume_step == (steps[-1] if severity == "warning" else steps[-2])


@pytest.mark.slow
def test_the_optimizer_of_another_rank(tmp_path: Path) -> None:
    shard(tmp_path, THREE)
    copy(tmp_path, optimizer(30, 0), optimizer(30, 1))
    assert found(tmp_path) == {(optimizer(30, rank), "error") for rank in range(2)}
    assert plan(str(tmp_path)).resume_step == 20


def test_a_single_save_has_nothing_to_compare_with(tmp_path: Path) -> None:
    states(tmp_path, (10,))
    copy(tmp_path, "10/rank_0.pt", "10/rank_1.pt")
    assert found(tmp_path) == set()


# --- from anywhere in the run


@pytest.mark.slow
def test_a_file_from_long_ago(tmp_path: Path) -> None:
    """All checkpoints of the run are compared, not the next ones alone."""
    states(tmp_path, range(10, 130, 10))
    copy(tmp_path, "10/rank_1.pt", "120/rank_1.pt")
    made = asked(tmp_path, "10/rank_1.pt", "120/rank_1.pt")
    assert {flag: m.resume_step for flag, m in made.items()} == {"--max-step": 110, "--exclude": 120}


@pytest.mark.slow
def test_another_ranks_file_from_long_ago(tmp_path: Path) -> None:
    states(tmp_path, range(10, 130, 10))
    copy(tmp_path, "10/rank_0.pt", "120/rank_1.pt")
    assert {m.resume_step for m in asked(tmp_path, "10/rank_0.pt", "120/rank_1.pt").values()} == {110, 120}


@pytest.mark.slow
def test_a_model_that_follows_another_is_no_copy(tmp_path: Path) -> None:
    """A target network is what the trained one was at the save before: at every step, so that nothing was
    copied.
    """
    for i, step in enumerate((10, 20, 30, 40)):
        for rank, seed in enumerate((step, (step - 10) if i else 1)):
            put(tmp_path / str(step) / f"rank_{rank}.pt", saved({"model": {"w": numbers(seed)}}), step)
    made = plan(str(tmp_path))
    assert (made.resume_step, made.rejected) == (40, ())


@pytest.mark.slow
def test_the_best_so_far_is_meant_to_be_a_copy(tmp_path: Path) -> None:
    for step in THREE:
        put(tmp_path / f"model_{step}.pt", saved({"w": numbers(step)}), step)
    put(tmp_path / "best.pt", (tmp_path / "model_20.pt").read_bytes(), 40)
    assert bad(tmp_path) == set()
    assert plan(str(tmp_path)).resume_step == 30
    copy(tmp_path, "model_20.pt", "model_30.pt")
    made = asked(tmp_path, "model_20.pt", "model_30.pt")
    assert {flag: m.resume_step for flag, m in made.items()} == {"--max-step": 20, "--exclude": 30}


# --- what is no copy


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_replicas_that_are_always_equal(tmp_path: Path, world: int) -> None:
    states(tmp_path, THREE, lambda step, rank: (step, rank % 2 if world == 4 else 0), world)
    assert bad(tmp_path) == set()
    assert plan(str(tmp_path)).resume_step == 30


def test_replicas_of_an_optimizer(tmp_path: Path) -> None:
    shard(tmp_path, THREE, lambda step, rank: (step,))
    assert bad(tmp_path) == set()


@pytest.mark.slow
def test_a_frozen_model_is_equal_at_every_step(tmp_path: Path) -> None:
    states(tmp_path, THREE, lambda step, rank: (1, rank))
    assert bad(tmp_path) == set()
    made = plan(str(tmp_path))
    assert (made.resume_step, made.rejected) == (30, ())


def test_a_frozen_rank_beside_one_that_is_trained(tmp_path: Path) -> None:
    states(tmp_path, THREE, lambda step, rank: (step if rank else 1, rank))
    assert bad(tmp_path) == set()
    assert plan(str(tmp_path)).resume_step == 30


@pytest.mark.slow
def test_a_frozen_whole_model_is_planned_all_the_same(tmp_path: Path) -> None:
    """A model that is saved once more because a framework saves everything: an adapter is what is trained."""
    trained(tmp_path, THREE)
    for step in (20, 30):
        copy(tmp_path, "checkpoint-10/model.safetensors", f"checkpoint-{step}/model.safetensors")
    assert {severity for _, severity in found(tmp_path)} <= {"warning", "note"}
    made = plan(str(tmp_path))
    assert (made.resume_step, made.rejected) == (30, ())


def test_a_hard_link_was_meant(tmp_path: Path) -> None:
    shard(tmp_path, TWO)
    (tmp_path / optimizer(20, 1)).unlink()
    os.link(tmp_path / optimizer(10, 1), tmp_path / optimizer(20, 1))
    assert bad(tmp_path) == set()
    assert plan(str(tmp_path)).resume_step == 20


def test_equal_pages_are_not_equal_files(tmp_path: Path) -> None:
    """Only a few pages of each file are looked at first; what has the same ones is compared byte by byte."""
    trained(tmp_path, TWO)
    first, second = (tmp_path / f"checkpoint-{step}" / "model.safetensors" for step in TWO)
    data = safetensors_save({"w": numbers(1)}, {"format": "pt"})
    other = bytearray(data)
    other[len(data) // 8] ^= 1  # in none of those pages
    put(first, data, 10)
    put(second, bytes(other), 20)
    assert found(tmp_path) == set()
    put(second, data, 20)
    assert found(tmp_path) == {
        ("checkpoint-20/model.safetensors", "error"),
        ("checkpoint-10/model.safetensors", "note"),
    }


def test_a_damaged_file_is_damaged_and_no_copy(tmp_path: Path) -> None:
    """Two saves whose file is cut at the same place, or filled with zeros."""
    shard(tmp_path, TWO)
    for step in TWO:
        put(tmp_path / optimizer(step, 1), b"\0" * 5000, step)
    assert found(tmp_path) == set()
    assert {path for path, _ in found(tmp_path, "zero-filled")} == {optimizer(step, 1) for step in TWO}


# --- how deep


@pytest.mark.slow
def test_only_a_level_that_reads_the_content_compares_it(tmp_path: Path) -> None:
    shard(tmp_path, TWO)
    copy(tmp_path, optimizer(10, 1), optimizer(20, 1), "original")
    assert found(tmp_path, level=Level.STRUCTURE) == set()
    assert plan(str(tmp_path), Selection(level=Level.STRUCTURE)).resume_step == 20
    assert {m.resume_step for m in asked(tmp_path, optimizer(10, 1), optimizer(20, 1)).values()} == {10, 20}


@pytest.mark.parametrize("limit", [10, None])
def test_other_checkpoints_of_the_run_are_witnesses_even_when_they_are_hidden(
    tmp_path: Path, limit: int | None
) -> None:
    shard(tmp_path, THREE)
    copy(tmp_path, optimizer(10, 0), optimizer(20, 0), "original")
    if limit == 10:  # the step of one of the two takes it as it is
        assert plan(str(tmp_path), Selection(max_step=10)).resume_step == 10
    assert plan(str(tmp_path), Selection(max_step=30)).resume_step == 30
    with pytest.raises(UsageError, match="byte for byte the same"):
        plan(str(tmp_path), Selection(max_step=25))


@pytest.mark.slow
def test_one_state_under_the_names_of_its_step_and_its_epoch(tmp_path: Path) -> None:
    """Nothing says that training moved on between ``step_32`` and ``epoch_1``, until their models differ."""
    root = materialise(LAYOUT_TREES / "accelerate/both_names/expected.json", tmp_path)
    assert not found(root)
    model, at = root / "epoch_1/model.safetensors", -4
    data = bytearray(model.read_bytes())
    data[at] ^= 1
    overwrite(model, bytes(data), 0)
    assert {name for name, _ in found(root)} >= {"epoch_1/optimizer.bin", "step_32/optimizer.bin"}
    with pytest.raises(UsageError, match="byte for byte the same"):
        plan(str(root))


@pytest.mark.parametrize("older", [0, 2])
def test_a_file_over_that_of_a_save_that_only_its_date_places(older: int, tmp_path: Path) -> None:
    """What it holds tells the step of the save that it was copied from; nothing else tells that of its own."""
    root = materialise(LAYOUT_TREES / "ray/train-v2/expected.json", tmp_path)
    saves = sorted(root.glob("checkpoint_2*"))
    shutil.copyfile(saves[older] / "checkpoint.pt", saves[-1] / "checkpoint.pt")
    copied = str(saves[-1] / "checkpoint.pt")
    if older:  # of the same epoch, so times tell
        assert [f.path for f in plan(str(root)).warnings if f.code == "same-content"] == [copied]
    else:
        with pytest.raises(UsageError, match="newest is in doubt"):
            plan(str(root))
    found = [(row.report.path, f) for row in verify(str(root)).files for f in row.report.findings]
    assert [path for path, f in found if f.code == "same-content" and f.severity] == [copied]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model.safetensors", "scheduler.bin"])
def test_a_copy_from_a_save_that_counts_steps_over_one_of_an_epoch_is_told(name: str, tmp_path: Path) -> None:
    root = materialise(LAYOUT_TREES / "accelerate/epoch_last/expected.json", tmp_path)
    assert not plan(str(root)).warnings
    over = root / "epoch_0" / name
    overwrite(over, (root / "step_30" / name).read_bytes(), over.stat().st_mtime_ns)
    if name == "model.safetensors":
        with pytest.raises(UsageError, match="which is the copy"):
            plan(str(root))
        return
    made = plan(str(root))
    told = (*made.warnings, *(f for r in made.rejected for f in r.findings))
    assert {f.severity for f in told if f.path == str(over)} & {Severity.WARNING, Severity.ERROR}


@pytest.mark.parametrize("name", ["step-30", "good", "step-30-ok"])
def test_a_file_of_another_step_is_seen_in_a_directory_whose_name_tells_none(
    name: str, tmp_path: Path
) -> None:
    """Another file there tells the step."""
    for step in (10, 20, 30):
        files = {**dcp(step), "__0_1.distcp": dcp(20 if step == 30 else step)["__0_1.distcp"]}
        home = tmp_path / (name if step == 30 else f"step-{step}")
        home.mkdir()
        for file, data in files.items():
            put(home / file, data, step)
    with pytest.raises(UsageError, match="byte for byte the same"):
        plan(str(tmp_path))
    put(tmp_path / name / "__0_1.distcp", dcp(30)["__0_1.distcp"], 30)
    assert plan(str(tmp_path)).resume_step == 30


def test_a_damaged_shard_of_an_older_save_is_no_question_about_the_newest(tmp_path: Path) -> None:
    root = materialise(LAYOUT_TREES / "tensorflow" / "sharded" / "expected.json", tmp_path)
    for old in sorted(root.glob("model.ckpt-200*")):  # two of the three shards stay as they are
        overwrite(
            root / old.name.replace("-200", "-100"), old.read_bytes(), old.stat().st_mtime_ns - 60_000_000_000
        )
    for file in sorted(root.glob("model.ckpt-200.data*")):
        data = file.read_bytes()
        for damaged in (bytes(len(data)), b""):
            overwrite(file, damaged, 0)
            made = plan(root)
            assert made.checkpoint is not None
            assert made.resume.path == str(root / "model.ckpt-300")
        overwrite(file, data, 0)


def test_equal_metadata_of_two_saves_is_no_copy(tmp_path: Path) -> None:
    metadata = pickle.loads(dcp(10)[".metadata"])
    metadata.storage_meta = None  # up to torch 2.3 nothing in it tells the save
    for step in (10, 20, 30):
        for name, data in {**dcp(step), ".metadata": pickle.dumps(metadata)}.items():
            put(tmp_path / f"step-{step}" / name, data, step)
    assert found(tmp_path) == set()
    overwrite(tmp_path / "step-30" / ".metadata", b"", 0)
    made = plan(tmp_path)
    assert made.checkpoint is not None
    assert made.checkpoint.path == str(tmp_path / "step-20")


def test_a_file_for_each_tensor_may_stay_and_is_called_by_a_number_that_means_nothing(tmp_path: Path) -> None:
    for step in (10, 20):
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
        assert made.checkpoint is not None
        assert made.checkpoint.step == (limit or 20)
        assert {f.code for f in made.warnings} == set()
