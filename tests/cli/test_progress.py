"""Progress is true: how much there is to read is known before it is read, and nothing is said where nobody
watches.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import small_files
from places import LAYOUT_TREES
from progress_lines import FIELDS
from run_helpers import CLEAN, broken, ckpt, megatron
from safetensors_writer import beginning

from ckpt_tools import CkptError, Level, Selection, plan, scan, verify
from ckpt_tools.cli import progress as progress_module
from ckpt_tools.cli.output import Output
from ckpt_tools.cli.progress import INTERVAL, Lines, Meter, progress
from ckpt_tools.storage import Identity

CASES = [[p for p in sorted(layout.iterdir()) if p.is_dir()] for layout in sorted(LAYOUT_TREES.iterdir())]
TREES = [cases[0] / "tree" for cases in CASES]


def measured(ask: Callable[[Callable[[int, int], None]], object]) -> list[tuple[int, int]]:
    """What progress said, in order."""
    said: list[tuple[int, int]] = []
    with suppress(CkptError):
        ask(lambda done, total: said.append((done, total)))
    return said


@pytest.mark.slow
@pytest.mark.parametrize("tree", TREES, ids=lambda p: p.parent.parent.name)
def test_what_is_left_is_known(tree: Path) -> None:
    """In every layout: what was read never exceeds what there is, and goes to its end."""
    asked = Selection(jobs=1, allow_none=True, order="step")
    said = measured(lambda tell: plan(str(tree), asked, progress=tell))
    assert all(done <= total for done, total in said) and [d for d, _ in said] == sorted(d for d, _ in said)
    assert not said or said[-1][0] == said[-1][1]


def test_the_total_is_that_of_the_files_to_load(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run", world=2)
    sizes = [p.stat().st_size for p in sorted(root.glob("iter_0000020/*/*.pt"))]
    said = measured(lambda tell: plan(str(root), Selection(jobs=1), progress=tell))
    assert said[0][1] == sum(sizes) and said[0][0] < sum(sizes)
    assert not measured(lambda tell: plan(str(root), Selection(level=Level.STRUCTURE), progress=tell))


def test_what_an_earlier_run_has_read_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPT_CACHE_DIR", str(tmp_path / "cache"))
    # or its files, a moment old, would be read again
    monkeypatch.setattr(Identity, "settled", lambda *_: True)
    root = megatron(tmp_path / "run", world=2)
    first = measured(lambda tell: plan(str(root), Selection(jobs=1, cache=True), progress=tell))
    again = measured(lambda tell: plan(str(root), Selection(jobs=1, cache=True), progress=tell))
    assert first and all(done == total for done, total in again)


def test_nothing_is_said_where_stderr_is_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with progress(Output("table")) as meter:
        assert meter is None
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def huge(tmp_path: Path) -> Path:
    """A Trainer's checkpoint whose model has 6 GiB and takes no room on the disk."""
    home = tmp_path / "run" / "checkpoint-10"
    home.mkdir(parents=True)
    for name, data in small_files.trainer(10).items():
        (home / name).write_bytes(data)
    size = 6 << 30
    head = beginning(size)
    with open(home / "model.safetensors", "wb") as f:
        f.write(head)
        f.truncate(len(head) + size)
    return home.parent


class Heard:
    """What a watcher is told."""

    def __init__(self) -> None:
        self.listed, self.opened = list[str](), set[str]()

    def __call__(self, done: int, total: int) -> None:
        return

    def listing(self, path: str) -> None:
        self.listed.append(path)

    def file(self, path: str, total: int | None) -> None:
        self.opened.add(path)


@pytest.mark.slow
def test_every_directory_that_is_listed_is_said(root: Path) -> None:
    """A file system that answers slowly is heard of before the first byte is read."""
    there = {str(root), *(str(path) for path in root.rglob("*") if path.is_dir())}
    for ask in (scan, verify, lambda path, progress: plan(path, progress=progress)):
        heard = Heard()
        ask(root, progress=heard)
        assert set(heard.listed) >= there and not any("model_optim" in path for path in heard.listed)


