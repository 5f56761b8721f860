"""What training code is handed: the framework's own pick of real trees, one answer on all ranks, or one error."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest import TestCase

import pytest
from fixture_trees import materialise
from places import BENCHMARKS, DOCS, LAYOUT_TREES
from run_helpers import broken, megatron, one_file_per_rank, torchrun_env
from small_runs import empty, encrypted, lost, plain

from ckpt_tools import Level, errors, integrations, job
from ckpt_tools.integrations import (
    Resumed,
    accelerate,
    agreement,
    dcp,
    deepspeed,
    keras,
    lightning,
    mindspore,
    resume,
    transformers,
)
from ckpt_tools.integrations.agreement import Group
from ckpt_tools.job.decision import Decision
from ckpt_tools.model.selection import Selection


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No launcher, and a directory of decisions of its own."""
    for name in list(os.environ):
        if re.match("CKPT_P|SLURM_|OMPI_|PMI|TORCHELASTIC_|MS_|RANK|WORLD_SIZE|LOCAL_|GROUP_", name):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "checkpoint"),
    [
        ("hf-trainer/trainer", transformers.checkpoint), ("lightning/steps", lightning.checkpoint),
        ("accelerate/steps", accelerate.checkpoint), ("dcp/two", dcp.checkpoint), ("keras/batches", keras.checkpoint),
    ],
)  # fmt: skip
def test_it_is_given_its_own_pick(case: str, checkpoint: Callable[..., str | None], tmp_path: Path) -> None:
    expected = LAYOUT_TREES / case / "expected.json"
    root = materialise(expected, tmp_path)
    first = json.loads(expected.read_text())["plans"][0]
    world = {"world_size": len(first["ranks"])} if first["ranks"] else {}
    assert checkpoint(root, **world) == f"{root}/{first['resume_path']}"


def test_deepspeed_is_given_a_directory_and_a_tag(tmp_path: Path) -> None:
    root = materialise(LAYOUT_TREES / "deepspeed/zero2/expected.json", tmp_path)
    assert deepspeed.checkpoint(root) == {"load_dir": str(root), "tag": "global_step8"}


@pytest.mark.slow
def test_mindspore_is_given_the_file_of_its_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = one_file_per_rank(tmp_path / "run")
    with pytest.raises(errors.UsageError, match=r"loads \d files"):
        mindspore.checkpoint(root)
    for rank in (0, 1):
        monkeypatch.setenv("CKPT_RANK", str(rank))
        monkeypatch.setenv("CKPT_WORLD_SIZE", "2")
        assert mindspore.checkpoint(root) == f"{root}/rank_{rank}/net-1_20.ckpt"


@pytest.mark.slow
def test_the_older_one_where_the_newest_is_broken(tmp_path: Path) -> None:
    root = plain(tmp_path)
    whole = resume(root)
    assert whole and (whole.step, whole.layout) == (20, "megatron")
    assert whole.arguments == ("--load", str(root), "--ckpt-step", "20")
    broken(root, 20)
    with TestCase().assertLogs("ckpt_tools", "WARNING") as logged:
        found = resume(root)
    assert found and (found.step, len(found.files)) == (10, 2)
    assert any("iter_0000020 was skipped: " in text for text in logged.output)
    with pytest.raises(errors.NotNewest):
        resume(root, no_fallback=True)
    with pytest.raises(errors.UsageError, match="'max_steps' is not an argument of this function"):
        resume(root, max_steps=1)


def test_of_another_layout_nothing_is_handed_on(tmp_path: Path) -> None:
    said = r"of layout megatron, which Trainer\.train does not load"
    with pytest.raises(errors.UsageError, match=said) as e:
        transformers.checkpoint(plain(tmp_path))
    assert "layout='hf-trainer'" in e.value.hint


@pytest.mark.slow
def test_none_only_where_that_is_allowed_and_true(tmp_path: Path) -> None:
    nothing = empty(tmp_path)
    assert resume(nothing, allow_none=True) is None
    assert transformers.checkpoint(nothing, allow_none=True) is None
    assert deepspeed.checkpoint(nothing, allow_none=True) is None
    with pytest.raises(errors.NoCheckpoint):
        resume(nothing)
    (tmp_path / "b").mkdir()
    with pytest.raises(errors.NoneUsable):
        resume(lost(tmp_path / "b"), allow_none=True)
    with pytest.raises(errors.CannotLook):
        resume(tmp_path / "none", allow_none=True)
    assert resume(tmp_path / "none", allow_none=True, allow_missing=True) is None


class Joined:
    """So many ranks, each a thread, joined as torch joins processes: whoever does not come is waited for in vain."""

    def __init__(self, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.size, self.here = size, threading.local()
        self.barrier = threading.Barrier(size, timeout=60)
        self.said: list[str] = [""] * size
        monkeypatch.setattr(agreement, "find_group", lambda: self.here.group)

    def _meet(self, rank: int, text: str) -> list[str]:
        self.said[rank] = text
        self.barrier.wait()
        every = list(self.said)
        self.barrier.wait()
        return every

    def run(self, call: Callable[[int], object]) -> list[object]:
        """What each rank returns, or raises."""

        def rank(number: int) -> object:
            meet = partial(self._meet, number)
            self.here.group = Group(number, self.size, lambda text: meet(text)[0], meet)
            try:
                return call(number)
            except Exception as e:
                return e

        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(rank, range(self.size)))


