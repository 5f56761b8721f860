"""How many requests a question costs, and how many bytes: counted, because time says little."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path

import pytest
from obstore.store import MemoryStore
from places import FIXTURES
from stores.asking import TREE
from stores.calls import Counted

from ckpt_tools import api
from ckpt_tools.model.report import Level, Verdict
from ckpt_tools.model.selection import Selection
from ckpt_tools.storage.stores import mounts, source
from ckpt_tools.storage.stores.tree import Tree

URL = "counted://bucket"


def read_of(store: Counted) -> int:
    return sum(length for _, _, length in store.gets)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counted:
    monkeypatch.setenv("CKPT_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "objects").mkdir()
    counted = Counted(URL, tmp_path / "objects")
    monkeypatch.setitem(mounts._trees, (URL, ()), Tree(counted))
    return counted


def megatron(root: Path, ranks: int, steps: range) -> None:
    for step in steps:
        for rank in range(ranks):
            home = root / f"iter_{step:07}" / f"mp_rank_{rank:02}"
            home.mkdir(parents=True)
            (home / "model_optim_rng.pt").write_bytes(b"x")
    (root / "latest_checkpointed_iteration.txt").write_text(str(steps[-1]))


def test_a_listing_costs_its_pages(store: Counted, tmp_path: Path) -> None:
    megatron(tmp_path / "objects/run", 300, range(10, 101, 10))
    scan = api.scan(f"{URL}/run")
    assert len(scan.checkpoints) == 10
    assert store.requests == Counter(list=4)  # 3,001 keys in pages of 1,000


@pytest.mark.parametrize("ranks", [64, pytest.param(1024, marks=pytest.mark.exhaustive)])
def test_a_plan_asks_the_listing_and_no_file(store: Counted, tmp_path: Path, ranks: int) -> None:
    megatron(tmp_path / "objects/run", ranks, range(100, 2001, 100))
    for path in (tmp_path / "objects").rglob("*.*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))  # times are whole seconds, and tell no newest save
    plan = api.plan(f"{URL}/run", Selection(level=Level.PRESENCE, world_size=ranks))
    assert plan.resume_step == 2000
    run, save = ranks * 20 // 1000 + 1, ranks // 1000 + 1  # pages
    # both once more: where a run has fewer pages than directories are asked about, all of it is listed
    assert store.requests["list"] == 2 * run + save
    assert {key for key, _, _ in store.gets} <= {"run/latest_checkpointed_iteration.txt"}
    assert store.requests["head"] == 0


@pytest.mark.torch
@pytest.mark.parametrize("tensors", [8, pytest.param(64, marks=pytest.mark.exhaustive)])
def test_the_structure_of_a_large_file_takes_four_requests(
    tensors: int, store: Counted, tmp_path: Path
) -> None:
    """Of two gibibytes at night."""
    import torch

    one = 32 << 20
    with open(tmp_path / "zeros", "wb") as file:
        file.truncate(one)
    model = {}
    for i in range(tensors):
        storage = torch.UntypedStorage.from_file(str(tmp_path / "zeros"), shared=False, nbytes=one)
        model[f"layers.{i}.weight"] = torch.tensor([], dtype=torch.float32).set_(storage)
    torch.save(model, tmp_path / "objects/model.pt")
    reports = api.verify(f"{URL}/model.pt", Level.STRUCTURE).files
    assert [r.report.verdict for r in reports] == [Verdict.OK]
    assert reports[0].report.size > tensors * one
    assert len(store.gets) <= 4
    assert read_of(store) < 1 << 20


@pytest.mark.torch
def test_content_is_asked_for_once(store: Counted, tmp_path: Path) -> None:
    import torch

    torch.save({f"{i}": torch.randn(1 << 20) for i in range(12)}, tmp_path / "objects/model.pt")
    size = (tmp_path / "objects/model.pt").stat().st_size
    (file,) = api.verify(f"{URL}/model.pt").files
    assert file.report.verdict is Verdict.OK
    content = [(start, length) for _, start, length in store.gets if length > source.WINDOW]
    assert sum(length for _, length in content) <= 1.5 * size
    assert size <= read_of(store) <= 1.6 * size


@pytest.mark.parametrize("others", [0, 1100])
def test_one_file_costs_a_list_for_each_directory_above(store: Counted, tmp_path: Path, others: int) -> None:
    """Seals may lie in any of these, and what a large bucket has beside them is not listed for that."""
    store.client = memory = MemoryStore()  # which lists in the order of keys, as clouds do
    for path in TREE.rglob("*.*"):
        memory.put(f"team/run/{path.relative_to(TREE)}", path.read_bytes())
    for directory in ("", "team/", "team/run/") if others else ():
        for number in range(others):
            memory.put(f"{directory}z/{number}", b"")
    file = "team/run/iter_0000030/mp_rank_00/model_optim_rng.pt"
    report, _ = api.show(f"{URL}/{file}")
    assert report.verdict is Verdict.OK
    assert store.requests["list"] <= 5
    assert store.requests["head"] <= 1
    memory.put("team/run/iter_0000030/.ckpt-seal.json", b"{}")
    seen = {f.code for one in api.verify(f"{URL}/{file}").files for f in one.report.findings}
    assert "seal-broken" in seen


def test_what_was_verified_is_known_by_its_tag(store: Counted, tmp_path: Path) -> None:
    """A verdict is kept for the object that it was made of: the same bytes written again are another one."""
    run, long_ago = tmp_path / "objects/run", (1_600_000_000, 1_600_000_000)
    shutil.copytree(next(FIXTURES.glob("layouts/megatron/*/tree")), run)
    for path in run.rglob("*.*"):
        os.utime(path, long_ago)  # nothing can hide behind the clock's ticks

    def read() -> set[str]:
        before = len(store.gets)
        assert api.verify(f"{URL}/run", cache=True, max_age=3600.0).verdict is Verdict.OK
        return {key for key, _, _ in store.gets[before:] if key.endswith(".pt")}

    files = {f"run/{path.relative_to(run)}" for path in run.rglob("*.pt")}
    assert read() == files
    assert read() == set()
    one = next(run.rglob("*.pt"))
    again = one.with_name("again")
    shutil.copy(one, again)
    again.replace(one)
    os.utime(one, long_ago)
    assert f"run/{one.relative_to(run)}" in read()


def test_a_store_is_not_told_to_copy_with_times(store: Counted, tmp_path: Path) -> None:
    """Every upload has a time of its own, so nobody can keep that of the save."""
    megatron(tmp_path / "objects/run", 2, range(10, 31, 10))
    for path in (tmp_path / "objects").rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    asked = Selection(level=Level.PRESENCE, world_size=2)
    plans = [api.plan(root, asked) for root in (f"{URL}/run", str(tmp_path / "objects/run"))]
    there, here = ({f.code: f.hint for f in made.warnings}["mtime-not-kept"] for made in plans)
    assert "--order step" in there and "cp -a" not in there
    assert "cp -a" in here
