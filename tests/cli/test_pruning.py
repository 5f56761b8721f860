"""Decisions that nobody has made or taken for long are removed by a later start; the clock is ours."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from run_helpers import ckpt, decided_body
from told_decider import told

from ckpt_tools.job import decisions as room
from ckpt_tools.job.decisions import KEPT_DAYS, Decisions
from ckpt_tools.job.files import hold_lock

pytestmark = pytest.mark.slow

DAY = 86400.0


def decide(decisions: Decisions, key: str, member: str = "rank-0") -> Path:
    body = decided_body("/r/iter_20", 20)
    decisions.once(told(key, member, lambda: body))
    return Path(decisions.directory, key)


def after(decisions: Decisions, days: float) -> set[str]:
    """The keys that are left when somebody decides so much later."""
    home = os.path.dirname(decisions.directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "time", SimpleNamespace(time=lambda: time.time() + days * DAY))
        decide(Decisions(home, decisions.root), "next")
    return {p.name for p in Path(decisions.directory).iterdir() if p.is_dir()} - {"next"}


@pytest.fixture
def decisions(tmp_path: Path) -> Decisions:
    return Decisions(str(tmp_path / "plans"), str(tmp_path / "run"))


def test_a_decision_goes_when_it_was_not_taken_for_long(decisions: Decisions) -> None:
    keys = [decide(decisions, name) for name in ("old", "taken", "new")]
    for key in keys[:2]:
        for path in (*key.rglob("*"), key):
            os.utime(path, (at := time.time() - 50 * DAY, at))
    decide(decisions, "taken", "rank-1")
    assert after(decisions, 0) == after(decisions, KEPT_DAYS - 51) == {"old", "taken", "new"}
    assert after(decisions, KEPT_DAYS - 49) == {"taken", "new"}
    assert after(decisions, KEPT_DAYS + 1) == set()


def test_a_key_under_which_somebody_decides_stays(decisions: Decisions) -> None:
    key = decide(decisions, "old")
    with hold_lock(str(key / "lock"), 1):
        assert after(decisions, 3650) == {"old"}
    assert after(decisions, 3650) == set()


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE])
def test_what_cannot_be_looked_at_stays(
    decisions: Decisions, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    key = decide(decisions, "old")
    real = os.scandir

    def failing(path: Any) -> Any:
        if path == str(key):
            raise OSError(number, os.strerror(number), path)
        return real(path)

    monkeypatch.setattr(os, "scandir", failing)
    assert after(decisions, 3650) == {"old"}


def test_the_command_says_nothing_of_it(root: Path, plans: Path) -> None:
    key = decide(Decisions(str(plans), str(root)), "old")
    for path in (*key.rglob("*"), key):
        os.utime(path, (1, 1))
    done = ckpt("run", root, "--plan-dir", plans, "-q", "--", "true")
    assert (done.returncode, done.stderr) == (0, "") and not key.exists()
