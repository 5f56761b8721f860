"""The history of starts: one line for each decision, told by ``ckpt plan --history``, and never in the way."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from run_helpers import CKPT, CLEAN, SAY, broken, ckpt, decided_body, megatron, torchrun_env

from ckpt_tools.job import starts
from ckpt_tools.planning import first_launch

pytestmark = pytest.mark.slow


def run(root: Path, plans: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return ckpt("run", root, "--plan-dir", plans, *words, "--", *SAY)


def told(root: Path, plans: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return ckpt("plan", root, "--plan-dir", plans, "--history", *words)


def history(root: Path, plans: Path, code: int = 0) -> dict:
    done = told(root, plans, "--json")
    assert done.returncode == code, (done.stdout, done.stderr)
    return json.loads(done.stdout)


def log(root: Path, plans: Path) -> Path:
    return Path(first_launch.place(str(plans), str(root))) / starts.NAME


def test_each_start_is_a_line(tmp_path: Path) -> None:
    root, plans = megatron(tmp_path / "run", steps=(10,)), tmp_path / "plans"
    history(root, plans, code=3)
    assert run(root, plans).returncode == 0
    megatron(root, steps=(20, 30))
    broken(root, 30)
    done = run(root, plans, "--settle", "0s")
    assert done.returncode == 0, done.stderr
    last, first = history(root, plans)["starts"]
    assert (first["step"], first["passed"], first["lost_steps"]) == (10, [], None)
    assert (last["step"], last["lost_steps"]) == (20, 10)
    (passed,) = last["passed"]
    assert passed["step"] == 30 and passed["codes"]
    table = told(root, plans).stdout
    assert "10 steps" in table and "iter_0000030" in table and "2 starts" in table


def test_the_third_start_from_the_same_checkpoint_is_said(root: Path, plans: Path) -> None:
    warned = ["restart-loop" in run(root, plans).stderr for _ in range(4)]
    assert warned == [False, False, True, True]
    assert history(root, plans)["repeats"] == 4
    megatron(root, steps=(30,))
    assert "restart-loop" not in run(root, plans, "--settle", "0s").stderr
    assert history(root, plans)["repeats"] == 1


def test_a_later_checkpoint_of_the_last_start_that_is_gone_is_said(tmp_path: Path) -> None:
    root, plans = megatron(tmp_path / "run", steps=(10, 20)), tmp_path / "plans"
    assert "nothing is left" not in run(root, plans).stderr
    shutil.rmtree(root / "iter_0000020")
    assert "the last start resumed from step 20" in run(root, plans).stderr
    assert "nothing is left" not in run(root, plans).stderr


def test_members_of_one_job_are_one_line(root: Path, plans: Path) -> None:
    line = [*CKPT, "run", str(root), "--plan-dir", str(plans), "--worker", "--", "true"]
    jobs = [subprocess.Popen(line, env={**CLEAN, **torchrun_env(rank, 2)}) for rank in range(2)]
    assert [job.wait() for job in jobs] == [0, 0]
    assert len(history(root, plans)["starts"]) == 1


@pytest.mark.share(3)
@pytest.mark.parametrize("text", ["garbage", '{"path": 3', "[]", "\0\xff", '{"path": null}', "[" * 100_000])
def test_a_line_that_says_nothing_is_counted(root: Path, plans: Path, text: str) -> None:
    run(root, plans)
    with log(root, plans).open("a") as file:
        file.write(f"\n{text}")
    assert run(root, plans).returncode == 0
    found = history(root, plans)
    assert (len(found["starts"]), found["damaged"]) == (2, 1)


def test_where_it_cannot_be_written_the_job_starts_all_the_same(root: Path, plans: Path) -> None:
    """And what others could have written is not told."""
    log(root, plans).mkdir(parents=True)
    assert run(root, plans).returncode == 0
    assert told(root, plans).returncode == 5
    log(root, plans).rmdir()
    run(root, plans)
    log(root, plans).chmod(0o666)
    assert told(root, plans).returncode == 2


@pytest.mark.share(2)
@pytest.mark.parametrize("call", ["write", "fsync"])
def test_killed_at_any_call_that_writes_the_history_is_readable(root: Path, plans: Path, call: str) -> None:
    run(root, plans)
    line = ["strace", "-f", "-qq", "-o", "/dev/null", "-P", str(log(root, plans))]
    line += ["-e", f"inject={call}:signal=KILL:when=1"]
    line += [*CKPT, "run", str(root), "--plan-dir", str(plans), "--", "true"]
    done = subprocess.run(line, env=CLEAN, capture_output=True)
    assert done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), done.stderr
    assert run(root, plans).returncode == 0
    found = history(root, plans)
    assert len(found["starts"]) in (2, 3) and not found["damaged"]


def test_it_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ckpt_tools.job import decisions

    monkeypatch.setattr(decisions, "_MOST", 2000)
    made = decisions.Decisions(str(tmp_path / "plans"), str(tmp_path / "run"))
    for step in range(60):
        body = decided_body("/x", step) | {"decision": {"root": "/", "decided_at": float(step)}}
        made._log_start(decisions.Decision("", body))
    kept = starts.history(str(tmp_path / "run"), made.directory)
    assert kept.starts[0].step == 59 and 5 < len(kept.starts) < 40 and not kept.damaged
    assert os.path.getsize(f"{made.directory}/{starts.NAME}") <= 2200


LAUNCHER = """
import subprocess, sys
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(worker.pid, flush=True)
if again := sys.argv[1:]:
    print(subprocess.run(again, stderr=subprocess.PIPE, text=True).stderr)
    worker.kill()
