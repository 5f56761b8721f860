"""What a plan and ``ckpt prune`` cost grows as the directory does, whatever lies in it: calls are counted at two sizes,
never seconds.
"""

from __future__ import annotations

import os
import tracemalloc
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import small_files
import timed
from counted import calls

from ckpt_tools import api
from ckpt_tools.errors import CkptError
from ckpt_tools.guard.prune import Policy, prune
from ckpt_tools.layouts import BUILT_IN
from ckpt_tools.layouts.common.counters import find_foreign, find_schedules
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Level, Report, Verdict
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning import judge

OLD = 1_700_000_000
ONE = small_files.megatron(10, 0, 1, 1, 1)
MEGATRON = "iter_{:07d}/mp_rank_{:02d}/model_optim_rng.pt"


def put(path: Path, data: bytes = b"", minute: int = 0) -> None:
    timed.put(path, data, OLD + 60 * minute)


Make = Callable[[Path, int], object]


def files(name: str, data: bytes = b"", apart: int = 0) -> Make:
    """As many files as asked for; ``{i}`` in their names counts them, ``{}`` of Megatron's name are step and
    rank.
    """

    def make(root: Path, n: int) -> None:
        for i in range(1, n + 1):
            put(root / name.format(i=i, n=n), data, apart * i)

    return make


def beside(one: Callable[[Path, int], object]) -> Make:
    """A checkpoint, and what is made as often as asked for."""

    def make(root: Path, n: int) -> None:
        put(root / MEGATRON.format(10, 0), ONE)
        for i in range(n):
            one(root, i)

    return make


def also(name: str, data: bytes = ONE, size: int = 0) -> Make:
    """Files beside a checkpoint; each is ``size`` bytes long, most of which take no room."""

    def one(root: Path, i: int) -> None:
        put(root / name.format(i=i), data)
        os.truncate(root / name.format(i=i), size or len(data))

    return beside(one)


def links(to: str) -> Make:
    return beside(lambda root, i: os.symlink(to if i % 30 == 0 else f"link{i - 1}", root / f"link{i}"))


TREES: dict[str, Make] = {
    "empty files of steps": files("iter_{i:07d}/mp_rank_00/model_optim_rng.pt"),
    "empty files of ranks": files("iter_0000010/mp_rank_{i:02d}/model_optim_rng.pt"),
    "empty bare files": files("model_{i}.pt"),
    "empty files of MindSpore": files("net-1_{i}.ckpt"),
    "empty directories of ranks": files("rank_{i}/net-1_3.ckpt"),
    "empty shards": files("model-{i:05d}-of-{n:05d}.safetensors"),
    "empty optimizer states": files("global_step10/zero_pp_rank_{i}_mp_rank_00_optim_states.pt"),
    "empty directories of the Trainer": files("checkpoint-{i}/model.safetensors"),
    "empty bundles": files("ckpt-{i}.index"),
    "runs": files("run{i}/" + MEGATRON.format(10, 0), ONE),
    "steps": files("iter_{i:07d}/mp_rank_00/model_optim_rng.pt", ONE, 6),
    "ranks of one size": files("iter_0000010/mp_rank_{i:02d}/model_optim_rng.pt", b"x" * 100),
    "files of one size": files("net-1_{i}.ckpt", b"x" * 100, 6),
    "prefixes": files("net{i}-1_5.ckpt", b"x" * 100),
    "generations": files("net_{i}-1_5.ckpt", b"x" * 100, 6),
    "links": links("iter_0000010"),
    "links to nothing": links("nowhere"),
    "set-aside files": also("iter_0000010/mp_rank_00/model_optim_rng_{i}.pt.bak"),
    "set-aside directories": also("backup_{i}.bak/" + MEGATRON.format(10, 0)),
    "unfinished saves": also("iter_{i:07d}_tmp/mp_rank_00/model_optim_rng.pt"),
    "unfinished files": also("step_{i}.pt.tmp"),
    "empty directories of numbers": lambda root, n: [
        (root / f"{i}").mkdir(parents=True) for i in range(11, 11 + n)
    ],
    "empty directories of later saves": beside(lambda root, i: (root / f"iter_{i + 11:07d}").mkdir()),
    "unknown files": also("junk{i}.dat", b"junk"),
    "large unknown files": also("junk{i}", b"junk", 65 << 20),
}
SMALL = 40


def cost(root: Path, settle: float) -> int:
    """Calls that a plan makes, also where it finds nothing to resume from."""

    def planned() -> None:
        with suppress(CkptError):
            api.plan(str(root), Selection(jobs=1, settle=settle))

    return calls(planned)


