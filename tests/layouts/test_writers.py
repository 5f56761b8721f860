"""Somebody else who writes below ROOT while a decision is made: said where it does not touch the choice, exit
5 where it does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fixture_trees import TREES, materialise
from in_process import executed, started
from run_helpers import megatron
from timed import put

from ckpt_tools.api import plan
from ckpt_tools.errors import CannotLook, CkptError
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning import other_writers
from ckpt_tools.planning.choose import choose
from ckpt_tools.planning.planner import Planner

ORPHAN = "iter_0000030/mp_rank_00/model_optim_rng.pt.tmp"
"""A save that a killed launcher's worker goes on with."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Somebody else who writes the file when all has been read and chosen. A process that writes all the time
    may find none in a short look.
    """
    real = Planner.finish

    def finish(self: Planner, *more: Any) -> LoadPlan:
        new = not path.exists()
        path.write_bytes(b"x" * (1 if new else path.stat().st_size))
        now = time.time_ns()  # what the kernel writes down, without the coarse steps of its clock
        for written in (path, path.parent) if new else (path,):
            os.utime(written, ns=(now, now))
        return real(self, *more)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Planner, "finish", finish)
        yield


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = megatron(tmp_path / "run")
    ago = time.time() - 60  # the clock of a file system goes in steps of some milliseconds
    orphan = put(root / ORPHAN, b"x", ago)
    for path in orphan.parents[:3]:
        os.utime(path, (ago, ago))
    return root


COMMANDS = ("plan --json", "latest --rank 0", "hook --plan-dir {}", "run --plan-dir {}")


def ask(command: str, root: Path) -> tuple[int, str]:
    """The exit code of one of the commands that choose, and all that it says; of what ``run`` starts the step."""
    name, *words = command.format(root.parent / "plans").split()
    if name == "run":
        start = started([root, *words, "--no-cache"], ["true"])
        return start.code, start.said + start.env.get("CKPT_STEP", "")
    code, out, err = executed([name, str(root), *words, "--no-cache"])
    return code, out + err


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_an_orphan_that_writes_the_next_checkpoint_is_said(root: Path, command: str) -> None:
    with writing(root / ORPHAN):
        code, told = ask(command, root)
    assert code == 0 and "another-writer" in told and str(root / ORPHAN) in told and "20" in told, told
    code, told = ask(command, root)
    assert code == 0 and "another-writer" not in told  # it was killed


@pytest.mark.parametrize("command", COMMANDS)
def test_a_writer_in_the_chosen_checkpoint_stops_every_command(root: Path, command: str) -> None:
    with writing(root / "iter_0000020/mp_rank_01/model_optim_rng.pt"):
        code, told = ask(command, root)
    assert (
        code == 5 and "iter_0000020/mp_rank_01" in told and "CKPT_STEP=" not in told.replace("(exit 5)", "")
    )


def test_new_files_beside_the_checkpoints_are_said(root: Path) -> None:
    with writing(root / "part-0"):
        assert [f.path for f in said(plan(str(root), Selection()))] == [str(root / "part-0")]


def said(made: LoadPlan) -> list[Finding]:
    return [f for f in made.warnings if f.code == "another-writer"]


# -- laws over every layout ----------------------------------------------------------------------------------


def decided(root: Path) -> tuple[Planner, Any] | None:
    """A planner that has chosen, where the case has an answer without any option."""
    try:
        planner = Planner(str(root), Selection(), None)
        ranked = planner.find_candidates()
        choice = choose(ranked, planner.judge.judge, step_of=planner.step)
    except CkptError:
        return None
    return (planner, choice) if choice.checkpoint else None


@pytest.mark.slow
@pytest.mark.share(30)
@pytest.mark.parametrize("case", TREES)
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
    for path in made.files():
        st = os.stat(path)
        os.utime(path)
        with pytest.raises(CannotLook, match="has changed since"):
            planner.finish(choice, choice.checkpoint)
        os.utime(path, ns=(st.st_atime_ns, st.st_mtime_ns))
    home = choice.checkpoint.parts[0].home or os.path.dirname(choice.checkpoint.parts[0].path)
    # MindSpore's base is a prefix: ckpt for ckpt_0
    for directory in filter(os.path.isdir, {home, choice.checkpoint.parts[0].base}):
        (new := Path(directory, "new-file")).write_bytes(b"x")
        os.utime(new)
        os.utime(directory)  # what the kernel does, without the coarse steps of its clock
        assert str(new) in {f.path for f in said(planner.finish(choice, choice.checkpoint))}
        new.unlink()
        os.utime(directory, (1, 1))


@pytest.mark.slow
def test_calls_are_few_while_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = megatron(tmp_path / "run", steps=range(10, 400, 10), world=4)
    planner, _ = decided(root) or pytest.fail("nothing chosen")
    calls: list[str] = []
    for name in ("stat", "scandir", "listdir", "lstat", "open"):
        real = getattr(os, name)
        spy = lambda *a, real=real, name=name, **k: (calls.append(name), real(*a, **k))[1]  # noqa: E731
        monkeypatch.setattr(os, name, spy)
    assert list(planner.find_other_writers()) == []
    # the newest checkpoint's files, the run, the checkpoint, its directories
    assert len(calls) <= 4 + 1 + 1 + 4 + 1 and set(calls) == {"stat"}
    assert len(calls) <= 2 * other_writers.STATS + other_writers.DIRECTORIES


def test_a_clock_that_is_wrong_is_no_writer(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run")
    for path in (root / "iter_0000010").rglob("*.pt"):
        os.utime(path, (time.time() + 7200,) * 2)
    assert not said(plan(str(root), Selection(order="step")))
