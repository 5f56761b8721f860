"""What training code is handed: the framework's own pick of real trees, one answer on all ranks, or one error; and by
ExceptionCheckpoint one save when training dies, and on restart the files that a plan of the same tree names.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import TestCase

import pytest
import torch
from fixture_trees import materialise
from hypothesis import given
from hypothesis import strategies as st
from in_process import executed
from places import BENCHMARKS, DOCS, LAYOUT_TREES
from run_helpers import broken, megatron, one_file_per_rank, torchrun_env
from small_runs import empty, encrypted, lost, plain
from timed import put

from ckpt_tools import Level, elastic, errors, integrations, job
from ckpt_tools.elastic import ExceptionCheckpoint, Terminated
from ckpt_tools.errors import UsageError
from ckpt_tools.integrations import Resumed, agreement, deepspeed, mindspore, resume, transformers
from ckpt_tools.integrations.agreement import Group
from ckpt_tools.job.decision import Decision
from ckpt_tools.model.selection import Selection
from ckpt_tools.settings import fault_file as _fault_file
from ckpt_tools.settings import resolve


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No launcher, and a directory of decisions of its own."""
    for name in list(os.environ):
        if re.match("CKPT_P|SLURM_|OMPI_|PMI|TORCHELASTIC_|MS_|RANK|WORLD_SIZE|LOCAL_|GROUP_", name):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


OWN = {
    "transformers": "hf-trainer/trainer", "lightning": "lightning/steps", "accelerate": "accelerate/steps", "dcp": "dcp/two",
    "keras": "keras/batches",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("framework", "case"), OWN.items())
def test_it_is_given_its_own_pick(framework: str, case: str, tmp_path: Path) -> None:
    expected = LAYOUT_TREES / case / "expected.json"
    root = materialise(expected, tmp_path)
    first = json.loads(expected.read_text())["plans"][0]
    world = {"world_size": len(first["ranks"])} if first["ranks"] else {}
    given = import_module(f"ckpt_tools.integrations.{framework}").checkpoint(root, **world)
    assert given == f"{root}/{first['resume_path']}"


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


PAIRS = [[0, 2], [1, 3]]


def made(*, group_info=None, partial_save=False, replicas=1, distributed=False, **given):
    checkpoint = ExceptionCheckpoint(**{"env": {}, **given})
    saving = (partial_save, group_info, replicas)
    checkpoint.set_config(print, (), *saving, use_distributed_optimizer=distributed)
    return checkpoint


@st.composite
def jobs(draw):
    """(world size, groups over some of the ranks, failed ranks, how many of each group save or None)."""
    world = draw(st.integers(1, 12))
    mixed = draw(st.permutations(range(world)))[: draw(st.integers(0, world))]
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(mixed) - 1)), max_size=4)))
    groups = [list(mixed[a:b]) for a, b in zip([0, *cuts], [*cuts, len(mixed)], strict=True) if mixed[a:b]]
    return world, groups, draw(st.sets(st.integers(0, world - 1))), draw(st.none() | st.integers(1, 4))


@pytest.mark.slow
@given(jobs(), st.integers(0, 10**9), st.integers(1, 10**6))
def test_what_is_resumable_is_what_live_ranks_wrote(job, iteration, interval):
    world, groups, failed, replicas = job
    saving = {"partial_save": replicas is not None, "replicas": replicas or 1}
    checkpoint = made(fault_ranks=failed, world_size=world, group_info=groups, **saving)
    state = {rank: f"alone {rank}" for rank in range(world)}
    state |= {rank: f"group {i}" for i, group in enumerate(groups) for rank in group}
    idle = {rank for g in groups if replicas for rank in g[replicas:]}
    disk = {rank: state[rank] for rank in range(world) if rank not in failed and rank not in idle}

    resumable = set(disk.values()) == set(state.values())
    assert checkpoint.check_resumable_model() is resumable
    to = iteration if resumable else iteration - iteration % interval
    assert checkpoint.resume_iteration(iteration, interval) == to
    for rank in range(world):
        source = checkpoint.source(rank)
        if rank in disk:
            assert source == rank
        elif state[rank] in disk.values():
            assert source in disk and disk[source] == state[rank]
        else:
            assert source is None
            with pytest.raises(UsageError, match=f"state of rank {rank}:") as e:
                checkpoint.get_checkpoint_names("/c", iteration, tensor_rank=0, rank=rank)
            assert "periodic=True" in e.value.hint
        before = checkpoint.source(rank, periodic=True)  # then every rank had saved
        assert state[before] == state[rank]
        assert (before in failed) == all(r in failed for r in range(world) if state[r] == state[rank])