@pytest.mark.share(16)
@pytest.mark.parametrize("settle", [120.0, pytest.param(1e12, id="under-way")])
@pytest.mark.parametrize("name", TREES)
def test_a_plan_grows_as_the_directory_does(
    name: str, settle: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run that ended long ago, and of one that may still be written."""
    # what is compared with each candidate has an end, and these trees are small
    monkeypatch.setattr(judge, "_SIZES_COMPARED", 8)
    counted = []
    for size in (1, SMALL, 4 * SMALL):  # the first one imports what is imported once
        TREES[name](tmp_path / str(size), size)
        counted.append(cost(tmp_path / str(size), settle))
    assert counted[2] < 6 * counted[1], counted


@pytest.mark.share(4)
@pytest.mark.parametrize("name", sorted(TREES.keys() - {"empty bundles"}))  # each looks for shards beside it
def test_no_directory_is_listed_for_each_entry(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing is left of what is there, all questions of a first launch are asked."""
    TREES[name](tmp_path / "run", SMALL)
    listed, scandir, listdir = Counter[str](), os.scandir, os.listdir

    def counted(how: Callable[..., Any], path: Any = ".") -> Any:
        listed[str(path)] += 1
        return how(path)

    monkeypatch.setattr(os, "scandir", partial(counted, scandir))
    monkeypatch.setattr(os, "listdir", partial(counted, listdir))
    for allow_none in (False, True):
        with suppress(CkptError):
            api.plan(str(tmp_path / "run"), Selection(jobs=1, allow_none=allow_none))
    assert listed
    assert max(listed.values()) < SMALL / 2, listed.most_common(1)


def peak(root: Path, ranks: int) -> int:
    """Bytes of memory that a plan from names alone has at most, for folders of 100 checkpoints."""
    for rank in range(ranks):
        for step in range(1, 101):
            put(root / f"rank_{rank}" / f"net-1_{step}.ckpt", b"x", step)
    tracemalloc.start()
    try:
        api.plan(str(root), Selection(level=Level.PRESENCE))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_file_more_takes_little_memory(tmp_path: Path) -> None:
    """A million files are planned in half a gigabyte."""
    peak(tmp_path / "imports", 2)
    few, many = peak(tmp_path / "few", 5), peak(tmp_path / "many", 15)
    assert (many - few) / 1000 < 520, (many - few) / 1000


def test_a_directory_more_takes_little_memory() -> None:
    """Many templates fit the directory of a rank: what they tell of it is not kept."""
    templates = BUILT_IN.templates()
    templates.places("/run/iter_0000020/mp_rank_00000")
    tracemalloc.start()
    try:
        kept = [templates.places(f"/run/iter_0000020/mp_rank_{i:05d}") for i in range(1000)]
        assert tracemalloc.get_traced_memory()[1] / len(kept) < 700
    finally:
        tracemalloc.stop()


FEW, MANY = 15, 60
MOST = 1.25
"""Calls for each checkpoint of many, as a multiple of those for each of few. Work for each pair would make it 4."""


def megatron(root: Path, n: int) -> None:
    for step in range(1, n + 1):
        data = small_files.megatron(step, 0, 1, 1, 1)
        put(root / f"iter_{step:07d}/mp_rank_00/model_optim_rng.pt", data, step)
    put(root / "latest_checkpointed_iteration.txt", str(n).encode(), n)


def mindspore(root: Path, n: int) -> None:
    for step in range(1, n + 1):
        data = small_files.mindspore(False, 0, epoch_num=step - 1, step_num=10 * step)
        put(root / f"net-{step}_10.ckpt", data, step)


@pytest.mark.parametrize("make", [megatron, mindspore])
def test_each_checkpoint_costs_the_same_among_many(make: object, tmp_path: Path) -> None:
    cost = {}
    for n in (FEW, MANY):
        root = tmp_path / str(n)
        make(root, n)  # type: ignore[operator]

        def work(root: Path = root, n: int = n) -> None:
            made = prune(str(root), Policy(keep_last=3), selection=Selection(settle=0.0))
            assert sum(row.state == "would-remove" for row in made.changes) == n - 3, made

        if n == FEW:
            work()  # what is imported once
        cost[n] = calls(work) / n
    assert cost[MANY] < MOST * cost[FEW], cost


def counting(piece: str, step: int, **counted: int) -> tuple[Part, Report]:
    home = f"/run/checkpoint-{step}"
    part = Part(f"{home}/{piece}", "hf-trainer", piece, piece, ".", "/run", home=home, step=step)
    return part, Report(part.path, "torch", 1, Verdict.OK, Level.CONTENT, metadata=counted)


def test_comparing_counters_costs_the_same_among_many() -> None:
    """A counter of another unit grows at every second save."""

    def evaluations(n: int) -> int:
        rows = [counting("scheduler", 10 * k, last_epoch=k // 2) for k in range(1, n + 1)]
        return calls(lambda: list(find_foreign(rows, {"scheduler": ("last_epoch",)})))

    assert evaluations(MANY) / MANY < 1.5 * evaluations(FEW) / FEW


def test_schedules_beside_an_optimizer_that_took_no_step() -> None:
    """One save, before the first step: nothing to compare it to."""
    rows = [counting("optimizer", 0, optimizer_step=0), counting("scheduler", 0, last_epoch=1)]
    assert list(find_schedules(rows, ())) == []
