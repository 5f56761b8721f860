"""Seals made while training goes on: in the background, around saves, by each rank of its own files."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from unittest import TestCase

import pytest
import warm
from places import DOCS
from run_helpers import flip, megatron

import ckpt_tools
from ckpt_tools import guard
from ckpt_tools.errors import CannotLook
from ckpt_tools.guard.callbacks import saving, seal_when_done
from ckpt_tools.guard.writing import write_seal


@pytest.fixture(autouse=True)
def nothing_goes_on() -> Iterator[None]:
    """The thread that seals would be in the way of tests that fork this process."""
    yield
    if guard._get_worker.cache_info().currsize:
        guard._get_worker().close(wait=True)
        guard._get_worker.cache_clear()


def python(code: str, *words: object, interpreter: str = sys.executable, **env: str) -> str:
    """What a process prints that runs this."""
    command = [interpreter, "-c", textwrap.dedent(code), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | env)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_a_script_that_may_seal_imports_next_to_nothing() -> None:
    names = ("transformers", "lightning", "mindspore")
    for module, most in (("ckpt_tools", 1), *((f"ckpt_tools.guard.callbacks.{name}", 24) for name in names)):
        said = python(f"""
            import sys
            import {module}
            print(sum(name.startswith("ckpt_tools") for name in sys.modules))
            print(*{{"torch", "numpy", "rich", "typer", "xxhash", "json", *{names}}} & set(sys.modules))
        """)
        count, heavy = said.split("\n")[:2]
        assert heavy == "" and int(count) <= most


def test_it_goes_on_in_the_background_in_order(tmp_path: Path) -> None:
    roots = [megatron(tmp_path / name) for name in "ab"]
    first, last = (ckpt_tools.seal(root, background=True) for root in roots)
    done = last.wait(), first.wait(0)
    assert [one and (*one.roots, one.count("sealed")) for one in done] == [(str(r), 2) for r in roots[::-1]]


def test_what_goes_wrong_is_a_warning(root: Path, tmp_path: Path) -> None:
    path = root / "iter_0000020/mp_rank_00/model_optim_rng.pt"
    path.write_bytes(path.read_bytes()[:-40])
    with TestCase().assertLogs("ckpt_tools", "INFO") as logged:
        assert ckpt_tools.seal(root, background=True).wait() is not None
        assert ckpt_tools.seal(root, background=True, digest="crc8").wait() is None
        assert ckpt_tools.seal(root, background=True, seal_dir=str(path)).wait() is None
        assert ckpt_tools.seal(tmp_path / "gone", background=True).wait() is None
    levels = [(r.levelname, r.name) for r in logged.records]
    assert levels == [("WARNING", "ckpt_tools")] * 3 + [("INFO", "ckpt_tools")]


def test_a_process_that_ends_waits_for_its_seals(root: Path) -> None:
    python("import sys, ckpt_tools; ckpt_tools.seal(sys.argv[1], background=True)", root)
    assert len(list(root.glob("*/.ckpt-seal.json"))) == 2


def test_a_directory_that_is_deleted_meanwhile_does_not_come_back(tmp_path: Path) -> None:
    for name in (".ckpt-seal.json", ".ckpt-seal.d/rank-00001.json"):
        with pytest.raises(CannotLook):
            write_seal(f"{tmp_path}/checkpoint-10/{name}", b"", away=False)
        assert not list(tmp_path.iterdir())


def test_nobody_swears_to_what_is_being_replaced(tmp_path: Path) -> None:
    path = megatron(tmp_path / "run", [10]) / "iter_0000010"
    seal = path / ".ckpt-seal.json"
    with saving(path, background=False):
        assert not seal.exists()
    assert seal.exists()
    with pytest.raises(ZeroDivisionError), saving(path, background=False):
        1 / seal.exists()
    assert not seal.exists()


def saved(path: Path, world: int = 1) -> None:
    """Each rank has saved its part."""
    for rank in range(world):
        with saving(path, background=False, **({"rank": rank, "world_size": world} if world > 1 else {})):
            pass


def test_ranks_that_are_no_more_leave_no_share(tmp_path: Path) -> None:
    path = megatron(tmp_path / "run", [10]) / "iter_0000010"
    saved(path, 4)
    saved(path, 2)
    shares = path / ".ckpt-seal.d"
    assert sorted(p.name for p in shares.iterdir()) == ["rank-00000.json", "rank-00001.json"]
    saved(path)
    assert not [*path.glob(".ckpt-seal.d/*")]


def test_a_save_that_failed_is_not_sealed(tmp_path: Path) -> None:
    path = megatron(tmp_path / "run", [10]) / "iter_0000010"
    ckpt_tools.seal(path)
    failed = Future[None]()
    failed.set_exception(OSError("disk full"))
    seal_when_done(failed, path)
    guard.finish()
    assert not (path / ".ckpt-seal.json").exists()


SAVES = """
    import os, sys

    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from ckpt_tools.guard.callbacks import saving, seal_when_done

    out, rank, world = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    dist.init_process_group("gloo", init_method=f"file://{out}/meet", rank=rank, world_size=world)
    state = {"model": {f"w{rank}": torch.ones(50), "all": torch.zeros(50)}}
    me = {"rank": rank, "world_size": world}
    for step in (1, 2):
        with saving(path := f"{out}/run/step_{step}", **me):
            dcp.save(state | {"step": step}, checkpoint_id=path)
    path = f"{out}/run/step_3"
    future = dcp.async_save(state | {"step": 3}, checkpoint_id=path)
    seal_when_done(future, path, **me)
    future.result()
    if rank == 0:
        os.mkdir(f"{out}/plain-{world}")
        for step in (1, 2):
            with saving(path := f"{out}/plain-{world}/last.pt"):
                torch.save(state | {"step": step}, path)
    dist.destroy_process_group()