@pytest.mark.parametrize(
    ("faults", "given", "names"),
    [
        ("1", {"tensor_rank": 1}, "mp_rank_01/model_optim_rng_3.pt"),
        ("1", {"tensor_rank": 1, "pipeline_rank": 2}, "mp_rank_01_002/model_optim_rng_3.pt"),
        ("1", {"tensor_rank": 1, "pipeline_rank": 0, "pipeline_parallel": False}, "mp_rank_01/model_optim_rng_3.pt"),
        ("1", {"tensor_rank": 1, "rank": 1}, "mp_rank_01/model_optim_rng_3.pt"),
        ("1,3", {"tensor_rank": 1, "release": True}, "mp_rank_01/model_optim_rng_3.pt"),  # of no dying job
        ("1", {"tensor_rank": 1, "sharded": True}, "mp_rank_01/model_rng.pt mp_rank_01_001/optim.pt"),
        ("1", {"tensor_rank": 0, "pipeline_rank": 1, "sharded": True, "rank": 9, "data_parallel_rank": 4},
         "mp_rank_00_001/model_rng.pt mp_rank_00_001_004/optim.pt"),
        ("1", {"tensor_rank": 1, "sharded": True, "rank": 1, "periodic": True}, "mp_rank_01/model_rng.pt mp_rank_01_000/optim.pt"),
    ],
)  # fmt: skip
def test_names(faults, given, names):
    """That of the model and, where the optimizer is distributed, that of its state."""
    checkpoint = made(fault_ranks=faults, rank=3, group_info=PAIRS)
    asked = {name: value for name, value in given.items() if name != "sharded"}
    home = "/c/release" if asked.get("release") else "/c/iter_0000012"
    found = checkpoint.get_checkpoint_names("/c", 12, **asked, use_distributed_optimizer="sharded" in given)
    assert found == tuple(f"{home}/{name}" for name in (names.split() * 2)[:2])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "tensor_rank is not known"),
        ({"tensor_rank": 0, "pipeline_parallel": True}, "pipeline_rank is not known"),
        ({"tensor_rank": 0, "rank": 8}, "rank: rank 8 does not exist among 8 ranks"),
        ({"tensor_rank": 0, "rank": -1}, "rank: -1 is below 0"),
        ({"tensor_rank": 0, "use_distributed_optimizer": True, "rank": 7}, "data_parallel_rank is not known"),
        ({"tensor_rank": 0, "use_distributed_optimizer": True, "rank": 1}, "state of rank 1:"),
    ],
)
def test_a_name_that_cannot_be_known_is_not_guessed(given, says):
    with pytest.raises(UsageError, match=re.escape(says)) as e:
        made(fault_ranks="1", rank=3, world_size=8, group_info=PAIRS).get_checkpoint_names("/c", 12, **given)
    assert e.value.hint and e.value.exit_code == 2


def test_one_group_has_no_model_parallelism_and_no_rank_no_file():
    names = made(rank=1, group_info=[[0, 1]]).get_checkpoint_names("c", 0)
    assert names[0] == "c/iter_0000000/mp_rank_00/model_optim_rng_1.pt"
    with pytest.raises(UsageError, match="rank is not known"):
        made(group_info=[[0, 1]]).get_checkpoint_names("c", 0)


def test_nobody_stands_in_for_a_distributed_optimizer():
    assert made().check_resumable_model() and not made(fault_ranks=[0]).check_resumable_model()
    assert made(fault_ranks=[2], group_info=PAIRS).check_resumable_model()
    sharded = made(fault_ranks=[2], group_info=PAIRS, distributed=True, partial_save=True, rank=2)
    assert not sharded.check_resumable_model()
    assert sharded.resume_iteration(17, 5) == 15
    assert sharded.save()  # although it is not the first of its group


