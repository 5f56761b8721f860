"""``ckpt run`` and ``ckpt hook`` as real processes: what the command sees, what keeps it from starting, and that all
processes of a job get one decision. SIGINT and SIGTERM at any moment: 130 and 143, no traceback, and nothing is started.
"""

from __future__ import annotations

import builtins
import errno
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from run_helpers import CKPT, CLEAN, SAY, ckpt, decided_body, megatron, torchrun_env
from told_decider import Decisions

from ckpt_tools.errors import CannotLook, NoneUsable
from ckpt_tools.job import decider as room
from ckpt_tools.job.command import become
from ckpt_tools.job.decider import hold_lock
from ckpt_tools.planning import first_launch

pytestmark = pytest.mark.slow  # real processes, many at a time


def start(
    root: Path, plans: Path, *more: object, words: Sequence[str] = (), env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """``ckpt run`` of a command that says what it sees, and its ``words``."""
    return ckpt("run", root, "--plan-dir", plans, *more, "--", *SAY, *words, env=env)


def worker(
    root: Path, plans: Path, rank: int, *more: object, world: int = 2, restart: int = 0, job: str = "j"
) -> subprocess.CompletedProcess[str]:
    """The same in a worker of torchrun."""
    return start(root, plans, "--worker", *more, env=torchrun_env(rank, world, restart, job))


def said(done: subprocess.CompletedProcess[str]) -> tuple[list[str], dict[str, str]]:
    assert done.returncode == 0, done.stderr
    words, env = json.loads(done.stdout)
    return words, env


def test_the_command_is_told_what_to_resume_from(root: Path, plans: Path) -> None:
    words, env = said(start(root, plans, words=["--at={ckpt.step}", "{ckpt.args}", "{ckpt.path}/x"]))
    assert words == ["--at=20", "--load", str(root), "--ckpt-step", "20", f"{root}/x"]
    plan = json.loads(ckpt("plan", root, "--json").stdout)
    assert env["CKPT_PATH"] == str(root) and env["CKPT_STEP"] == "20" and env["CKPT_RESUME"] == "1"
    assert env["CKPT_FINGERPRINT"] == plan["fingerprint"]
    decision = json.loads(Path(env["CKPT_PLAN"]).read_text())
    assert decision["schema"] == "ckpt-tools/plan/v1" and decision["ranks"] == plan["ranks"]
    assert decision["decision"]["root"] == str(root)
    assert decision["budget"] == 60  # of a hook, unless --budget says otherwise


def test_first_launch(tmp_path: Path, plans: Path) -> None:
    """Nothing shines through of what was inherited."""
    (tmp_path / "run").mkdir()
    inherited = {"CKPT_STEP": "99", "CKPT_PATH": "/old", "CKPT_EPOCH": "3"}
    wanted = ["a", "{ckpt.args}", "{ckpt.step}b"]
    words, env = said(start(tmp_path / "run", plans, "--allow=none", words=wanted, env=inherited))
    assert words == ["a", "b"] and env["CKPT_RESUME"] == "0"
    assert {env[name] for name in inherited} == {""}


def test_a_command_that_cannot_be_started_changes_no_signal(tmp_path: Path) -> None:
    """Else whoever writes to a stream that is closed would die of it, without a word."""
    before = [signal.getsignal(number) for number in (signal.SIGPIPE, signal.SIGXFSZ)]
    with pytest.raises(OSError, match="No such file"):
        become([str(tmp_path / "gone")], {})
    assert [signal.getsignal(number) for number in (signal.SIGPIPE, signal.SIGXFSZ)] == before


def test_exit_codes_signals_and_streams_are_the_commands_own(root: Path, plans: Path) -> None:
    shell = ["run", str(root), "--plan-dir", str(plans), "--", "sh", "-c"]
    done = ckpt(*shell, "echo out; echo err >&2; exit 37")
    assert (done.returncode, done.stdout) == (37, "out\n") and "err" in done.stderr
    assert ckpt(*shell, "kill -KILL $$").returncode == -signal.SIGKILL
    ignored = ckpt(*shell, "grep SigIgn /proc/self/status").stdout.split()[1]
    # Python ignores it; its child must not inherit that
    assert int(ignored, 16) & (1 << (signal.SIGPIPE - 1)) == 0
    words = [*CKPT, *shell, "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=CLEAN) as process:
        assert process.stdout and process.stdout.readline() == b"ready\n"
        process.terminate()
        assert process.wait(1000) == 9  # exec: the pid that the launcher knows is the command


def test_a_command_that_cannot_start(root: Path, plans: Path, tmp_path: Path) -> None:
    path = {"PATH": "/usr/bin:/bin"}  # a PATH with a directory that is closed to us has another answer
    done = ckpt("run", root, "--plan-dir", plans, "--", "no-such-command-here", env=path)
    assert done.returncode == 127 and "cannot be started" in done.stderr and done.stdout == ""
    (tmp_path / "plain").write_text("no program")
    assert ckpt("run", root, "--plan-dir", plans, "--", tmp_path / "plain").returncode == 126


TWO_NODES = "torchrun --nnodes=2 --nproc-per-node=1 --node-rank=0 --rdzv-id=j train.py"
KEPT = ["--plan-dir", "plans"]


@pytest.mark.parametrize(
    ("words", "env", "said"),
    [
        ([*KEPT, "--", *SAY, "x{ckpt.args}"], {}, "word of its own"),
        ([*KEPT, "--", *SAY, "{ckpt.epochs}"], {}, "use {ckpt.path}"),
        ([*KEPT, "--worker", "--", *SAY], {}, "ckpt launchers"),
        ([*KEPT, "--worker", "--", *SAY], {"RANK": "1"}, "RANK"),
        (["--worker", "--", *SAY], torchrun_env(0, 2, 0, "j", local=1), "--plan-dir"),
        (["--", *TWO_NODES.split()], {}, "--plan-dir DIR on a file system that all of them see, or --agree"),
    ],
    ids=[
        "args in a word",
        "no placeholder",
        "no launcher",
        "a rank alone",
        "a worker of two nodes",
        "two nodes",
    ],
)
def test_what_is_not_started(
    root: Path, tmp_path: Path, words: list[str], env: dict[str, str], said: str
) -> None:
    done = ckpt("run", root, *words, env=env, cwd=tmp_path)
    assert done.returncode == 2 and said in done.stderr and done.stdout == "", done.stderr


def test_disk_full_leaves_no_half_decision(root: Path, plans: Path) -> None:
    def small() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))

    line = [*CKPT, "run", root, "--plan-dir", plans, "--no-cache", "--", *SAY]
    env = {**CLEAN, "PYTHONDONTWRITEBYTECODE": "1"}  # the limit would cut compiled modules as well
    done = subprocess.run(line, env=env, capture_output=True, text=True, preexec_fn=small, check=False)
    assert done.returncode == 5 and "could not be written" in done.stderr and "--plan-dir" in done.stderr
    assert list(plans.rglob("*.json*")) == []
    said(start(root, plans))


