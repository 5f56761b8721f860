"""One question, one answer: plan, latest, hook, run and the Python API choose the same and end with the same exit code.
Of what was started there is a history, one line for each decision, which is never in the way.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fixture_trees import CASES, below, damage, materialise, selection
from one_question import COMMANDS, Answer, Asker
from run_helpers import CKPT, CLEAN, SAY, broken, broken_body, ckpt, megatron, torchrun_env

from ckpt_tools.job import starts
from ckpt_tools.planning import first_launch

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("started", ["run", "hook"])
def test_nothing_where_there_was_something_is_no_first_launch(asker: Asker, root: Path, started: str) -> None:
    """A file system that is not mounted looks like a first launch to whoever asks."""
    assert asker.ask(started, root).step == 20
    shutil.rmtree(root)
    root.mkdir()
    for flags in ((), ("--allow=none",)):
        assert set(asker.everywhere(root, *flags, allow_none=bool(flags)).values()) == {Answer(4)}
        assert f"an earlier start resumed from step 20 ({root}/iter_0000020)" in asker.err
        assert "--allow fresh" in asker.err
    for answer in asker.everywhere(root, "--allow=fresh", allow_fresh=True).values():
        assert (answer.code, answer.step, answer.path) == (0, None, None)


def test_a_question_is_no_start(asker: Asker, root: Path) -> None:
    """Whoever only asked has started nothing, and has left nothing behind."""
    assert {asker.ask(name, root).step for name in ("plan", "latest")} == {20}
    assert not asker.state.exists()
    shutil.rmtree(root)
    root.mkdir()
    assert len({asker.ask(name, root, "--allow=none") for name in ("plan", "latest")}) == 1


def test_the_first_launch_of_another_run_in_the_same_root(asker: Asker, tmp_path: Path) -> None:
    """The run that an earlier start was of is still there, and the question is about another."""
    root = megatron(tmp_path / "runs/a").parent
    asker.ask("run", root)
    other = ("--run", "b", "--allow=none", "--allow=missing")
    assert asker.ask("plan", root, *other).code == 0
    shutil.rmtree(root / "a")
    assert asker.ask("plan", root, *other) == Answer(4)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("note", ["", "[]", "not json"])
def test_a_note_of_an_earlier_start_that_cannot_be_read_is_no_absence(
    asker: Asker, root: Path, name: str, note: str
) -> None:
    asker.ask("run", root)
    (last,) = asker.state.glob("*/last.json")
    shutil.rmtree(root)
    root.mkdir()
    last.write_text(note)
    assert asker.ask(name, root, "--allow=none") == Answer(5)
    assert str(last) in asker.err
    last.unlink()
    last.mkdir()
    assert asker.ask(name, root, "--allow=none") == Answer(5)
    assert asker.ask(name, root, "--allow=fresh").code == 0


def test_decisions_never_go_below_the_root(asker: Asker, root: Path) -> None:
    asker.state = root / "decisions"
    assert set(asker.everywhere(root).values()) == {Answer(2)}
    assert not asker.state.exists()


def flags(options: dict[str, Any]) -> list[object]:
    """The JSON form of a Selection as a command's options."""
    words: list[object] = []
    for key, value in options.items():
        if key == "replicas_all":
            words += ["--replica-groups", "all"]
        elif key == "replica_groups":
            for role, groups in value.items():
                text = ";".join(",".join(map(str, group)) for group in groups)
                words += ["--replica-groups", f"{role}={text}" if role else text]
        else:
            said = [] if value is True else [",".join(map(str, value)) if isinstance(value, list) else value]
            words += [f"--{key.replace('_', '-')}", *said]
    return words


def _equal(times: dict[Path, int]) -> dict[Path, int]:
    return dict.fromkeys(times, max(times.values()))


def _reversed(times: dict[Path, int]) -> dict[Path, int]:
    first, last = min(times.values()), max(times.values())
    return {path: first + last - ns for path, ns in times.items()}


def _future(times: dict[Path, int]) -> dict[Path, int]:
    ahead = time.time_ns() + 86_400_000_000_000 - min(times.values())
    return {path: ns + ahead for path, ns in times.items()}


DOUBTS: tuple[Callable[[dict[Path, int]], dict[Path, int]], ...] = (_equal, _reversed, _future)


def doubt(root: Path, change: Callable[[dict[Path, int]], dict[Path, int]]) -> None:
    for path, ns in change({path: path.stat().st_mtime_ns for path in below(root)}).items():
        os.utime(path, ns=(ns, ns))


def asked() -> Iterator[Any]:
    """(case, question): those with an expected answer, those about damage, and those about doubtful times, of
    every layout.
    """
    for case in CASES:
        expected = json.loads(case.read_text())
        name = f"{case.parent.parent.name}-{case.parent.name}"
        for key in ("plans", "verify"):
            for i, question in enumerate(expected.get(key, ())):
                yield pytest.param(case, question, id=f"{name}-{key}-{i}")
        for change in DOUBTS:
            yield pytest.param(case, {"times": change}, id=f"{name}-{change.__name__[1:]}")