@pytest.fixture
def fault_file(tmp_path):
    def write(content):
        text = content if isinstance(content, str | bytes) else json.dumps(content)
        return str(put(tmp_path / "faults.json", text))

    return write


@pytest.mark.parametrize(
    ("content", "ranks"),
    [
        ([], set()), ({"version": 1, "fault_ranks": [3, 5, 3], "time": "2026-01-02T03:04:05Z", "else": None}, {3, 5}),
        ({"fault_ranks": [1], "fault_nodes": ["b"], "node_ranks": {"a": [2], "b": [4, 5]}}, {1, 4, 5}),
        ({"fault_nodes": ["a", "b"], "node_ranks": {"a": [2], "b": [4, 5], "c": []}}, {2, 4, 5}),
        ({"FaultRankIds": ["0", "12"], "CreatTime": 1700000000}, {0, 12}), ({"FaultRankIds": "['0', '12']"}, {0, 12}),
        ([_fault_file.MAX_RANK], {1 << 24}), ("\ufeff[1]".encode(), {1}), (b" " * ((1 << 20) - 3) + b"[1]", {1}),
    ],
)  # fmt: skip
def test_fault_files(fault_file, content, ranks):
    assert made(fault_file=fault_file(content)).fault_ranks == ranks


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "Expecting value"), (b"\xff\xfe\xfa", "decode"), ("[" * 100_000, "recursion"),
        ("1" * 10_000, "integer string"), ("null", "Expected `object`, got `null`"),
        ({"fault_rank": [1]}, "has no fault_ranks"), ({"fault_ranks": "1,2"}, "got `str` - at `$.fault_ranks`"), ({"fault_ranks": None}, "got `null`"),
        ([True], "got `bool` - at `$[0]`"), ([1.0], "got `float`"), ([-1], "Expected `int` >= 0 - at `$[0]`"),
        ([(1 << 24) + 1], "<= 16777216"), ({"version": 2, "fault_ranks": [1]}, "value 2 - at `$.version`"),
        ({"version": True, "fault_ranks": [1]}, "$.version"), ({"fault_nodes": ["a"]}, "no node_ranks that tell"),
        ({"fault_nodes": ["a"], "node_ranks": {"b": [1]}}, "does not know the fault node 'a'"),
        ({"fault_nodes": ["a"], "node_ranks": {"a": [-2]}}, ">= 0 - at `$.node_ranks[...][0]`"),
        ({"fault_nodes": ["a"], "node_ranks": [[1]]}, "got `array` - at `$.node_ranks`"),
        ({"fault_nodes": "a", "node_ranks": {}}, "got `str` - at `$.fault_nodes`"),
        ({"FaultRankIds": "0 and 1"}, "got `str` - at `$[1]`"), ({"FaultRankIds": ["-1"]}, "got `str` - at `$[0]`"), ({"FaultRankIds": ["1e1"]}, "got `str` - at `$[0]`"),
        ({"FaultRankIds": 3.5}, "got `float` - at `$.FaultRankIds`"),
    ],
)  # fmt: skip
def test_bad_fault_files(fault_file, content, says):
    path = fault_file(content)
    with pytest.raises(UsageError, match=r"^fault_file: ") as e:
        made(fault_file=path)
    assert says in str(e.value) and path in str(e.value)
    with pytest.raises(UsageError, match=r"^--fault-file: ") as e:
        resolve.resolve({"fault-file": path}, env={}, cwd="/")
    assert says in str(e.value) and "--fault-file" in e.value.hint


@pytest.mark.slow
@given(st.recursive(st.none() | st.booleans() | st.integers(-2, 9) | st.floats() | st.text(max_size=3), lambda v: st.lists(v) | st.dictionaries(
    st.sampled_from(["version", "fault_ranks", "fault_nodes", "node_ranks", "FaultRankIds", "a"]), v), max_leaves=8))  # fmt: skip