@pytest.mark.parametrize("delay", [0.05, 0.15, 0.25])
def test_a_killed_decider_leaves_a_whole_decision_or_none(root: Path, plans: Path, delay: float) -> None:
    line = [*CKPT, "run", str(root), "--worker", "--plan-dir", str(plans), "--", "sleep", "30"]
    env = {**CLEAN, **torchrun_env(0, 2, job="j")}
    with subprocess.Popen(line, env=env, stderr=subprocess.DEVNULL) as process:
        time.sleep(delay)
        process.kill()
    for path in plans.rglob("*.json"):
        json.loads(path.read_text())
    assert said(worker(root, plans, 1))[1]["CKPT_STEP"] == "20"


def test_a_file_replaced_between_plan_and_load_fails_loudly(root: Path, plans: Path) -> None:
    first = ckpt("hook", root, "--plan-dir", plans, "--json")
    env = json.loads(first.stdout)["env"]
    assert ckpt("latest", "--rank", 1, env=env).returncode == 0
    path = root / "iter_0000020/mp_rank_01/model_optim_rng.pt"
    path.write_bytes(path.read_bytes())
    done = ckpt("latest", "--rank", 1, env=env)
    assert done.returncode == 5 and "changed since" in done.stderr and done.stdout == ""
    assert ckpt("latest", "--rank", 0, env=env).returncode == 0  # each rank answers for its own
    assert ckpt("hook", "--read", "--rank", 1, env=env).stdout == "(exit 5)\n"