def test_all_ranks_hear_one_decision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = one_file_per_rank(tmp_path / "run")
    asked, plan = [], agreement.api.plan
    monkeypatch.setattr(agreement.api, "plan", lambda *words: asked.append(words) or plan(*words))
    said = Joined(2, monkeypatch).run(lambda _: resume(root))
    assert [r.files for r in said if isinstance(r, Resumed)] == own_files(root) and len(asked) == 1


def own_files(root: Path) -> list[tuple[str, ...]]:
    """What each of two ranks loads of one_file_per_rank."""
    return [(f"{root}/rank_{rank}/net-1_20.ckpt",) for rank in (0, 1)]


@pytest.mark.parametrize(
    ("tree", "asked", "error"),
    [
        (empty, {}, errors.NoCheckpoint), (lost, {"allow_none": True, "world_size": 2}, errors.NoneUsable),
        (lambda tmp: tmp / "none", {}, errors.CannotLook), (plain, {"run": "b"}, errors.UsageError),
        (plain, {"world_size": 3}, errors.UsageError), (plain, {"max_step": 5}, errors.NoneUsable),
        (encrypted, {"strict": True, "level": Level.VALUES, "world_size": 1}, errors.CannotLook),
    ],
)  # fmt: skip
def test_all_ranks_raise_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tree: Any, asked: dict[str, Any], error: type[Exception]
) -> None:
    root = tree(tmp_path)
    said = Joined(3, monkeypatch).run(lambda _: resume(root, **asked))
    assert all(isinstance(e, error) for e in said), said
    assert len({(type(e), str(e), getattr(e, "hint", "")) for e in said}) == 1, said


def test_a_bug_on_rank_0_leaves_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(*_: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(agreement.api, "plan", plan)
    said = Joined(3, monkeypatch).run(lambda _: resume(tmp_path))
    assert [type(e) for e in said] == [ZeroDivisionError, errors.CannotLook, errors.CannotLook]
    assert str(said[1]) == "rank 0 failed: ZeroDivisionError: division by zero"


@pytest.mark.slow
@pytest.mark.parametrize("blind", [0, 2])
def test_a_rank_without_its_files_stops_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blind: int
) -> None:
    """Its node has lost a mount, or another file lies there."""
    check, told = Decision.check, "/data/x cannot be looked at any more: No such file"

    def seen(self: Decision, ranks: Any = None) -> None:
        if ranks == [blind]:
            raise errors.CannotLook(told)
        check(self, ranks)

    monkeypatch.setattr(Decision, "check", seen)
    root = megatron(tmp_path / "run", world=3)
    said = Joined(3, monkeypatch).run(lambda _: resume(root))
    assert {(type(e), str(e)) for e in said} == {(errors.CannotLook, f"rank {blind}: {told}")}


def test_ranks_that_ask_differently_all_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = plain(tmp_path)
    said = Joined(2, monkeypatch).run(lambda rank: resume(root, max_step=20 + rank))
    told = "rank 1 asks with other arguments, or other plug-ins, than rank 0"
    assert {(type(e), str(e)) for e in said} == {(errors.UsageError, told)}


def test_ranks_of_a_launcher_find_one_decision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, found = one_file_per_rank(tmp_path / "run"), []
    for rank in (0, 1):
        for name, value in torchrun_env(rank, 2).items():
            monkeypatch.setenv(name, value)
        found.append(resume(root))
        one_file_per_rank(root, steps=(30,))  # the second one looks later
    assert [r.files for r in found if r] == own_files(root)


@pytest.mark.slow
def test_the_decision_of_ckpt_run_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = plain(tmp_path)
    taken = job.decide(str(root), Selection(max_step=10), job.Options(plan_dir=str(tmp_path / "plans")))
    monkeypatch.setenv("CKPT_PLAN", taken.decision.path)
    assert (found := resume(root)) and found.step == 10
    (tmp_path / "b").mkdir()
    assert (found := resume(plain(tmp_path / "b"))) and found.step == 20  # it is about another directory
    said = Joined(2, monkeypatch).run(lambda _: resume(root))
    assert [r.step for r in said if isinstance(r, Resumed)] == [10, 10]


PAGE = (DOCS / "integrations.md").read_text()
RUNS = sorted((BENCHMARKS / "resume_runs").glob("*/*.py"))


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
def test_every_block_is_part_of_a_run(block: str) -> None:
    wanted = [line.strip() for line in block.splitlines() if line.strip()]
    assert any(set(wanted) <= {line.strip() for line in run.read_text().splitlines()} for run in RUNS), wanted


def test_the_page_names_every_module_and_every_run_has_a_row() -> None:
    modules = {p.stem for p in Path(integrations.__file__).parent.glob("*.py")}
    own = {"__init__", "agreement", "fitting"}
    assert modules - own == set(re.findall(r"\| `ckpt_tools\.integrations\.(\w+)` \|", PAGE))
    rows = re.findall(r"^\| (\w+) .* \| starts \| `.*` \| `.*` \| yes \| `NoneUsable` \|", PAGE, re.MULTILINE)
    assert len(rows) == len(RUNS), rows