@pytest.mark.slow
def test_a_terminal_sees_what_is_listed_and_read(capfd: pytest.CaptureFixture[str]) -> None:
    meter = Meter(False)
    meter.listing("/runs/at/once")
    assert not capfd.readouterr().err, "a short run shows no bar"
    meter.started = meter.said = meter.started - 10
    meter.listing("/runs/a\x1b[2Jb")
    meter.said -= 10
    meter.file(f"/runs/{'x' * 99}/file.pt", 3)
    meter(1 << 20, 1 << 30)
    meter.stop()
    err = capfd.readouterr().err
    assert "listing /runs/a" in err and "\x1b[2J" not in err and "x/file.pt" in err and "x" * 50 not in err


@pytest.mark.slow
@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_terminal_sees_how_much_of_6_gib_was_read(command: str, huge: Path, tmp_path: Path) -> None:
    more = ["--plan-dir", str(tmp_path / "plans"), "--", "true"] if command == "run" else []
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "ckpt_tools", command, str(huge), *more]
    env = {**CLEAN, "TERM": "xterm", "COLUMNS": "120", "CKPT_NO_CACHE": "1"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=theirs, env=env) as child:
        os.close(theirs)
        seen = b""
        while b"/6.0 GiB" not in seen:
            seen += os.read(ours, 1 << 16)  # raises when the command ends without having said it
        child.send_signal(signal.SIGINT)
        with suppress(OSError):  # it has ended
            while os.read(ours, 1 << 16):
                pass
        assert child.wait() == 130
    os.close(ours)


def lines_of(err: str) -> list[dict]:
    """The objects among what stands on stderr."""
    return [json.loads(line) for line in err.splitlines() if line.startswith("{")]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["verify", "plan", "latest", "run", "hook", "diff", "seal"])
def test_a_wrapper_hears_of_the_first_and_the_last(command: str, tmp_path: Path) -> None:
    root = megatron(tmp_path / "run\n\udcff{", world=2)
    subject = [root / "iter_0000010", root / "iter_0000020"] if command == "diff" else [root]
    state = ["--plan-dir", tmp_path / "plans"] if command in ("run", "hook") else []
    more = {"latest": "--rank 0 --json", "hook": "--json", "run": "--rank 0 -- true", "seal": "--dry-run"}
    words = [*state, *more.get(command, "").split()]
    for quiet in ([], ["-q"]):
        done = ckpt(command, *subject, "--progress", "json", *quiet, *words, env={"CKPT_NO_CACHE": "1"})
        first, *_, last = said = lines_of(done.stderr)
        assert done.returncode == (command == "diff"), done.stderr
        assert all(list(line) == FIELDS and line["type"] == "progress" for line in said)
        assert (first["state"], first["bytes"], last["state"]) == ("started", 0, "done")
        assert 0 < last["bytes"] <= last["bytes_total"]
        assert last["files"] >= 2 and last["file"].startswith(str(root))
        assert last["files_total"] == (last["files"] if command in ("verify", "diff", "seal") else None)


@pytest.mark.slow
def test_a_failure_ends_in_stopped_and_the_rest_of_stderr_stays(root: Path) -> None:
    for step in (10, 20):
        broken(root, step)
    done = ckpt("plan", root, "--progress", "json")
    assert done.returncode == 4 and lines_of(done.stderr)[-1]["state"] == "stopped"
    assert "ckpt: error: " in done.stderr and "progress" not in done.stdout


def test_few_lines_whatever_happens(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now)
    with progress(Output("json", progress="json")) as meter:
        assert isinstance(meter, Lines)
        for i in range(10_000):
            now += 0.001
            meter.file(f"/data/{i % 3}", 7)
            meter(i, 20_000)
    said = lines_of(capfd.readouterr().err)
    assert len(said) <= 10 / INTERVAL + 2 and len(said) > 30
    assert [line["seconds"] for line in said] == sorted(line["seconds"] for line in said)
    last = {"file": "/data/0", "files": 3, "files_total": 7, "bytes": 9999, "rate": 1000, "state": "done"}
    assert last.items() <= said[-1].items()