def test_garbage_in_place_of_a_decision(root: Path, plans: Path) -> None:
    """Where somebody has started by it, a new one could mix with it; where nobody has, it is made anew."""
    seen = said(worker(root, plans, 0))[1]
    plan = Path(seen["CKPT_PLAN"])
    plan.write_text("{")
    done = worker(root, plans, 1)
    assert done.returncode == 5
    assert all(word in done.stderr for word in (str(plan), "rank-0 may have started by it", "rm -r"))
    shutil.rmtree(plan.with_suffix(".taken"))  # as if it had been cut off before anybody took it
    again = said(worker(root, plans, 1))[1]
    assert again["CKPT_STEP"] == "20" and again["CKPT_PLAN"] != seen["CKPT_PLAN"]


HOLDER = """
import sys, time
from ckpt_tools.job.decider import hold_lock
with hold_lock(sys.argv[1], 1):
    print("held", flush=True)
    time.sleep(10**6)
"""


def test_the_lock_dies_with_its_holder(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    line = [sys.executable, "-c", HOLDER, str(lock)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, env=CLEAN) as holder:
        assert holder.stdout and holder.stdout.readline() == b"held\n"
        with pytest.raises(CannotLook, match="deciding for more than"), hold_lock(str(lock), 0.2):
            pass
        holder.kill()
    with hold_lock(str(lock), 1000):
        pass


STATE = ("last.json", "1.json", "1.taken", "")
"""What the second process of a job looks at below the directory of decisions; "" is the directory of the key
itself.
"""
FAULTS = (errno.EIO, errno.ESTALE, errno.EACCES, errno.ENOTCONN, errno.ETIMEDOUT, errno.ENAMETOOLONG)


@pytest.mark.parametrize("number", FAULTS)
@pytest.mark.parametrize("what", STATE)
def test_a_state_that_cannot_be_read_is_never_no_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, number: int
) -> None:
    """An earlier start, or a decision that others follow, must not be forgotten because of an error: exit 5
    that names it, and nothing is decided.
    """
    decisions = Decisions(str(tmp_path / "plans"), str(tmp_path / "run"))
    decisions.told("k", "rank-0", lambda: decided_body("/r/iter_20", 20)).decide()
    path = os.path.join(decisions.directory, what if what == "last.json" else f"k/{what}").rstrip("/")

    def failing(real: Any) -> Any:
        def call(at: Any, *more: Any, **named: Any) -> Any:
            if at == path or (at == os.path.basename(path) and named.get("dir_fd") is not None):
                raise OSError(number, os.strerror(number), at)
            return real(at, *more, **named)

        return call

    for owner, name in ((builtins, "open"), (os, "listdir"), (os, "scandir"), (os, "stat"), (os, "open")):
        monkeypatch.setattr(owner, name, failing(getattr(owner, name)))
    ask: Any = decisions.told("k", "rank-1", lambda: pytest.fail("decided anew"), timeout=1).decide
    if what == "last.json":
        ask = partial(first_launch.read_last_start, decisions.directory)
    with pytest.raises(CannotLook, match=re.escape(path)):
        ask()


def workers(root: Path, plans: Path, world: int, *more: object, restart: int = 0) -> list[dict[str, str]]:
    def one(rank: int) -> dict[str, str]:
        return said(worker(root, plans, rank, *more, world=world, restart=restart))[1]

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(one, range(world)))


@pytest.mark.parametrize("restart", [0, 1])
def test_workers_of_a_generation_share_a_decision_and_the_next_one_decides_anew(
    root: Path, plans: Path, restart: int
) -> None:
    """torchrun restarts its workers without counting when nodes come and go: a rank then comes twice."""
    first = said(worker(root, plans, 0))[1]
    megatron(root, steps=(30,))
    late = said(worker(root, plans, 1))[1]
    assert late["CKPT_PLAN"] == first["CKPT_PLAN"] and late["CKPT_STEP"] == "20"
    again = workers(root, plans, 2, restart=restart)
    assert {w["CKPT_STEP"] for w in again} == {"30"} and len({w["CKPT_PLAN"] for w in again}) == 1