def test_no_content_is_a_crash(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps(content))
    try:
        ranks = _fault_file.fault_file(str(path))
    except ValueError as e:
        ranks, said = frozenset(), str(e)
    else:
        said = str(path)
    assert str(path) in said
    assert all(type(r) is int and 0 <= r <= _fault_file.MAX_RANK for r in ranks)


def test_arguments_come_before_variables_and_both_kinds_add_up(fault_file):
    path = fault_file([5])
    env = {"CKPT_FAULT_RANKS": "1,3-4", "CKPT_FAULT_FILE": path, "CKPT_RANK": "2", "CKPT_WORLD_SIZE": "8"}
    found = ExceptionCheckpoint(env=env)
    assert (found.fault_ranks, found.rank, found.world_size) == ({1, 3, 4, 5}, 2, 8)
    found = ExceptionCheckpoint(fault_ranks=(), rank=0, env=env)
    assert (found.fault_ranks, found.rank) == ({5}, 0)
    assert ExceptionCheckpoint(fault_ranks="0", fault_file=fault_file("[7]"), env=env).fault_ranks == {0, 7}
    assert ExceptionCheckpoint(env={**torchrun_env(3, 4, job="x"), "CKPT_RANK": ""}).rank == 3


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"fault_ranks": "1,,2"}, "fault_ranks: '' is not a rank"), ({"fault_ranks": [True]}, "[True] is not a list of ranks"),
        ({"env": {"CKPT_FAULT_RANKS": "x"}}, "CKPT_FAULT_RANKS: 'x' cannot be read"),
        ({"env": {"CKPT_FAULT_FILE": "/none"}}, "CKPT_FAULT_FILE: '/none' cannot be read"),
        ({"fault_ranks": [4], "world_size": 4}, "rank 4 does not exist among 4 ranks"),
        ({"rank": 4, "world_size": 4}, "rank 4 does not exist among 4 ranks"),
        ({"world_size": 0}, "world_size: 0 is below 1"), ({"group_info": [[0, 1], [1, 2]]}, "a rank twice"),
        ({"group_info": [[0], []]}, "empty group"),
        ({"group_info": [0, 1]}, "group_info: 'int' object is not iterable"),
        ({"group_info": [[0, "1"]]}, "got `str` - at `$[1]`"),
        ({"group_info": [[0, 4]], "world_size": 4}, "group_info: rank 4 does not exist among 4 ranks"),
        ({"replicas": 0}, "replicas: 0 is below 1"), ({"replicas": True}, "replicas: True is not"),
    ],
)  # fmt: skip
def test_mistakes_are_said_when_it_is_made_or_configured(given, says):
    with pytest.raises(UsageError, match=re.escape(says)) as e:
        made(**given)
    assert e.value.hint


def test_the_flag_adds_to_the_other_flag(fault_file, tmp_path):
    def ranks(env=None, cwd="/", **flags):
        given = {**dict.fromkeys(resolve.BY_KEY), "root": "/x", **flags}
        return resolve.resolve(given, env=env or {}, cwd=cwd).selection().fault_ranks

    path = fault_file([5])
    assert ranks(**{"fault-ranks": "1", "fault-file": path}) == {1, 5}
    assert ranks({"CKPT_FAULT_RANKS": "2", "CKPT_FAULT_FILE": path}) == {2, 5}
    (tmp_path / "deep").mkdir()
    (tmp_path / "ckpt.toml").write_text('fault-file = "faults.json"\n')
    assert ranks(cwd=str(tmp_path / "deep")) == {5}


def test_the_schema_on_the_page_is_the_one_that_is_read(fault_file):
    blocks = re.findall(r"```json\n(.*?)```", (DOCS / "elastic.md").read_text(), re.DOTALL)
    assert len(blocks) >= 3 and all(_fault_file.fault_file(fault_file(block)) for block in blocks)


def test_the_example_on_the_page_runs(tmp_path):
    page = (DOCS / "elastic.md").read_text()
    trained, args = [], argparse.Namespace(iteration=12, save_interval=10, load=str(tmp_path))
    names = dict.fromkeys(("save_checkpoint", "model", "optimizer", "scheduler"))
    names |= {"rank": 2, "world_size": 4, "data_parallel_groups": PAIRS, "tensor_rank": 0}
    names |= {"args": args, "iteration": 12, "train": trained.append}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, names)
    assert trained == [12]
    assert names["model_name"] == f"{tmp_path}/iter_0000012/mp_rank_00/model_optim_rng_2.pt"