@pytest.mark.share(468)
@pytest.mark.parametrize(("case", "question"), list(asked()))
def test_all_answer_alike(asker: Asker, case: Path, question: dict[str, Any], tmp_path: Path) -> None:
    options, root = question.get("options", {}), materialise(case, tmp_path)
    damage(root, question)
    if "times" in question:
        doubt(root, question["times"])
    named = {name: getattr(selection(options), name) for name in options}
    answers = asker.everywhere(Path(root, question.get("root", ".")), *flags(options), **named)
    assert len(set(answers.values())) == 1, answers


FORMATS = {
    "plan": ("table", "json", "shell", "sarif", "github", "markdown", "csv"),
    "latest": ("text", "json", "shell"), "hook": ("shell", "json", "slurm"), "run": ("text",),
}  # fmt: skip
TREES: dict[str, Callable[[Path], object]] = {
    "sound": lambda root: None, "an older one": lambda root: broken(root, 20),
    "none usable": lambda root: [broken(root, step) for step in (10, 20)], "in doubt": lambda root: doubt(root, _reversed),
    "nothing": lambda root: (shutil.rmtree(root), root.mkdir()), "not there": shutil.rmtree,
}  # fmt: skip


def test_the_formats_are_those_of_the_commands(asker: Asker, tmp_path: Path) -> None:
    for name, formats in FORMATS.items():
        words = [name, tmp_path, "--format", "?", *(["--", "train"] if name == "run" else [])]
        assert asker.execute(*words)[2].splitlines()[0].endswith(f"not one of {', '.join(formats)}")


@pytest.mark.share(4)
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("tree", TREES)
def test_neither_format_nor_rank_nor_quiet_decides(asker: Asker, root: Path, tree: str, name: str) -> None:
    TREES[tree](root)
    right = asker.ask("plan", root)
    for more in (("-q",), ("-v", "--explain"), ("--rank", "1")):
        assert asker.ask(name, root, *more) == right, more
    for output in FORMATS[name]:
        for more in ((), ("-q", "--rank", "1")):
            words = [name, root, "--plan-dir", asker.state, "--format", output, *more]
            words += ["--rank", "0"] if name == "latest" and not more else []
            words += ["--", "train"] if name == "run" else []
            asker.started = {}
            code, out, _ = asker.execute(*words)
            assert code == right.code, words
            told = re.search(r"CKPT_STEP=(\d*)", out)
            assert told is None or told[1] == str(right.step or ""), words
            assert not asker.started or asker.started["CKPT_STEP"] == str(right.step), words


def test_the_budget_of_a_start_is_the_only_default_that_differs(asker: Asker, root: Path) -> None:
    for name, budget in {"plan": None, "latest": None, "hook": 60}.items():
        _, out, _ = asker.execute(name, root, "--plan-dir", asker.state, "--json", "--rank", "0")
        assert json.loads(out)["budget"] == budget
    broken_body(root)
    for word, seconds, step in (("0s", 0.0, 20), ("1h", 3600.0, 10)):
        answers = asker.everywhere(root, "--budget", word, "--no-cache", budget=seconds)
        assert {a.step for a in answers.values()} == {step}, answers
        assert len(set(answers.values())) == 1


def test_a_plan_may_be_narrowed_to_a_rank_but_only_by_the_flag(
    asker: Asker, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CKPT_RANK is what each process of a job has: whoever writes the plan of the job there must not write
    that of one rank.
    """
    asked = (("--json",), ("--json", "--rank", "1"))
    whole, one = (json.loads(asker.execute("plan", root, *words)[1]) for words in asked)
    own = {"ranks": whole["ranks"][1:], "resume": one["resume"], "bytes_read": one["bytes_read"]}
    assert [r["rank"] for r in whole["ranks"]] == [0, 1] and one == whole | own
    assert {asker.ask(name, root, "--rank", "2") for name in COMMANDS} == {Answer(2)}
    monkeypatch.setenv("CKPT_RANK", "1")
    assert json.loads(asker.execute("plan", root, "--json")[1])["ranks"] == whole["ranks"]


def run(root: Path, plans: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return ckpt("run", root, "--plan-dir", plans, *words, "--", *SAY)


def told(root: Path, plans: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return ckpt("plan", root, "--plan-dir", plans, "--history", *words)


def history(root: Path, plans: Path, code: int = 0) -> dict:
    done = told(root, plans, "--json")
    assert done.returncode == code, (done.stdout, done.stderr)
    return json.loads(done.stdout)


def log(root: Path, plans: Path) -> Path:
    return Path(first_launch.name_home(str(plans), str(root))) / starts.NAME


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
    line = ["bash", "-c", f"{hook}; sleep 600 & {hook}; kill $!"]
    done = subprocess.run(line, env=CLEAN, capture_output=True, text=True)
    assert done.returncode == 0 and "another-writer" not in done.stderr
