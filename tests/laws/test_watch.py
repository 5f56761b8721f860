"""What ``ckpt watch`` says of each checkpoint is what ``ckpt verify`` says of all of them."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixture_trees import NAMED, below
from run_helpers import broken_body, megatron
from timed import same_times

from ckpt_tools.api import verify
from ckpt_tools.errors import CkptError
from ckpt_tools.guard.watch import WatchOptions
from ckpt_tools.guard.watch.loop import Watcher
from ckpt_tools.guard.watch.pending import list_checkpoints
from ckpt_tools.guard.watch.root import WatchedRoot
from ckpt_tools.model.answers import Event
from ckpt_tools.model.finding import Severity, Verdict
from ckpt_tools.model.selection import ReadOptions
from ckpt_tools.reading.opening import open_session

TREES = [pytest.param(case.parent / "tree", id=name.replace("/", "-")) for name, case in NAMED.items()]


READ = ReadOptions(jobs=1, settle=0.0, cache=True)


def own_places(patch: pytest.MonkeyPatch, tmp: Path) -> None:
    patch.setenv("XDG_STATE_HOME", str(tmp / "state"))
    patch.setenv("CKPT_CACHE_DIR", str(tmp / "cache"))


def damaged(root: Path) -> set[str]:
    """The paths that verify has errors about."""
    result = verify(str(root), settle=0.0, jobs=1)
    broken = {f.report.path for f in result.files if f.report.verdict is Verdict.BROKEN}
    return broken | {f.path for f in result.findings if f.severity is Severity.ERROR}


def compared(root: Path, monkeypatch: pytest.MonkeyPatch, tmp: Path) -> dict[str, tuple[bool, str]]:
    """Checkpoint -> whether verify calls it damaged, and its state."""
    own_places(monkeypatch, tmp)
    watched = WatchedRoot(str(root), WatchOptions(read=READ), lambda _: None)
    watched.look()
    s, bad, out = open_session(str(root), READ), damaged(root), {}
    found = list_checkpoints(s)
    of = {key: {p.path for p in s.members(one.checkpoint).parts} for key, one in found.items()}
    for key, one in found.items():
        record = watched.records.known.get(key)
        homes = {p.home for p in one.checkpoint.parts if p.home}
        others = set().union(*(paths for other, paths in of.items() if other != key)) - of[key]
        below = {b for b in bad - others if any(b.startswith(f"{home}/") for home in homes)}
        hit = (of[key] | homes | {one.checkpoint.path}) & bad or below
        out[key] = bool(hit), record.state if record else "waiting"
    return out


@pytest.mark.share(64)
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("cut", [0, 9])
def test_damage_that_verify_sees_is_never_called_good(
    tree: Path, cut: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As it is, and with the end of its largest file gone."""
    root = Path(shutil.copytree(tree, tmp_path / "tree", symlinks=True)) if cut else tree
    if cut:
        largest = max((p for p in below(root) if not p.is_symlink()), key=lambda p: (p.stat().st_size, p))
        with same_times(largest):
            os.truncate(largest, max(0, largest.stat().st_size - cut))
    said = compared(root, monkeypatch, tmp_path)
    assert not set(said.values()) & {(True, "good"), (True, "suspect"), (False, "bad")}, said


def test_a_rank_that_is_gone_for_long_is_missed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """None of those next to the newest has it."""
    root = megatron(tmp_path / "run", steps=range(10, 60, 10))
    megatron(root, steps=range(60, 200, 10), ranks=[0])
    said = compared(root, monkeypatch, tmp_path)
    assert len(said) == 19 and sum(state == "bad" for _, state in said.values()) == 14
    assert all(bad == (state == "bad") for bad, state in said.values())


def test_the_comparison_can_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = megatron(tmp_path / "run")
    broken_body(root)
    assert sorted(compared(root, monkeypatch, tmp_path).values()) == [(False, "good"), (True, "bad")]


# ---- calls that fail


class Failing:
    """A call of the system that fails the ``at``-th time that it is made below ``root``, that time only."""

    def __init__(self, call: Callable[..., Any], root: Path, at: int) -> None:
        self.call, self.root, self.at, self.made = call, str(root), at, 0

    def __call__(self, path: Any, *args: Any, **more: Any) -> Any:
        if isinstance(path, str) and path.startswith(self.root):
            self.made += 1
            if self.made == self.at:
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return self.call(path, *args, **more)


def looked_once(root: Path, call: str, at: int, tmp: Path) -> tuple[int, dict[str, int], int]:
    """How ``ckpt watch --once`` ends, its counts of states, and how often the call was made."""
    for name in ("state", "cache"):
        shutil.rmtree(tmp / name, ignore_errors=True)
    said, failing = list[Event](), Failing(getattr(os, call), root, at)
    with pytest.MonkeyPatch.context() as patch:
        own_places(patch, tmp)
        patch.setattr(os, call, failing)
        try:
            code = Watcher([str(root)], WatchOptions(read=READ, once=True), said.append).run()
        except CkptError as e:
            code = e.exit_code
    passes: list[Any] = [e.fields["checkpoints"] for e in said if e.type == "pass"]
    return code, passes[-1] if passes else {}, failing.made


@pytest.mark.parametrize("call", ["stat", "open", "scandir"])
def test_whichever_call_fails_it_says_the_same_or_that_it_could_not_look(call: str, tmp_path: Path) -> None:
    """Each call of its kind fails once."""
    root = megatron(tmp_path / "run", world=1)
    code, usual, calls = looked_once(root, call, 0, tmp_path)
    assert code == 0 and usual["good"] == 2 and calls >= 10
    ends = [looked_once(root, call, at, tmp_path)[:2] for at in range(1, calls + 1)]
    assert all(code == 5 or (code, states) == (0, usual) for code, states in ends), ends