class Lost(Exception):
    pass


@pytest.fixture
def watched():
    """(checkpoint, what was saved)."""
    saved: list[object] = []
    checkpoint = made(rank=1, group_info=PAIRS)
    checkpoint.set_config(lambda *args: saved.append(args), (7, "model"), group_info=PAIRS)
    return checkpoint, saved


def test_the_exception_is_saved_for_once_and_goes_on_unchanged(watched):
    checkpoint, saved = watched
    assert checkpoint.wrap(lambda: 3)() == 3 and not saved and not checkpoint.saved
    error = Lost("peer")

    @checkpoint.wrap
    def train(step: int, *, more: int) -> None:
        """Doc."""
        assert (step, more) == (1, 2)
        with checkpoint:
            raise error

    with pytest.raises(Lost) as e:
        train(1, more=2)
    assert e.value is error and e.value.__cause__ is None and e.value.__context__ is None
    assert saved == [(7, "model")] and checkpoint.saved and checkpoint.save_error is None
    assert (train.__name__, train.__doc__) == ("train", "Doc.")


@pytest.mark.parametrize(
    ("error", "saves"),
    [(KeyboardInterrupt(), True), (SystemExit("bad"), True), (SystemExit(0), False), (SystemExit(), False), (GeneratorExit(), False)],
)  # fmt: skip
def test_what_counts_as_a_fault(watched, error, saves):
    checkpoint, saved = watched
    with pytest.raises(type(error)), checkpoint:
        raise error
    assert bool(saved) is saves


@pytest.mark.parametrize("failure", [OSError("disk full"), KeyboardInterrupt(), SystemExit(0), None])
def test_a_failing_save_hides_nothing_and_one_without_a_function_says_so(failure):
    def save() -> None:
        raise failure

    checkpoint = ExceptionCheckpoint(env={})
    if failure:
        checkpoint.set_config(save)
    with TestCase().assertLogs("ckpt_tools") as logged, pytest.raises(Lost), checkpoint:
        raise Lost
    (said,) = logged.output
    assert checkpoint.save_error is failure and not checkpoint.saved
    assert ("the emergency save failed" in said) == (type(failure).__name__ in said) == bool(failure)
    assert bool(failure) or "named no save_func" in said


def test_arguments_are_asked_for_when_they_are_needed():
    saved, step = [], [0]
    checkpoint = made(rank=0)
    checkpoint.set_config(saved.append, lambda: tuple(step))
    step[0] = 41
    with pytest.raises(Lost), checkpoint:
        raise Lost
    assert saved == [41]


@pytest.mark.parametrize(
    ("rank", "replicas", "saves"),
    [(0, 1, True), (2, 1, False), (2, 2, True), (4, 2, False), (4, 9, True), (5, 1, True), (None, 1, True)],
)
def test_partial_save_is_by_the_first_of_each_group(rank, replicas, saves):
    groups = {"group_info": [[0, 2, 4], [1, 3]], "replicas": replicas}
    assert made(rank=rank, partial_save=True, **groups).save() is saves
    assert made(rank=rank, group_info=[[0, 2, 4], [1, 3]], replicas=replicas).save()


@pytest.mark.parametrize("first", [True, False])
def test_sigterm_saves_once_undisturbed_and_is_then_as_before(first):
    before, saved = signal.getsignal(signal.SIGTERM), []
    with made():  # who did not ask for signals
        assert signal.getsignal(signal.SIGTERM) is before

    def save() -> None:
        os.kill(os.getpid(), signal.SIGTERM)  # the scheduler is impatient
        saved.append(signal.getsignal(signal.SIGTERM))

    checkpoint = made(rank=0, signals=(signal.SIGTERM,))
    checkpoint.set_config(save)
    with pytest.raises(Terminated if first else SystemExit) as e, checkpoint:
        signal.raise_signal(signal.SIGTERM) if first else sys.exit(3)
    assert e.value.code == (128 + signal.SIGTERM if first else 3)
    assert saved == [signal.SIG_IGN] and checkpoint.saved
    assert signal.getsignal(signal.SIGTERM) is before