worker.wait()
"""
LINUX = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="only Linux tells environments")


@LINUX
@pytest.mark.parametrize("words", [(), ("--view", "view")], ids=["as it is", "a view"])
def test_workers_that_a_killed_launcher_left_are_said(
    words: tuple[str, ...], root: Path, plans: Path, tmp_path: Path
) -> None:
    """They go on saving where the next job saves."""
    view = [word if word.startswith("-") else str(tmp_path / word) for word in words]
    line = [*CKPT, "run", root, "--plan-dir", plans, *view, "--", sys.executable, "-c", LAUNCHER]
    with subprocess.Popen(line, env=CLEAN, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        worker = int(launcher.stdout.readline())
        launcher.kill()
    try:
        done = run(root, plans)
        assert done.returncode == 0 and f"and end those that train: kill {worker}\n" in done.stderr
        assert "another-writer" not in run(megatron(root.with_name("other")), plans).stderr
    finally:
        os.kill(worker, signal.SIGKILL)
    assert "another-writer" not in run(root, plans).stderr


@LINUX
def test_workers_of_the_same_launcher_are_none(root: Path, plans: Path) -> None:
    """It decides again when it starts some of them anew."""
    start = [*CKPT, "run", root, "--plan-dir", plans, "--"]
    line = [*start, sys.executable, "-c", LAUNCHER, "env", "-u", "CKPT_PLAN", *start, "true"]
    done = subprocess.run(line, env=CLEAN, capture_output=True, text=True)
    assert done.returncode == 0 and "another-writer" not in done.stdout and "1.json" in done.stdout


@LINUX
def test_a_script_that_asks_twice_is_no_earlier_start(root: Path, plans: Path) -> None:
    """Nor is what it has started beside its training, such as a page with curves."""
    hook = f'eval "$({shlex.join([*CKPT, "hook", str(root), "--plan-dir", str(plans)])})"'
    done = subprocess.run(
        ["bash", "-c", f"{hook}; sleep 600 & {hook}; kill $!"], env=CLEAN, capture_output=True, text=True
    )
    assert done.returncode == 0 and "another-writer" not in done.stderr
