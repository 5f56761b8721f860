"""Passes of ``ckpt watch`` in this process: what happens between two of them is part of the test."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from described_layouts import described_tree
from run_helpers import OLD, broken, broken_body, megatron
from safetensors_writer import vectors

from ckpt_tools.api import verify
from ckpt_tools.guard.watch import WatchOptions, pending, root
from ckpt_tools.guard.watch.loop import Watcher
from ckpt_tools.model.answers import Event
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import ReadOptions
from ckpt_tools.storage import Identity, counted

pytestmark = pytest.mark.slow

FILE = "iter_0000020/mp_rank_00/model_optim_rng.pt"
Act = Callable[[], object]


class Over(BaseException):
    """The script has come to its end."""


class Script:
    """What happens while nobody looks, one after the other; then it is over. ``waits`` are the seconds that
    would have been waited.
    """

    def __init__(self, acts: Sequence[Act]) -> None:
        self.acts, self.waits = list(acts), list[float]()

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        if not self.acts:
            raise Over
        self.acts.pop(0)()


class Watched:
    """What was said, in order."""

    def __init__(self, events: Sequence[Event], script: Script) -> None:
        self.events, self.waits = events, script.waits

    def checkpoints(self) -> list[tuple[int, str, str]]:
        rows = [e.fields for e in self.events if e.type == "checkpoint"]
        return [(f["step"], f["state"], f["reason"]) for f in rows]  # type: ignore[misc]

    def of(self, kind: str, field: str) -> list[Any]:
        return [e.fields[field] for e in self.events if e.type == kind]


Watch = Callable[..., Watched]


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], Act]:
    """Makes acts that put our clock forward by so many seconds."""
    real, seconds = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: real() + seconds[0])
    return lambda more: lambda: seconds.__setitem__(0, seconds[0] + more)


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watch:
    """``watch(root, act, act, …)``: a pass, an act, a pass, an act, …, a pass."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("CKPT_CACHE_DIR", str(tmp_path / "cache"))

    def watched(path: Path, *acts: Act, settle: float = 0.0, **more: Any) -> Watched:
        events, script = list[Event](), Script(acts)
        options = WatchOptions(read=ReadOptions(jobs=1, settle=settle, cache=True), **more)
        with pytest.raises(Over):
            Watcher([str(path)], options, events.append, script.sleep).run()
        assert not script.acts
        return Watched(events, script)

    return watched


def nothing() -> None:
    return


def test_a_damaged_index_is_damage_and_hides_nothing_else(watch: Watch, tmp_path: Path) -> None:
    path = tmp_path / "run"
    saves = described_tree("dcp", path)
    index = next(path / f for f in saves[1].files if f.endswith(".metadata"))
    index.write_bytes(index.read_bytes()[:-40])
    told = {step: state for step, state, _ in watch(path).checkpoints()}
    assert told == {80: "good", 90: "bad", 100: "good", 110: "good"}


def test_an_idle_run_says_nothing_more(watch: Watch, tmp_path: Path) -> None:
    seen = watch(megatron(tmp_path / "run"), *[nothing] * 5)
    assert [e.type for e in seen.events] == ["started", "checkpoint", "checkpoint", "pass", "stopped"]
    assert seen.waits == [60.0] * 6, "the next listing, whatever was found"


def test_a_clock_that_jumps_moves_nothing(
    watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, ahead = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + ahead[0])
    path = megatron(tmp_path / "run")

    def jump(days: float) -> Act:
        return lambda: ahead.__setitem__(0, ahead[0] + days * 86400)

    def save() -> None:
        megatron(path, steps=(30,))
        os.utime(path / "iter_0000030/mp_rank_00/model_optim_rng.pt", (real() + 9e6, real() + 9e6))

    seen = watch(path, jump(-400), nothing, jump(3), nothing, save, nothing)
    told = [row[0] for row in seen.checkpoints()]
    assert sorted(told) == [10, 20, 30], "each once, whatever the time is called"
    assert all(0 < seconds <= 60 for seconds in seen.waits)


