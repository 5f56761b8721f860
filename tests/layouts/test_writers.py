"""Somebody else who writes below ROOT while a decision is made: said where it does not touch the choice, exit
5 where it does.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fixture_trees import TREES, materialise
from run_helpers import megatron

from ckpt_tools import cli
from ckpt_tools.api import plan
from ckpt_tools.errors import CannotLook, CkptError
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning import other_writers
from ckpt_tools.planning.choose import choose
from ckpt_tools.planning.planner import Planner

ASK = {
    "plan": ("plan", "--json"),
    "latest": ("latest", "--rank", "0"),
    "hook": ("hook", "--plan-dir", "{plans}"),
    "run": ("run", "--plan-dir", "{plans}"),
}


ORPHAN = "iter_0000030/mp_rank_00/model_optim_rng.pt.tmp"
"""A save that a killed launcher's worker goes on with."""
Asked = Callable[[str, Path], tuple[int, str, str]]


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


class Started(BaseException):
    """The command of ``ckpt run`` would have been started."""


def become(words: list[str], env: dict[str, str]) -> None:
    sys.stdout.write(f"CKPT_STEP={env['CKPT_STEP']}")
    raise Started


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Asked:
    """(exit code, stdout, stderr) of one of the commands that choose."""
    monkeypatch.setattr("ckpt_tools.job.command.become", become)

    def ask(command: str, root: Path) -> tuple[int, str, str]:
        name, *words = (w.replace("{plans}", str(tmp_path / "plans")) for w in ASK[command])
        try:
            code = cli.execute(
                [name, str(root), *words, "--no-cache", *(("--", "true") if command == "run" else ())]
            )
        except Started:
            code = 0
        return code, *capfd.readouterr()

    return ask


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = megatron(tmp_path / "run")
    orphan = root / ORPHAN
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"x")
    # the clock of a file system goes in steps of some milliseconds
    for path in (orphan, *orphan.parents[:3]):
        os.utime(path, (time.time() - 60,) * 2)
    return root


@pytest.mark.slow
@pytest.mark.parametrize("command", ASK)
def test_an_orphan_that_writes_the_next_checkpoint_is_said(root: Path, command: str, asked: Asked) -> None:
    with writing(root / ORPHAN):
        code, out, err = asked(command, root)
    assert code == 0 and "another-writer" in err + out and str(root / ORPHAN) in err + out, (out, err)
    assert "20" in out + err
    code, out, err = asked(command, root)
    assert code == 0 and "another-writer" not in out + err  # it was killed


@pytest.mark.parametrize("command", ASK)
def test_a_writer_in_the_chosen_checkpoint_stops_every_command(
    root: Path, command: str, asked: Asked
) -> None:
    with writing(root / "iter_0000020/mp_rank_01/model_optim_rng.pt"):
        code, out, err = asked(command, root)
    assert (
        code == 5 and "iter_0000020/mp_rank_01" in err and "CKPT_STEP=" not in out.replace("(exit 5)", "")
    ), (out, err)


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
    for path in sorted({f.path for f in (*made.shared, *(f for r in made.by_rank for f in r.files))}):
        st = os.stat(path)
        os.utime(path)
        with pytest.raises(CannotLook, match="in use: it has changed"):
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
        monkeypatch.setattr(
            os, name, lambda *a, real=real, name=name, **k: (calls.append(name), real(*a, **k))[1]
        )
    assert list(planner.find_other_writers()) == []
    # the newest checkpoint's files, the run, the checkpoint, its directories
    assert len(calls) <= 4 + 1 + 1 + 4 + 1 and set(calls) == {"stat"}
    assert len(calls) <= 2 * other_writers.STATS + other_writers.DIRECTORIES


def test_slow_file_systems_are_asked_many_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [str(tmp_path / f"{i}") for i in range(100)]
    for path in paths[:-1]:
        Path(path).write_bytes(b"x")
    quick = dict(other_writers.stat_all(paths))
    slow = dict(other_writers.stat_all(paths))
    assert list(slow) == list(quick) == paths and isinstance(slow[paths[-1]], FileNotFoundError)
    assert all(slow[p] == quick[p] for p in paths[:-1])


def test_a_clock_that_is_wrong_is_no_writer(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run")
    for path in (root / "iter_0000010").rglob("*.pt"):
        os.utime(path, (time.time() + 7200, time.time() + 7200))
    made = plan(str(root), Selection(order="step"))
    assert not said(made)
