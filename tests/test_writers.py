"""Somebody else who writes below ROOT while a decision is made: said where it does not touch the choice, exit 5 where it does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from run_helpers import SAY, ckpt, megatron
from test_layouts import CASES, materialise

from ckpt_tools.choose import choose
from ckpt_tools.errors import CannotLook, CkptError
from ckpt_tools.model import Finding, LoadPlan
from ckpt_tools.pipeline import plan, writers
from ckpt_tools.pipeline.planner import Planner
from ckpt_tools.question import Selection

REWRITE = "import os, sys; fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); print('on', flush=True)\nwhile True: os.pwrite(fd, b'x', 0)"
GROW = """
import os, sys, time
print('on', flush=True)
for n in range(10**9):
    path = os.path.join(sys.argv[1], f"part-{n % 50}")
    with open(path, "ab") as f:
        f.write(b"x" * 100)
    if n % 50 == 49:
        for i in range(50):
            os.unlink(os.path.join(sys.argv[1], f"part-{i}"))
"""
ASK = {
    "plan": ("plan", "--json"),
    "latest": ("latest", "--rank", "0"),
    "hook": ("hook", "--plan-dir", "{plans}"),
    "run": ("run", "--plan-dir", "{plans}"),
}


ORPHAN = "iter_0000030/mp_rank_00/model_optim_rng.pt.tmp"
"""A save that a killed launcher's worker goes on with."""


@contextmanager
def writing(code: str, path: Path) -> Iterator[None]:
    """A process that writes without a pause."""
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout and writer.stdout.readline() == b"on\n"
        try:
            yield
        finally:
            writer.kill()


def asked(command: str, root: Path) -> subprocess.CompletedProcess[str]:
    words = [w.replace("{plans}", str(root.parent / "plans")) for w in ASK[command]]
    return ckpt(words[0], root, *words[1:], "--no-cache", *(("--", *SAY) if command == "run" else ()))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = megatron(tmp_path / "run")
    orphan = root / ORPHAN
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"x")
    return root


@pytest.mark.parametrize("command", ASK)
def test_an_orphan_that_writes_the_next_checkpoint_is_said(root: Path, command: str) -> None:
    path = root / ORPHAN
    with writing(REWRITE, path):
        done = asked(command, root)
    assert done.returncode == 0 and "another-writer" in done.stderr + done.stdout and str(path) in done.stderr + done.stdout, done
    assert "20" in done.stdout + done.stderr
    time.sleep(0.05)  # the clock of a file system goes in steps of some milliseconds
    assert "another-writer" not in "".join((done := asked(command, root)).stderr + done.stdout)  # it was killed


@pytest.mark.parametrize("command", ASK)
def test_a_writer_in_the_chosen_checkpoint_stops_every_command(root: Path, command: str) -> None:
    with writing(REWRITE, root / "iter_0000020/mp_rank_01/model_optim_rng.pt"):
        done = asked(command, root)
    assert done.returncode == 5 and "iter_0000020/mp_rank_01" in done.stderr and "CKPT_STEP=" not in done.stdout.replace("(exit 5)", ""), done


def test_new_files_beside_the_checkpoints_are_said(root: Path) -> None:
    with writing(GROW, root):
        found = said(plan(str(root), Selection()))
    assert found and all(os.path.dirname(f.path) == str(root) or f.path == str(root) for f in found)


def said(made: LoadPlan) -> list[Finding]:
    return [f for f in made.warnings if f.code == "another-writer"]


# -- laws over every layout ------------------------------------------------------------------------------------------------------------


def decided(root: Path) -> tuple[Planner, Any] | None:
    """A planner that has chosen, where the case has an answer without any option."""
    try:
        planner = Planner(str(root), Selection(), None)
        ranked = planner.candidates()
        choice = choose(ranked, planner.judge.judge, step_of=planner.step)
    except CkptError:
        return None
    return (planner, choice) if choice.checkpoint else None


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.parent.parent.name}-{c.parent.name}")
def test_every_planned_file_that_changes_and_every_new_one_is_noticed(case: Path, tmp_path: Path) -> None:
    root = materialise(case, tmp_path)
    found = decided(root)
    if found is None:  # a case about options: nothing is chosen, and so nothing can change
        with pytest.raises(CkptError):
            plan(str(root))
        return
    planner, choice = found
    made = planner.finish(choice, choice.checkpoint)
    assert not said(made)
    for path in sorted({f.path for f in (*made.shared, *(f for r in made.ranks for f in r.files))}):
        st = os.stat(path)
        os.utime(path)
        with pytest.raises(CannotLook, match="in use: it has changed"):
            planner.finish(choice, choice.checkpoint)
        os.utime(path, ns=(st.st_atime_ns, st.st_mtime_ns))
    home = choice.checkpoint.parts[0].home or os.path.dirname(choice.checkpoint.parts[0].path)
    for directory in filter(os.path.isdir, {home, choice.checkpoint.parts[0].base}):  # MindSpore's base is a prefix: ckpt for ckpt_0
        (new := Path(directory, "new-file")).write_bytes(b"x")
        os.utime(new)
        os.utime(directory)  # what the kernel does, without the coarse steps of its clock
        assert str(new) in {f.path for f in said(planner.finish(choice, choice.checkpoint))}
        new.unlink()
        os.utime(directory, (1, 1))


def test_calls_are_few_while_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = megatron(tmp_path / "run", steps=range(10, 400, 10), world=4)
    planner, _ = decided(root) or pytest.fail("nothing chosen")
    calls: list[str] = []
    for name in ("stat", "scandir", "listdir", "lstat", "open"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, real=real, name=name, **k: (calls.append(name), real(*a, **k))[1])
    assert list(planner.other_writers()) == []
    assert len(calls) <= 4 + 1 + 1 + 4 + 1 and set(calls) == {"stat"}  # the newest checkpoint's files, the run, the checkpoint, its directories
    assert len(calls) <= 2 * writers.STATS + writers.DIRECTORIES


def test_slow_file_systems_are_asked_many_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [str(tmp_path / f"{i}") for i in range(100)]
    for path in paths[:-1]:
        Path(path).write_bytes(b"x")
    quick = dict(writers._stats(paths))
    monkeypatch.setattr(writers, "SLOW", -1.0)
    slow = dict(writers._stats(paths))
    assert list(slow) == list(quick) == paths and isinstance(slow[paths[-1]], FileNotFoundError)
    assert all(slow[p] == quick[p] for p in paths[:-1])


def test_a_clock_that_is_wrong_is_no_writer(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run")
    for path in (root / "iter_0000010").rglob("*.pt"):
        os.utime(path, (time.time() + 7200, time.time() + 7200))
    made = plan(str(root), Selection(order="step"))
    assert not said(made)