def test_what_is_young_is_waited_for_by_our_clock(
    watch: Watch, tmp_path: Path, ahead: Callable[[float], Act]
) -> None:
    """Its times lie in the future: those of a file server whose clock is wrong. A cut save is told of all the same."""
    path = megatron(tmp_path / "run", steps=(10, 20), world=1, tracker=False)
    os.truncate(path / FILE, (path / FILE).stat().st_size // 2)
    for file in path.rglob("*.pt"):
        os.utime(file, (9e9, 9e9))
    seen = watch(path, ahead(20), ahead(9), ahead(2), settle=30.0)
    assert sorted(seen.checkpoints()) == [(10, "good", "new"), (20, "bad", "new")]


def test_what_is_written_while_it_is_read_is_told_of_afterwards(
    watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real, times = megatron(tmp_path / "run"), root.verify, [OLD]

    def written(s: Any, c: Any, run: Any) -> Any:
        checked = real(s, c, run)
        if c[0].step == 20 and times:
            for rank in range(2):
                file = path / f"iter_0000020/mp_rank_0{rank}/model_optim_rng.pt"
                os.utime(file, (OLD + 7201, OLD + 7201))
            times.pop()
        return checked

    monkeypatch.setattr(root, "verify", written)
    seen = watch(path, nothing)
    assert seen.checkpoints() == [(10, "good", "new"), (20, "good", "new")]


def test_a_torn_save_waits_until_it_is_whole_or_left_behind(watch: Watch, tmp_path: Path) -> None:
    path = megatron(tmp_path / "run", steps=(10, 20))
    shutil.rmtree(path / "iter_0000020/mp_rank_01")
    (path / "latest_checkpointed_iteration.txt").write_text("10")
    seen = watch(path, nothing, lambda: megatron(path, steps=(20,)))
    assert seen.checkpoints() == [(10, "good", "new"), (20, "good", "new")]
    shutil.rmtree(path / "iter_0000020/mp_rank_01")
    (path / "latest_checkpointed_iteration.txt").write_text("10")
    seen = watch(path, nothing, lambda: megatron(path, steps=(30,)))
    assert sorted(seen.checkpoints()) == [(20, "bad", "changed"), (30, "good", "new")]


def test_what_cannot_be_read_is_neither_good_nor_bad(
    watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: Callable[[float], Act]
) -> None:
    path, real, denied, later = megatron(tmp_path / "run"), os.open, [FILE], ahead(90)

    def opened(name: Any, *more: Any, **named: Any) -> int:
        if str(name).endswith(tuple(denied)):
            raise PermissionError(errno.EACCES, "Permission denied", name)
        return real(name, *more, **named)

    monkeypatch.setattr(os, "open", opened)
    seen = watch(path, later, lambda: (denied.clear(), later()), on_good="true", on_bad="true")
    told = seen.checkpoints()
    assert told == [(20, "unknown", "new"), (10, "good", "new"), (20, "good", "retry")]
    assert seen.of("hook", "on") == ["good", "good"], "nobody is told of what is not known"
    assert seen.of("pass", "checkpoints")[0]["unknown"] == 1


def test_a_full_disk_is_said_once_and_it_goes_on(
    watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real = megatron(tmp_path / "run"), os.write
    full = [True]

    def write(fd: int, data: Any) -> int:
        if full[0] and b"ckpt-tools/watched" in bytes(data):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr(os, "write", write)
    seen = watch(path, nothing, lambda: megatron(path, steps=(30,)), lambda: full.__setitem__(0, False))
    assert [row[0] for row in seen.checkpoints()] == [20, 10, 30]
    assert seen.of("problem", "code") == ["state-not-written"]
    assert "No space left" in seen.of("problem", "message")[0]
    assert not watch(path).checkpoints(), "what was known is written when there is room again"
    (home,) = (tmp_path / "state/ckpt-tools/watched").iterdir()
    assert sorted(p.name for p in home.iterdir()) == [pending.NAME, pending.LOCK], "nothing else is left"


def test_several_runs_are_asked_about_one_by_one(watch: Watch, tmp_path: Path) -> None:
    for name in ("a", "b"):
        megatron(tmp_path / "runs" / name)
    spoil = [(step, rank) for step in (10, 20) for rank in range(2)]
    seen = watch(tmp_path / "runs", lambda: [broken(tmp_path / "runs/a", *one) for one in spoil])
    first, second = seen.of("pass", "plan")
    assert (first["exit_code"], first["step"]) == (0, 20)
    assert second["exit_code"] == 4 and second["why"].startswith("run a: ")


def test_a_seal_that_cannot_be_written_is_said(watch: Watch, tmp_path: Path) -> None:
    path = megatron(tmp_path / "run")
    (tmp_path / "seals").write_text("no directory")
    options = ReadOptions(jobs=1, settle=0.0, cache=True, seal_dir=str(tmp_path / "seals"))
    events = list[Event]()
    code = Watcher([str(path)], WatchOptions(read=options, once=True, seal=True), events.append).run()
    assert code in (0, 5)
    assert [e.fields["seal"] for e in events if e.type == "checkpoint"] == ["failed", "failed"]
    assert [e.fields["code"] for e in events if e.type == "problem"][:1] == ["seal-failed"]


def test_the_state_of_somebody_else_does_not_count(watch: Watch, tmp_path: Path) -> None:
    from ckpt_tools.storage.trust import Untrusted

    path = megatron(tmp_path / "run")
    broken_body(path)
    watch(path)
    (home,) = (tmp_path / "state/ckpt-tools/watched").iterdir()
    (home / pending.NAME).chmod(0o666)
    with pytest.raises(Untrusted, match=r"watch\.json"):
        Watcher([str(path)], WatchOptions(once=True), lambda _: None).run()


@pytest.mark.parametrize("away", [False, True])
def test_what_is_sealed_is_read_twice(away: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once to be verified and once to be sealed: then it is known to fit its seal."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("CKPT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(Identity, "settled", lambda *_: True)  # the files are new
    (path := tmp_path / "run").mkdir()
    size = 4 << 20
    for step in (4, 5):
        (path / f"net-1_{step}.safetensors").write_bytes(vectors(w=bytes([step]) * size))
    read = ReadOptions(jobs=1, settle=0.0, cache=True, seal_dir=str(tmp_path / "seals") if away else None)
    events = list[Event]()
    with counted() as total:
        assert Watcher([str(path)], WatchOptions(read=read, once=True, seal=True), events.append).run() == 0
    assert [e.fields["seal"] for e in events if e.type == "checkpoint"] == ["sealed", "sealed"]
    with counted() as again:
        known = verify(path, Level.CONTENT, settle=0, cache=True, max_age=3600.0, seal_dir=read.seal_dir)
    anew = verify(path, Level.CONTENT, settle=0, seal_dir=read.seal_dir)
    assert total.bytes < 2.1 * 2 * size and again.bytes < size, "what is kept rests on the seals"
    assert [f.report for f in known.files] == [f.report for f in anew.files]
    assert {f.report.coverage for f in known.files if f.part} == {1.0}