def test_a_decision_of_a_launcher_that_is_gone_is_not_followed(root: Path, plans: Path) -> None:
    """The same rendezvous id, restart count 0, and a generation that died before all of its ranks had come."""
    line = " ".join([*CKPT, "run", str(root), "--worker", "--plan-dir", str(plans), "--", "true"])
    env = {**CLEAN, **torchrun_env(0, 2, 0, "j")}
    subprocess.run(["sh", "-c", f"{line}; true"], env=env, check=True, stderr=subprocess.DEVNULL)
    megatron(root, steps=(30,))
    assert said(worker(root, plans, 1))[1]["CKPT_STEP"] == "30"


@pytest.mark.parametrize("world", [16, pytest.param(64, marks=pytest.mark.exhaustive)])
def test_many_workers_at_once(world: int, tmp_path: Path, plans: Path) -> None:
    root = megatron(tmp_path / "many", world=8)
    seen = workers(root, plans, world, "--replica-groups", "all")
    assert len({(s["CKPT_PLAN"], s["CKPT_STEP"], s["CKPT_FINGERPRINT"]) for s in seen}) == 1
    assert len(list(Path(seen[0]["CKPT_PLAN"]).parent.glob("*.json"))) == 1  # decided once


def test_a_failed_decision_fails_those_who_waited_for_it_and_no_one_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, tried = set[int](), list[int]()
    now = SimpleNamespace(time=lambda: (began.add(threading.get_ident()), time.time())[1])
    monkeypatch.setattr(room, "time", now)
    decisions = Decisions(str(tmp_path / "plans"), str(tmp_path / "run"))

    def fail() -> Any:
        tried.append(1)
        while len(began) < 4:  # until all of them have begun to ask
            time.sleep(0.01)
        raise NoneUsable("nothing is good", "look at it")

    def ask(rank: int) -> None:
        with pytest.raises(NoneUsable, match="nothing is good"):
            decisions.told("k", f"rank-{rank}", fail).decide()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(4)))
    assert len(tried) == 1
    assert (
        not decisions.told("k", "rank-0", decided_body).decide().has_checkpoint
    )  # a later start tries again


def test_processes_that_ask_differently_are_told(root: Path, plans: Path) -> None:
    said(worker(root, plans, 0))
    done = worker(root, plans, 1, "--max-step", 10)
    assert done.returncode == 2 and "options or plug-ins" in done.stderr


def test_layouts_of_the_users_own_are_the_same_question_in_every_process(root: Path, plans: Path) -> None:
    """In processes of which none is a copy of another: they have the same functions at other addresses."""
    config = root.parent / "ckpt.toml"
    table = '[[layout]]\nname = "ours"\n[[layout.piece]]\nrole = "model"\ntemplate = "{step}/w.bin"\n'
    config.write_text(table)
    words = [*CKPT, "run", root, "--worker", "--plan-dir", plans, "--config", config, "--", "true"]
    for rank in range(2):
        done = subprocess.run(words, env={**CLEAN, **torchrun_env(rank, 2)}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "line",
    [
        "torchrun --max_restarts 3 train.py", "torchrun --nproc-per-node 2 --max-restarts=32767 train.py",
        f"{sys.executable} -m torch.distributed.run --max-r 1 train.py", "torchrun --nnodes=1:2 train.py",
        "PET_MAX_RESTARTS=2 torchrun train.py",
    ],
)  # fmt: skip
def test_the_outer_form_refuses_what_restarts_in_place(root: Path, line: str) -> None:
    words = line.split()
    env = dict([words.pop(0).split("=")]) if "=" in words[0] else {}
    done = ckpt("run", root, "--", *words, env=env)
    works = r"hint: .* --no-python ckpt run \S+ --worker -- python -u train.py"
    assert done.returncode == 2 and re.search(works, done.stderr), done.stderr


def test_options_of_scripts_are_not_those_of_torchrun(root: Path, plans: Path) -> None:
    line = "torchrun --standalone --nproc-per-node=2 train.py --max_restarts 3"
    done = ckpt("run", root, "--plan-dir", plans, "--", *line.split(), env={"PATH": "/nowhere"})
    assert done.returncode == 127  # it would have been started