def test_signals_need_the_main_thread():
    def enter() -> None:
        with made(signals=(signal.SIGTERM,)):
            pass

    with ThreadPoolExecutor(1) as pool, pytest.raises(UsageError, match="main thread"):
        pool.submit(enter).result()


def test_the_ready_made_instance(monkeypatch):
    monkeypatch.setenv("CKPT_FAULT_RANKS", "3")
    monkeypatch.delitem(vars(elastic), "exception_checkpoint", raising=False)
    first = elastic.exception_checkpoint
    assert first.fault_ranks == {3} and elastic.exception_checkpoint is first
    monkeypatch.delitem(vars(elastic), "exception_checkpoint")
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        _ = elastic.other


DEATHS = [
    ({2}, False, 1, 7),
    ({0, 3}, False, 1, 7),
    ({0, 2}, False, 1, 5),
    ({2}, True, 1, 7),  # and so rank 3 has no file either
    ({0}, True, 1, 5),  # the only one of its group that would have saved
    ({0}, True, 2, 7),
]


@pytest.mark.slow
@pytest.mark.parametrize(("dying", "partial", "replicas", "step"), DEATHS)
def test_a_job_that_died_resumes_as_the_plan_says(tmp_path, dying, partial, replicas, step):
    """Two pairs of replicas: after step 5 all have saved, and in step 7 some die and the others lose a peer."""
    root = tmp_path / "run"

    def save(rank, iteration):
        path = root / f"iter_{iteration:07d}/mp_rank_{rank % 2:02d}/model_optim_rng_{rank}.pt"
        path.parent.mkdir(parents=True, exist_ok=True)
        weight = torch.full((8,), float(iteration * (rank % 2 + 1)))
        torch.save({"iteration": iteration, "weight": weight}, path)

    for rank in range(4):
        save(rank, 5)
    for rank in set(range(4)) - dying:
        checkpoint = ExceptionCheckpoint(rank=rank, world_size=4, env={})
        checkpoint.set_config(save, (rank, 7), partial, PAIRS, replicas)
        with pytest.raises(Lost), checkpoint:
            raise Lost
    (root / "latest_checkpointed_iteration.txt").write_text("7")
    saved = {int(re.findall(r"\d+", p.name)[0]) for p in root.glob("iter_0000007/*/*.pt")}
    assert saved == {r for r in range(4) if r not in dying and not (partial and r >= 2 * replicas)}

    faults = tmp_path / "faults.json"
    faults.write_text(json.dumps({"version": 1, "fault_ranks": sorted(dying)[1:]}))
    saving = {"partial_save": partial, "group_info": PAIRS, "replicas": replicas}
    checkpoint = made(fault_ranks=[min(dying)], fault_file=faults, world_size=4, **saving)
    assert (checkpoint.check_resumable_model(), checkpoint.resume_iteration(7, 5)) == (step == 7, step)
    loaded = {}
    for rank in range(4):
        place = {"tensor_rank": rank % 2, "rank": rank, "periodic": step == 5}
        loaded[rank], _ = checkpoint.get_checkpoint_names(root, step, **place)
        content = torch.load(loaded[rank], weights_only=True)
        assert content["iteration"] == step and content["weight"][0] == step * (rank % 2 + 1)

    words = f"--fault-ranks {min(dying)} --replica-groups 0,2;1,3 --save-interval 5 --world-size 4 --json"
    code, out, said = executed(
        ["plan", str(root), "--fault-file", str(faults), "--settle=0s", *words.split()]
    )
    assert code == 0, said
    answer = json.loads(out)
    assert answer["resume_step"] == step
    assert {r["rank"]: r["files"][0]["path"] for r in answer["ranks"] if len(r["files"]) == 1} == loaded
    rollback = answer["rollback"] and [answer["rollback"][key] for key in ("from", "to", "save_interval")]
    assert rollback == (None if step == 7 else [7, 5, 5])
