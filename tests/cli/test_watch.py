"""``ckpt watch``: each checkpoint is told of once, whatever is written, broken, taken away or ended meanwhile."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from described_layouts import described_tree
from run_helpers import OLD, broken, broken_body, ckpt, flip, megatron
from safetensors_writer import vectors
from watching import once, states, watching

from ckpt_tools.api import verify
from ckpt_tools.guard.watch import WatchOptions, pending, root
from ckpt_tools.guard.watch.loop import Watcher
from ckpt_tools.model.answers import Event
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import ReadOptions
from ckpt_tools.storage import Identity, count_read

SETTLED = ("--settle", "0s")
SOON = (*SETTLED, "--rescan", "1s")


def test_one_pass_tells_of_each_once(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run", steps=(10, 20, 30))
    broken_body(root)
    code, events, _ = once(tmp_path, root, *SETTLED)
    assert code == 1 and states(events) == {10: "good", 20: "bad", 30: "good"}
    assert [e["type"] for e in events] == ["started", *["checkpoint"] * 3, "pass", "stopped"]
    bad = next(e for e in events if e.get("state") == "bad")
    assert [f["code"] for f in bad["findings"]] == ["crc-mismatch"] and bad["step"] == 20
    last = events[-2]
    assert last["last_good"]["step"] == 30 and last["plan"]["exit_code"] == 0 and last["tracker_agrees"]
    code, events, _ = once(tmp_path, root, *SETTLED)
    assert code == 1 and states(events) == {}, "what is known is not told again"


def test_what_changed_is_verified_again_and_what_is_gone_is_said(root: Path, tmp_path: Path) -> None:
    once(tmp_path, root, *SETTLED)
    for path in root.glob("iter_0000010/*/*.pt"):
        os.utime(path, (OLD, OLD))
    shutil.rmtree(root / "iter_0000020")
    code, events, _ = once(tmp_path, root, *SETTLED)
    assert [(e["step"], e["reason"]) for e in events if e["type"] == "checkpoint"] == [(10, "changed")]
    assert [e["step"] for e in events if e["type"] == "gone"] == [20]
    assert code == 0 and events[-2]["plan"]["step"] == 10 and events[-2]["tracker_agrees"] is False


def test_old_ones_are_verified_again_least_recently_checked_first(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run", steps=(10, 20, 30))
    once(tmp_path, root, *SETTLED)
    file = next((tmp_path / "state").rglob("watch.json"))
    kept = json.loads(file.read_text())
    for row in kept["checkpoints"].values():
        row["checked_at"] -= 8 * 86400 if row["step"] == 10 else 9 * 86400 if row["step"] == 30 else 0
    file.write_text(json.dumps(kept))
    flip(root / "iter_0000030/mp_rank_00/model_optim_rng.pt", 1024)
    code, events, _ = once(tmp_path, root, *SETTLED, "--on-bad", "true", "--on-good", "true")
    told = [(e["step"], e["reason"], e["state"]) for e in events if e["type"] == "checkpoint"]
    assert told == [(30, "scrub", "bad"), (10, "scrub", "good")] and code == 1
    assert [e["on"] for e in events if e["type"] == "hook"] == ["bad"], "what stays good is no news"


@pytest.mark.share(2)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_in_the_middle_of_a_verification(number: int, tmp_path: Path) -> None:
    root = megatron(tmp_path / "run", steps=(10,))
    file = root / "iter_0000010/mp_rank_00/model_optim_rng.pt"
    told = list[list[str]]()
    while ["started", "stopped"] not in told and len(told) < 3:  # a signal in a destructor ends it at once
        with watching(tmp_path, root, *SOON, "--limit-rate", "1") as watcher:
            watcher.until(lambda e: e["type"] == "started")
            while str(file) not in opened(watcher.process.pid):
                assert watcher.process.poll() is None
            assert watcher.end(number) == {signal.SIGTERM: 143, signal.SIGINT: 130}[number]
        told.append([e["type"] for e in watcher.seen])
    assert told[-1] == ["started", "stopped"], told
    code, events, _ = once(tmp_path, root, *SETTLED)
    assert code == 0 and states(events) == {10: "good"}, "it was not told of, so it is not known"


def opened(pid: int) -> set[str]:
    """The files that a process holds open."""
    out = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            out.add(str(fd.readlink()))
    return out


def test_two_of_one_directory(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run", steps=(10,))
    with watching(tmp_path, root, *SOON) as watcher:
        watcher.until(lambda e: e["type"] == "started")
        code, events, said = once(tmp_path, root)
        assert code == 2 and not events and f"process {watcher.process.pid} on" in said
        assert once(tmp_path, root, "--state-dir", tmp_path / "other")[0] == 0
        assert watcher.end() == 143
    assert once(tmp_path, root)[0] == 0


def test_what_cannot_be_watched(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run", steps=(10,))
    for words, code in (
        ((root / "iter_0000010/mp_rank_00/model_optim_rng.pt",), 2), ((tmp_path / "none",), 5),
        ((root, "--state-dir", root / "state"), 2), ((root, "--rescan", "0s"), 2), ((root, "--every", "soon"), 2),
        ((root, "--metrics-port", "70000"), 2), ((root, "--metrics-port", "1", "--metrics-address", "192.0.2.1"), 5),
    ):  # fmt: skip
        got, events, said = once(tmp_path, *words)
        assert got == code and "hint: " in said and [e["type"] for e in events] in ([], ["started"]), said
    (tmp_path / "empty").mkdir()
    assert once(tmp_path, tmp_path / "empty")[0] == 3


def test_a_directory_that_is_gone_and_comes_back(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run", steps=(10,))
    with watching(tmp_path, root, *SOON) as watcher:
        watcher.until(lambda e: e["type"] == "pass")
        root.rename(tmp_path / "away")
        assert watcher.until(lambda e: e["type"] == "problem")["code"] == "cannot-look"
        (tmp_path / "away").rename(root)
        megatron(root, steps=(20,))
        watcher.until(lambda e: e.get("step") == 20)
        assert watcher.end() == 143
    assert not watcher.of("gone"), "not to see is not to know"


def test_a_state_that_cannot_be_used_or_written(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run", steps=(10,))
    once(tmp_path, root, *SETTLED)
    file = next((tmp_path / "state").rglob("watch.json"))
    file.write_text(file.read_text()[:-30])
    with watching(tmp_path, root, *SOON, "--metrics-file", tmp_path / "none/m.prom") as watcher:
        assert watcher.until(lambda e: e["type"] == "problem")["code"] == "state-lost"
        assert watcher.until(lambda e: e["type"] == "checkpoint")["reason"] == "new"
        assert watcher.until(lambda e: e["type"] == "problem")["code"] == "metrics-not-written"
        shutil.rmtree(file.parent)
        for step in (20, 30):
            megatron(root, steps=(step,))
            watcher.until(lambda e, step=step: e.get("step") == step)
        assert watcher.end() == 143
    said = sorted(e["code"] for e in watcher.of("problem"))
    assert said == ["metrics-not-written", "state-lost", "state-not-written"], "each once"


def hooks(tmp: Path, root: Path, *words: str) -> list[dict]:
    code, events, said = once(tmp, root, *SETTLED, *words)
    assert code == 0, said
    return [e for e in events if e["type"] == "hook"]


def test_a_command_is_told_by_its_environment_alone(tmp_path: Path) -> None:
    root = megatron(tmp_path / "$(touch pwned); `touch pwned`\n'\"", steps=(10,))
    (ended,) = hooks(tmp_path, root, "--on-good", 'env -0 > told; eval "true"; echo $CKPT_STEP; nice')
    assert (ended["exit_code"], ended["output"]) == (0, "10\n19\n"), "it gets what others leave"
    assert not (tmp_path / "pwned").exists()
    told = dict(row.split("=", 1) for row in (tmp_path / "told").read_text().split("\0") if row)
    assert told["CKPT_PATH"] == str(root / "iter_0000010") and told["CKPT_WATCH_ROOT"] == str(root)
    assert told["CKPT_WATCH_STATE"] == "good" and told["CKPT_STEP"] == "10"


def test_commands_that_fail_hang_or_say_much(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run", steps=(10, 20))
    command = 'if [ $CKPT_STEP = 10 ]; then trap "" TERM; sleep 1000; fi; head -c 3000000 /dev/zero | tr "\\0" x; exit 7'
    newest, oldest = hooks(tmp_path, root, "--on-good", command, "--timeout", "1s")
    assert (newest["exit_code"], newest["in_time"], newest["output"]) == (7, True, "x" * 2000)
    assert not oldest["in_time"] and oldest["exit_code"] < 0
    other = megatron(tmp_path / "b", steps=(10,))
    (left,) = hooks(tmp_path, other, "--on-good", "sleep 3 & echo here")  # it is not waited for
    assert left["exit_code"] == 0 and left["output"] == "here\n"


def test_restarts_from_the_same_step_are_counted(root: Path, plans: Path, tmp_path: Path) -> None:
    seen = []
    for start in range(4):
        done = ckpt("hook", root, "--rank", 0, "--plan-dir", plans, "--job", start)
        assert done.returncode == 0, done.stderr
        _, events, _ = once(tmp_path, root, "--plan-dir", plans)
        seen += [(e["step"], e["again"]) for e in events if e["type"] == "restart"]
        if start == 2:
            megatron(root, steps=(30,))
    assert seen == [(20, 0), (20, 1), (20, 2), (30, 0)]


def test_metrics_name_what_is_known(tmp_path: Path) -> None:
    root = megatron(tmp_path / 'a"b\\c\nd', steps=(10, 20, 30))
    broken_body(root)
    file = tmp_path / "ckpt.prom"
    once(tmp_path, root, *SETTLED, "--metrics-file", file)
    text = file.read_text()
    label = 'root="' + str(tmp_path) + '/a\\"b\\\\c\\nd"'
    for row in (
        f"ckpt_last_good_step{{{label}}} 30.0", f'ckpt_checkpoints{{{label},state="bad"}} 1.0', f"ckpt_tracker_agrees{{{label}}} 1.0",
        f'ckpt_damaged_checkpoints{{code="crc-mismatch",{label}}} 1.0', f"ckpt_save_interval_seconds{{{label}}} 3600.0",
        f"ckpt_plan_exit_code{{{label}}} 0.0", f"ckpt_verification_seconds_count{{{label}}} 3.0", f"ckpt_watch_up{{{label}}} 1.0",
    ):  # fmt: skip
        assert f"{row}\n" in text, text
    assert not [p for p in tmp_path.iterdir() if p.name.startswith("ckpt.prom.")], "no other file is left"


def test_metrics_over_http(tmp_path: Path) -> None:
    from urllib.request import Request, urlopen

    from prometheus_client.openmetrics.parser import text_string_to_metric_families as families_of

    root = megatron(tmp_path / "run")
    with watching(tmp_path, root, *SOON, "--metrics-port", 0) as watcher:
        port = watcher.until(lambda e: e["type"] == "started")["metrics_port"]
        watcher.until(lambda e: e["type"] == "pass")
        accept = {"Accept": "application/openmetrics-text"}
        with urlopen(Request(f"http://127.0.0.1:{port}/metrics", headers=accept)) as answer:
            families = {f.name: f for f in families_of(answer.read().decode())}
        assert families["ckpt_last_good_step"].samples[0].value == 20
        assert families["ckpt_read_bytes"].samples[0].name == "ckpt_read_bytes_total"


FILE = "iter_0000020/mp_rank_00/model_optim_rng.pt"
Act = Callable[[], object]


class Over(BaseException):
    """The script has come to its end."""


class Watched:
    """What happens while nobody looks, one after the other; then it is over. ``events`` are what was said, in order,
    and ``waits`` the seconds that would have been waited.
    """

    def __init__(self, acts: Sequence[Act]) -> None:
        self.acts, self.waits, self.events = list(acts), list[float](), list[Event]()

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        if not self.acts:
            raise Over
        self.acts.pop(0)()

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
        seen = Watched(acts)
        options = WatchOptions(read=ReadOptions(jobs=1, settle=settle, cache=True), **more)
        with pytest.raises(Over):
            Watcher([str(path)], options, seen.events.append, seen.sleep).run()
        assert not seen.acts
        return seen

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


def test_a_jumping_clock_moves_nothing(watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_young_files_wait_by_our_clock(watch: Watch, tmp_path: Path, ahead: Callable[[float], Act]) -> None:
    """Its times lie in the future: those of a file server whose clock is wrong. A cut save is told of all the same."""
    path = megatron(tmp_path / "run", steps=(10, 20), world=1, tracker=False)
    os.truncate(path / FILE, (path / FILE).stat().st_size // 2)
    for file in path.rglob("*.pt"):
        os.utime(file, (9e9, 9e9))
    seen = watch(path, ahead(20), ahead(9), ahead(2), settle=30.0)
    assert sorted(seen.checkpoints()) == [(10, "good", "new"), (20, "bad", "new")]


def test_what_is_written_after_it_was_read_is_read_again(
    watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real = megatron(tmp_path / "run"), root.verify

    def written(s: Any, c: Any, run: Any) -> Any:
        checked = real(s, c, run)
        if c[0].step == 20:
            os.utime(path / FILE, (OLD + 7201, OLD + 7201))
        return checked

    monkeypatch.setattr(root, "verify", written)
    seen = watch(path, nothing)
    assert seen.checkpoints() == [(20, "good", "new"), (10, "good", "new"), (20, "good", "changed")]


def test_a_torn_save_waits_until_it_is_whole_or_left_behind(watch: Watch, tmp_path: Path) -> None:
    path = megatron(tmp_path / "run", steps=(10, 20))
    ends = {20: [(10, "good", "new"), (20, "good", "new")], 30: [(20, "bad", "changed"), (30, "good", "new")]}
    for saved, told in ends.items():
        shutil.rmtree(path / "iter_0000020/mp_rank_01")
        (path / "latest_checkpointed_iteration.txt").write_text("10")
        seen = watch(path, nothing, lambda step=saved: megatron(path, steps=(step,)))
        assert sorted(seen.checkpoints()) == told


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


def test_a_full_disk_is_said_once(watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    seen = watch(tmp_path / "runs", lambda: [broken(tmp_path / "runs/a", step) for step in (10, 20)])
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
    with count_read() as total:
        assert Watcher([str(path)], WatchOptions(read=read, once=True, seal=True), events.append).run() == 0
    assert [e.fields["seal"] for e in events if e.type == "checkpoint"] == ["sealed", "sealed"]
    with count_read() as again:
        known = verify(path, Level.CONTENT, settle=0, cache=True, max_age=3600.0, seal_dir=read.seal_dir)
    anew = verify(path, Level.CONTENT, settle=0, seal_dir=read.seal_dir)
    assert total.bytes < 2.1 * 2 * size and again.bytes < size, "what is kept rests on the seals"
    assert [f.report for f in known.files] == [f.report for f in anew.files]
    assert {f.report.coverage for f in known.files if f.part} == {1.0}