def test_latest_inside_a_job_is_the_jobs_decision(root: Path, plans: Path, tmp_path: Path) -> None:
    env = json.loads(ckpt("hook", root, "--plan-dir", plans, "--json").stdout)["env"]
    megatron(root, steps=(30,))
    mine = root / "iter_0000020/mp_rank_01/model_optim_rng.pt"
    assert ckpt("latest", "--rank", 1, env=env).stdout == f"{mine}\n"
    assert ckpt("latest", root, "--rank", 1, env=env).stdout == f"{mine}\n"
    assert ckpt("latest", env={**env, **torchrun_env(1, 2)}).stdout == f"{mine}\n"
    body = json.loads(ckpt("latest", "--rank", 1, "--json", env=env).stdout)
    assert [r["rank"] for r in body["ranks"]] == [1] and body["resume_step"] == 20
    other = megatron(tmp_path / "other", steps=(5,))
    assert "iter_0000005" in ckpt("latest", other, "--rank", 1, env=env).stdout  # another question
    done = ckpt("latest", "--rank", 7, env=env)
    assert done.returncode == 2 and "is not among the" in done.stderr
    assert ckpt("latest", env=env).returncode == 2  # which rank?


BOTH = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
AT = """
import os, sys
left, how = int(sys.argv.pop(1)), os.environ["HOW"]
def passed(n=1):
    global left
    left -= n
    if left == 0 and n:
        os.kill(os.getpid(), int(os.environ["SENT"]))
class Counting:
    def find_spec(self, name, path=None, target=None):
        passed()
import ckpt_tools.cli.signals as signals
begin = signals.begin
def counted():
    begin()
    if how == "import":
        sys.meta_path.insert(0, Counting())
    else:
        sys.setprofile(lambda frame, event, arg: passed(event in ("call", "c_call")))
signals.begin = counted
from ckpt_tools.cli import main
main()
"""
"""The command, to which a signal is sent at its n-th import, or call of a function."""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return megatron(tmp_path / "run", steps=(10,), world=1)


WORDS = {
    "run": ("run", "@", "--plan-dir", "plans", "--", sys.executable, "-c", "print('started')"), "seal": ("seal", "@"),
    "prune": ("prune", "@", "--keep", "1", "--apply", "--settle", "0s"),
    "watch": ("watch", "@", "--once", "--seal", "--settle", "0s", "--state-dir", "watched"),
    "quarantine": ("quarantine", "@", "--apply"), "report": ("report", "@", "-o", "page.html"),
    "verify": ("verify", "@", "--json", "-o", "answer.json"), "hook": ("hook", "@", "--plan-dir", "plans"),
}  # fmt: skip


def sent(
    how: str, at: int, number: int, small: Path, tmp_path: Path, command: str = "run"
) -> subprocess.CompletedProcess[str]:
    words = [str(small) if word == "@" else word for word in WORDS[command]]
    env = {**CLEAN, "SENT": str(number), "HOW": how, "CKPT_CACHE_DIR": str(tmp_path / "cache")}
    line = [sys.executable, "-c", AT, str(at), *words]
    return subprocess.run(line, capture_output=True, text=True, env=env, cwd=tmp_path)


def python(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, env=CLEAN)


def is_quiet(done: subprocess.CompletedProcess[str]) -> bool:
    return "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


def holds(done: subprocess.CompletedProcess[str], code: int) -> bool:
    """Whether the command ended by the signal and quietly; False when it was over before the signal came."""
    assert is_quiet(done), done.stderr
    if done.returncode == 0 and done.stdout == "started\n":
        return False
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    return True


def by_day(few: Iterable[int], by_night: Iterable[int]) -> list[Any]:
    """The moments that are tried by day, and those that are tried at night."""
    few = [*few]
    return [*few, *(pytest.param(at, marks=pytest.mark.exhaustive) for at in by_night if at not in few)]


@pytest.mark.parametrize(("number", "code"), BOTH)
@pytest.mark.parametrize("at", by_day((1, 60, 140), range(1, 160)))
def test_a_signal_at_an_import(at: int, number: int, code: int, small: Path, tmp_path: Path) -> None:
    assert holds(sent("import", at, number, small, tmp_path), code)


