"""``ckpt watch``: each checkpoint is told of once, whatever is written, broken, taken away or ended meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import pytest
import warm
from run_helpers import OLD, broken_body, ckpt, flip, megatron
from watching import once, states, watching

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


def test_a_command_may_prune_what_is_still_to_be_verified(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run", steps=(10, 20, 30, 40))
    words = f'{warm.commands()}/ckpt prune "$CKPT_WATCH_ROOT" --keep-last 2 --settle 0s --apply'
    code, events, said = once(tmp_path, root, *SETTLED, "--on-good", words)
    assert code == 0, said
    assert states(events) == {40: "good", 30: "good"}, "what is gone is neither good nor bad"
    assert sorted(p.name for p in root.glob("iter_*")) == ["iter_0000030", "iter_0000040"]


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
