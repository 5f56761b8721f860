"""Decisions that some process may still follow are never removed, however old they are; those that nobody can
follow go after a while. The clock is ours.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from run_helpers import CKPT, CLEAN, ckpt, megatron

from ckpt_tools.job import decisions as room
from ckpt_tools.job.decisions import KEPT_DAYS, Decisions
from ckpt_tools.job.process import Process

pytestmark = pytest.mark.slow  # processes that live and die

DAY = 86400.0
DEAD = "999999999.1"
FOUND: dict[str, Any] = {"checkpoint": {"path": "/r/iter_20"}, "resume_step": 20}


def decide(decisions: Decisions, key: str, body: dict[str, Any] | None = None) -> Path:
    decisions.once(key, "rank-0", unique=True, timeout=1000, make=lambda: body or FOUND, about={})
    return Path(decisions.directory, key)


def followed_by(key: Path, **who: Any) -> None:
    """Let the decision and its claims be of somebody else."""
    plan = key / "1.json"
    body = json.loads(plan.read_text())
    body["decision"].update(who)
    plan.write_text(json.dumps(body))
    for claim in (key / "1.taken").iterdir():
        claim.write_text(json.dumps(who))


def after(decisions: Decisions, days: float) -> set[str]:
    """The keys that are left when somebody decides so much later."""
    later = Decisions(
        os.path.dirname(decisions.directory), decisions.root, now=lambda: time.time() + days * DAY
    )
    decide(later, "next")
    return {
        name
        for name in os.listdir(decisions.directory)
        if os.path.isdir(os.path.join(decisions.directory, name))
    } - {"next"}


@pytest.fixture
def decisions(tmp_path: Path) -> Decisions:
    return Decisions(str(tmp_path / "plans"), str(tmp_path / "run"))


HERE = Process.here()
GONE = {"host": HERE.host, "process": DEAD, "agent": DEAD}
FOLLOWERS: dict[str, tuple[dict[str, Any], bool]] = {
    "nobody": (GONE, False),
    "its launcher": ({**GONE, "process": HERE.identity}, True),
    "the script that asked": ({**GONE, "agent": HERE.identity}, True),
    "another machine": ({**GONE, "host": "other/boot/pid"}, True),
    "this machine before it was started again": (
        {**GONE, "host": HERE.host.replace("/", "/earlier-", 1)},
        True,
    ),
}
"""Who follows a decision, and whether that keeps it."""


@pytest.mark.parametrize("who", FOLLOWERS)
@pytest.mark.parametrize("place", ["decision", "claim"])
def test_a_decision_stays_as_long_as_somebody_may_follow_it(
    decisions: Decisions, who: str, place: str
) -> None:
    note, kept = FOLLOWERS[who]
    key = decide(decisions, "old")
    followed_by(key, **GONE)
    if place == "decision":
        followed_by(key, **note)
        for claim in (key / "1.taken").iterdir():
            claim.write_text(json.dumps(GONE))
    else:
        (key / "1.taken/rank-1").write_text(json.dumps(note))
    assert after(decisions, KEPT_DAYS - 1) == {"old"}
    assert after(decisions, 3650) == ({"old"} if kept else set())


@examples(20)
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(FOLLOWERS)), st.integers(0, 400), st.booleans()),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 4000),
)
def test_law(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, int, bool]], later: int) -> None:
    """Whatever the ages: what somebody may follow stays, whether or not a failed attempt lies beside it; the
    rest goes when it is old.
    """
    decisions = Decisions(str(tmp_path_factory.mktemp("plans")), "/nowhere/run")
    expected = set()
    for i, (who, age, failed) in enumerate(rows):
        key = decide(decisions, f"k{i}")
        followed_by(key, **FOLLOWERS[who][0])
        if failed:
            (key / "2.json").write_text(
                json.dumps({"error": {"exit_code": 4}, "decision": {"host": "elsewhere"}})
            )
        at = time.time() - age * DAY
        for path in (*key.rglob("*"), key):
            os.utime(path, (at, at))
        if FOLLOWERS[who][1] or age + later < KEPT_DAYS:
            expected.add(f"k{i}")
    left = after(decisions, later)
    assert expected <= left and left - expected <= {
        f"k{i}" for i, row in enumerate(rows) if row[1] + later <= KEPT_DAYS
    }


def test_a_decision_that_failed_started_nobody(decisions: Decisions) -> None:
    key = decide(decisions, "old")
    followed_by(key, **{**GONE, "host": "other"})
    body = json.loads((key / "1.json").read_text())
    (key / "1.json").write_text(json.dumps({**body, "error": {"exit_code": 4}}))
    (key / "1.taken/rank-0").unlink()
    assert after(decisions, 3650) == set()


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE])
def test_what_cannot_be_read_stays(
    decisions: Decisions, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    followed_by(decide(decisions, "old"), **GONE)
    real = os.open

    def failing(path: Any, *more: Any, **named: Any) -> Any:
        if path == "1.json":
            raise OSError(number, os.strerror(number), path)
        return real(path, *more, **named)

    monkeypatch.setattr(os, "open", failing)
    assert after(decisions, 3650) == {"old"}


def test_a_key_under_which_somebody_decides_stays(decisions: Decisions) -> None:
    from ckpt_tools.job.files import locked

    followed_by(key := decide(decisions, "old"), **GONE)
    with locked(str(key / "lock"), 1):
        assert after(decisions, 3650) == {"old"}
    assert after(decisions, 3650) == set()


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    running: list[subprocess.Popen[bytes]] = []
    yield running
    for process in running:
        process.kill()
        process.communicate()


def test_a_job_that_runs_for_a_year(tmp_path: Path, started: list[subprocess.Popen[bytes]]) -> None:
    """ckpt run has become the command: its pid and its start time are the command's."""
    root, plans = megatron(tmp_path / "run"), tmp_path / "plans"
    say = "import time; print('on', flush=True); time.sleep(1000)"
    words = [*CKPT, "run", str(root), "--plan-dir", str(plans), "--", sys.executable, "-c", say]
    shell = ["sh", "-c", '"$@" & wait', "x", *words]
    started.append(
        job := subprocess.Popen(
            shell, env=CLEAN, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
    )
    assert job.stdout and job.stdout.readline() == b"on\n"
    decisions = Decisions(str(plans), str(root))
    (plan,) = Path(decisions.directory).glob("*/1.json")
    assert after(decisions, 365) == {plan.parent.name}
    os.killpg(job.pid, signal.SIGKILL)
    job.wait()
    while Process.alive(json.loads(plan.read_text())["decision"]["process"]):
        time.sleep(0.02)
    assert after(decisions, 365) == set()


def test_a_start_looks_at_a_few_old_ones_only(decisions: Decisions, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(100):
        followed_by(decide(decisions, f"k{i}"), **{**GONE, "host": "other"})
    looked = list[str]()
    real = room._is_followed
    monkeypatch.setattr(room, "_is_followed", lambda key, *more: (looked.append(key), real(key, *more))[1])
    after(decisions, 3650)
    assert len(looked) == room._LOOKED_AT


def test_an_earlier_version_left_empty_claims(decisions: Decisions) -> None:
    key = decide(decisions, "old")
    followed_by(key, **GONE)
    (key / "1.taken/rank-0").write_text("")
    assert after(decisions, 3650) == set()


def test_the_command_says_nothing_of_it(tmp_path: Path) -> None:
    root, plans = megatron(tmp_path / "run"), tmp_path / "plans"
    decisions = Decisions(str(plans), str(root))
    followed_by(key := decide(decisions, "old"), **GONE)
    for path in (*key.rglob("*"), key):
        os.utime(path, (1, 1))
    done = ckpt("run", root, "--plan-dir", plans, "-q", "--", "true")
    assert (done.returncode, done.stderr) == (0, "") and not key.exists()
