"""SIGINT and SIGTERM at any moment: 130 and 143, no traceback, and no command is started."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from run_helpers import CLEAN, megatron

pytestmark = pytest.mark.slow  # an interpreter for each

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
def root(tmp_path: Path) -> Path:
    return megatron(tmp_path / "run", steps=(10,), world=1)


WORDS = {
    "run": ("run", "@", "--plan-dir", "plans", "--", sys.executable, "-c", "print('started')"), "seal": ("seal", "@"),
    "prune": ("prune", "@", "--keep", "1", "--apply", "--settle", "0s", "--state-dir", "pruned"),
    "watch": ("watch", "@", "--once", "--seal", "--settle", "0s", "--state-dir", "watched"),
    "quarantine": ("quarantine", "@", "--apply"), "report": ("report", "@", "-o", "page.html"),
    "verify": ("verify", "@", "--json", "-o", "answer.json"), "hook": ("hook", "@", "--plan-dir", "plans"),
}  # fmt: skip


def sent(
    how: str, at: int, number: int, root: Path, tmp_path: Path, command: str = "run"
) -> subprocess.CompletedProcess[str]:
    words = [str(root) if word == "@" else word for word in WORDS[command]]
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
def test_a_signal_at_an_import(at: int, number: int, code: int, root: Path, tmp_path: Path) -> None:
    assert holds(sent("import", at, number, root, tmp_path), code)


@pytest.mark.parametrize(("number", "code"), BOTH)
@pytest.mark.parametrize("at", by_day((300, 60_000), random.Random(7).sample(range(1, 120_000), 50)))
def test_a_signal_at_a_call(at: int, number: int, code: int, root: Path, tmp_path: Path) -> None:
    holds(sent("call", at, number, root, tmp_path), code)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("number", "code"), BOTH)
@pytest.mark.parametrize("at", random.Random(8).sample(range(3_000, 120_000), 6))
@pytest.mark.parametrize("command", [name for name in WORDS if name != "run"])
def test_a_signal_at_calls_of_other_commands(
    command: str, at: int, number: int, code: int, root: Path, tmp_path: Path
) -> None:
    """What is written is whole or not there, and the next command goes on."""
    done = sent("call", at, number, root, tmp_path, command)
    assert is_quiet(done) and done.returncode in (0, code), done.stderr
    for path in [*root.rglob(".ckpt-seal*.json"), tmp_path / "answer.json"]:
        assert not path.exists() or json.loads(path.read_text())
    again = python("-m", "ckpt_tools", "plan", root, "--json")
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
def test_what_the_command_becomes_inherits_what_ckpt_did(ignored: bool, root: Path, tmp_path: Path) -> None:
    words = ["run", str(root), "--plan-dir", str(tmp_path / "plans"), "--", sys.executable, "-c", SAYS]
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
