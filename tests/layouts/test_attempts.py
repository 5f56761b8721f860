"""Files of one step that two attempts wrote are never planned together, in every layout whose checkpoints
have several files.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from argparse import Namespace
from pathlib import Path

import pytest
from described import LAYOUTS
from described_layouts import HOUR, MINUTE, START, described_tree, trackers
from fixture_trees import selection
from places import FIXTURES
from small_files import mindspore, saved, tensor

from ckpt_tools.api import plan, scan
from ckpt_tools.crosscheck.attempts import apart
from ckpt_tools.errors import UsageError
from ckpt_tools.layouts import BY_NAME
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.report import Level

SEVERAL = ["megatron", "ascend", "deepspeed", "trainer", "dcp", "mindspore"]
"""Layouts of the random trees that can have several files in a checkpoint, made with several."""
REAL = {
    "accelerate/auto", "dcp/four", "deepspeed-universal/converted", "deepspeed/pipeline", "deepspeed/zero1", "deepspeed/zero2", "deepspeed/zero3", "hf-trainer/fsdp",
    "hf-trainer/sharded", "hf-trainer/trainer", "megatron-core/mcore", "megatron/distopt", "megatron/distopt_old", "megatron/layer_wise", "megatron/pp", "megatron/tp",
    "orbax/ocdbt", "orbax/zarr", "tensorflow/manager", "tensorflow/sharded", "nvrx-local/three", "mindspore/pangu",
}  # fmt: skip
"""Trees that frameworks wrote, with two checkpoints or more of several files."""


class Run:
    """A tree below ``root``, its checkpoints of one run from the oldest, and what to ask. Saves are ten
    minutes apart and take some seconds.
    """

    def __init__(self, root: Path, options: dict[str, object] | None = None) -> None:
        self.root, self.options = root, {"level": Level.STRUCTURE, **(options or {})}
        found = [c for c in scan(str(root)).checkpoints if not c.unfinished]
        self.checkpoints = sorted([c for c in found if c.run == found[0].run], key=lambda c: c.order)
        for i, c in enumerate(self.checkpoints):
            self.date(c, START + i * 10 * MINUTE)

    def date(self, c: Checkpoint, at: float) -> None:
        for n, p in enumerate(c.parts):
            os.utime(p.path, (at + n % 7,) * 2)

    def ask(self, **more: object) -> LoadPlan:
        return plan(str(self.root), selection({**self.options, **more}))

    def planned(self) -> list[str]:
        """The files of the newest that would be loaded together."""
        made = self.ask()
        newest = {p.path for p in self.checkpoints[-1].parts}
        files = {f.path for f in (*made.shared, *(f for r in made.by_rank for f in r.files))}
        assert files <= newest or made.checkpoint is not None
        return sorted(files)

    def committing(self) -> set[str]:
        """The files of the newest that its save writes when every rank is done."""
        newest = self.checkpoints[-1]
        commit = BY_NAME[newest.layout].commit
        return {p.path for p in newest.parts if p.role == commit}


@pytest.fixture(params=[*SEVERAL, *sorted(REAL)])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    name = str(request.param)
    if name in LAYOUTS:
        described_tree(name, tmp_path / "tree", several=True)
        return Run(tmp_path / "tree")
    root = shutil.copytree(FIXTURES / "layouts" / name / "tree", tmp_path / "tree")
    for tracker in trackers(root):
        tracker.unlink()
    return Run(
        root, json.loads((FIXTURES / "layouts" / name / "expected.json").read_text())["plans"][0]["options"]
    )


@pytest.mark.share(12)
@pytest.mark.slow
def test_files_of_two_attempts_are_a_question(run: Run) -> None:
    """Some files are old, the others were written again after going back: whichever they are, and whether or
    not another checkpoint was saved in between.
    """
    files = run.planned()
    assert len(files) > 1
    rng = random.Random(len(files))
    early = sorted(set(files) - run.committing())
    last = START + len(run.checkpoints) * 10 * MINUTE
    for new in (rng.sample(early, 1), rng.sample(files, len(files) - 1)):
        run.date(run.checkpoints[-1], START + (len(run.checkpoints) - 1) * 10 * MINUTE)
        for n, path in enumerate(new):
            os.utime(path, (last + 15 * MINUTE + n % 3,) * 2)
        with pytest.raises(UsageError, match="two attempts") as caught:
            run.ask()
        assert "--same-save" in caught.value.hint
        assert any(os.path.relpath(path, run.root) in str(caught.value) for path in new)
        declared = caught.value.hint.partition("--same-save PATH, which is ")[2].partition(";")[0]
        assert {f.path for f in run.ask(same_save=(declared,)).shared} <= set(files)
        with pytest.raises(UsageError, match="two attempts"):
            run.ask(same_save=(str(run.root),))
        with pytest.raises(UsageError, match="two attempts"):
            run.ask(order="step")


@pytest.mark.share(4)
@pytest.mark.slow
def test_a_save_that_waits_before_its_commit_is_no_question(run: Run) -> None:
    """An asynchronous save, or one slow rank: a second attempt would have written all files before its commit."""
    chosen = run.ask()
    late = START + len(run.checkpoints) * 10 * MINUTE + 15 * MINUTE
    for path in run.committing():
        os.utime(path, (late,) * 2)
    assert run.ask().resume_step == chosen.resume_step


@pytest.mark.slow
def test_a_lone_checkpoint(tmp_path: Path) -> None:
    """Without another to compare with, a pause must stand out by far."""
    described_tree("trainer", tmp_path / "tree", several=True)
    for step in (80, 90, 100):
        shutil.rmtree(tmp_path / f"tree/checkpoint-{step}")
    run = Run(tmp_path / "tree")
    state = tmp_path / "tree/checkpoint-110/optimizer.pt"
    for minutes, question in ((5, False), (50, True)):
        os.utime(state, (START + minutes * MINUTE,) * 2)
        if question:
            with pytest.raises(UsageError, match="no save takes so long"):
                run.ask()
        else:
            assert run.ask().resume_step == 110


@pytest.mark.parametrize(
    ("minutes", "gigabytes", "asked"),
    [(9, 0, False), (10, 0, True), (20, 12, False), (50, 12, True), (50, 100, False), (60, 100, True)],
)
def test_two_files_alone_are_of_one_save_as_long_as_writing_may_have_taken(
    minutes: int, gigabytes: int, asked: bool
) -> None:
    first, second = (
        Part(f"/run/{name}.pth", "files", "torch", name, ".", "/run", size=gigabytes << 30, mtime_ns=at)
        for name, at in (("model", START * 10**9), ("optimizer", (START + minutes * MINUTE) * 10**9))
    )
    assert (apart((first, second), ()) is not None) == asked


@pytest.mark.slow
def test_counters_that_disagree_reject_the_checkpoint(tmp_path: Path) -> None:
    """Whatever the times say."""
    for step in (10, 20):
        for rank in (0, 1, 2):
            samples = 80 * step + (8 if (step, rank) == (20, 2) else 0)
            args = Namespace(
                world_size=3,
                rank=rank,
                iteration=step,
                tensor_model_parallel_size=3,
                consumed_train_samples=samples,
            )
            path = tmp_path / f"iter_{step:07d}/mp_rank_{rank:02d}/model_optim_rng.pt"
            path.parent.mkdir(parents=True)
            path.write_bytes(
                saved(
                    {
                        "args": args,
                        "checkpoint_version": 3.0,
                        "iteration": step,
                        "model": {"w": tensor(step, rank)},
                    }
                )
            )
            os.utime(path, (START + step,) * 2)
    made = plan(str(tmp_path))
    assert made.resume_step == 10
    (rejected,) = made.rejected
    assert {(f.code, os.path.relpath(f.path, tmp_path)) for f in rejected.findings} >= {
        ("mixed-attempts", "iter_0000020/mp_rank_02/model_optim_rng.pt")
    }


def test_restart_counters_and_times_reject_the_checkpoint(tmp_path: Path) -> None:
    """MindSpore counts restarts in the names: a step of which one rank's file is of the next restart, hours
    later, was not saved at once.
    """
    for step, at in ((10, 0), (20, 600), (30, 1200)):
        for rank in (0, 1):
            again = step == 30 and rank == 1
            path = tmp_path / f"rank_{rank}/net{'_1' if again else ''}-1_{step}.ckpt"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(mindspore(True, rank, epoch_num=1, step_num=step))
            os.utime(path, (START + at + (4 * HOUR if again else rank),) * 2)
    made = plan(str(tmp_path))
    assert made.checkpoint is not None
    assert made.checkpoint.step_in_epoch == 20
    assert {f.code for r in made.rejected for f in r.findings} & {"mixed-attempts", "missing-rank"}


@pytest.mark.share(6)
@pytest.mark.slow
def test_good_saves_are_no_question(run: Run) -> None:
    """Slow ranks, saves that take half the time between them, and trees that were copied file by file or rank
    by rank.
    """
    newest = run.checkpoints[-1]
    chosen = run.ask().checkpoint
    assert chosen is not None
    ways = {
        "a slow rank": (
            lambda i, n, p: (
                START + i * 10 * MINUTE + (3 * MINUTE if n == 0 and i == len(run.checkpoints) - 1 else n % 7)
            )
        ),
        "slow saves": (
            lambda i, n, p: START + i * 10 * MINUTE + n * 5 * MINUTE / len(run.checkpoints[i].parts)
        ),
        "copied in a minute each": lambda i, n, p: START + i * MINUTE + n % 50,
        "copied rank by rank, with hours between": lambda i, n, p: START + n * 5 * HOUR + i * MINUTE,
        "without times": lambda i, n, p: START,
    }
    for what, at in ways.items():
        for i, c in enumerate(run.checkpoints):
            for n, p in enumerate(c.parts):
                os.utime(p.path, (at(i, n, p),) * 2)
        made = run.ask(order="step")
        assert made.checkpoint is not None
        assert made.checkpoint.path == newest.path or made.checkpoint.order == chosen.order, what