@pytest.mark.parametrize(("number", "code"), BOTH)
@pytest.mark.parametrize("at", by_day((300, 60_000), random.Random(7).sample(range(1, 120_000), 50)))
def test_a_signal_at_a_call(at: int, number: int, code: int, small: Path, tmp_path: Path) -> None:
    holds(sent("call", at, number, small, tmp_path), code)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("number", "code"), BOTH)
@pytest.mark.parametrize("at", random.Random(8).sample(range(3_000, 120_000), 6))
@pytest.mark.parametrize("command", [name for name in WORDS if name != "run"])
def test_a_signal_at_calls_of_other_commands(
    command: str, at: int, number: int, code: int, small: Path, tmp_path: Path
) -> None:
    """What is written is whole or not there, and the next command goes on."""
    done = sent("call", at, number, small, tmp_path, command)
    assert is_quiet(done) and done.returncode in (0, code), done.stderr
    for path in [*small.rglob(".ckpt-seal*.json"), tmp_path / "answer.json"]:
        assert not path.exists() or json.loads(path.read_text())
    again = python("-m", "ckpt_tools", "plan", small, "--json")
    assert json.loads(again.stdout)["resume_step"] == 10, again.stderr


INHERIT = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN if sys.argv[1] == "ignored" else signal.SIG_DFL)
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Starts a command that inherits both signals as ignored, or not."""
WITH_PLAN = """
import os, signal, sys, threading, time
from ckpt_tools import api, cli
number = int(sys.argv.pop()) if sys.argv[3:] else 0
class Odd:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000): pass
def slow():
    threading.Thread(target=time.sleep, args=(10**6,)).start()  # no daemon: a normal exit would wait for it
    print("ready", flush=True)
    while True:
        time.sleep(0.01)  # a signal that comes just before pause() would wait in it for ever
def twice():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    finally:  # what is left in order takes its time
        os.kill(os.getpid(), number)
        print("not reached", flush=True)
def destructor():
    del_me = Odd()
    del del_me
    raise KeyError("a bug")
def lost():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000): pass
    except BaseException:
        pass
    raise KeyError("a bug")
api.plan = lambda *args, how=globals()[sys.argv[2]], **kwargs: how()
sys.argv[0] = "ckpt"
cli.main()
"""
"""``ckpt plan NAME …``, which does what the function of this name does."""


@pytest.mark.parametrize("inherited", ["ignored", "default"])
@pytest.mark.parametrize(("number", "code"), BOTH)
def test_a_signal_ends_it_at_once_whatever_was_inherited(number: int, code: int, inherited: str) -> None:
    """A script's background jobs inherit SIGINT as ignored."""
    line = [sys.executable, "-c", INHERIT, inherited, sys.executable, "-c", WITH_PLAN, "plan", "slow"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=CLEAN) as child:
        assert child.stdout is not None and child.stderr is not None
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(number)
        assert child.wait() == code and child.stderr.read() == b""


SAYS = """
import signal
for number in (signal.SIGINT, signal.SIGTERM):
    print(getattr(signal.getsignal(number), "name", "python"))
"""


@pytest.mark.parametrize("ignored", [True, False])
def test_what_the_command_becomes_inherits_what_ckpt_did(ignored: bool, small: Path, tmp_path: Path) -> None:
    words = ["run", str(small), "--plan-dir", str(tmp_path / "plans"), "--", sys.executable, "-c", SAYS]
    how = "ignored" if ignored else "default"
    done = python("-c", INHERIT, how, sys.executable, "-m", "ckpt_tools", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == (["SIG_IGN", "SIG_IGN"] if ignored else ["python", "SIG_DFL"])


@pytest.mark.parametrize(("number", "code"), BOTH)
def test_a_second_signal_ends_it_where_it_stands(number: int, code: int) -> None:
    done = python("-c", WITH_PLAN, "plan", "twice", int(number))
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


@pytest.mark.parametrize("how", ["destructor", "lost"])
def test_a_signal_whose_exception_is_lost_still_ends_it(how: str) -> None:
    done = python("-c", WITH_PLAN, "plan", how)
    assert done.returncode == 143 and is_quiet(done), done.stderr