"""


def errors(verified: ckpt_tools.Verification) -> set[str]:
    found = [*verified.findings, *(f for file in verified.files for f in file.report.findings)]
    return {f.code for f in found if f.severity >= ckpt_tools.Severity.ERROR}


@pytest.mark.torch
@pytest.mark.parametrize("world", [pytest.param(1, marks=pytest.mark.exhaustive), 2])
def test_what_torch_saves_is_sealed(tmp_path: Path, world: int) -> None:
    """By torch.save, DCP and DCP's asynchronous save: 100 % of every file, and every bit is guarded."""
    line = [warm.python_with_torch(), "-c", textwrap.dedent(SAVES), tmp_path]
    ranks = [subprocess.Popen([*line, str(r), str(world)], stderr=subprocess.PIPE) for r in range(world)]
    said = [rank.communicate()[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world, said
    for root, saves in ((tmp_path / "run", 3), (tmp_path / f"plain-{world}", 1)):
        verified = ckpt_tools.verify(root, require_seal=True)
        assert not errors(verified) and ckpt_tools.plan(root).checkpoint is not None
        assert not [f for f in verified.files if f.report.format != "seal" and f.report.coverage != 1]
        assert len(list(root.glob("*/.ckpt-seal.d/*"))) == (saves * world if world > 1 and saves > 1 else 0)
        for path in [p for p in root.rglob("*") if p.is_file() and ".ckpt-seal" not in str(p)]:
            flip(path, -9, 4)
            assert errors(ckpt_tools.verify(root)) >= {"seal-mismatch"}, path
            flip(path, -9, 4)


@pytest.mark.share(3)
@pytest.mark.torch
@pytest.mark.parametrize("name", ["torch.save", "torch.distributed.checkpoint", "An asynchronous save"])
def test_the_examples_on_the_page(tmp_path: Path, name: str) -> None:
    page = (DOCS / "seals.md").read_text()
    (code,) = re.findall(rf"^\*\*{re.escape(name)}\*\*.*\n\n```python\n((?:.*\n)+?)```", page, re.MULTILINE)
    (tmp_path / "run").mkdir()
    # in a process of its own: what torch leaves running here would be in the way of other tests
    python(AROUND_AN_EXAMPLE, code, tmp_path, interpreter=warm.python_with_torch())
    verified = ckpt_tools.verify(tmp_path / "run", require_seal=True)
    assert verified.files
    assert not errors(verified)


AROUND_AN_EXAMPLE = """
    import os, sys, time
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from ckpt_tools import guard

    code, home = sys.argv[1:]
    dist.init_process_group("gloo", init_method=f"file://{home}/meet", rank=0, world_size=1)
    model, step, run = torch.nn.Linear(2, 2), 4, f"{home}/run"
    exec(code)
    if "future" in globals():
        future.result()
        while not os.path.exists(f"{run}/step_4/.ckpt-seal.json"):
            time.sleep(0.05)  # the future is done a moment before it tells
    dist.destroy_process_group()
    guard.finish()
"""


def test_every_example_on_the_page_is_code() -> None:
    page = (DOCS / "seals.md").read_text()
    blocks = re.findall(r"```python\n((?:.*\n)+?)```", page)
    assert len(blocks) == 10
    for block in blocks:
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom):
                module = importlib.import_module(str(node.module))
                assert all(hasattr(module, alias.name) for alias in node.names)
