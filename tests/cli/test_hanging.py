"""A system call that never returns: its file is unreadable, the exit code 5, and the process ends all the
same.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path

import hanging
import pytest
from run_helpers import megatron
from safetensors_writer import vectors

from ckpt_tools.storage import stalls
from ckpt_tools.storage.attempts import patiently

pytestmark = pytest.mark.slow  # an interpreter for each, and calls that hang for a second

HOUR = ("--budget", "1h")
NIGHT = pytest.mark.exhaustive


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two checkpoints of one rank, step 10 and 20."""
    return megatron(tmp_path / "run", world=1)


def newest(root: Path) -> Path:
    return root / "iter_0000020" / "mp_rank_00" / "model_optim_rng.pt"


@pytest.mark.share(2)
@pytest.mark.parametrize(
    "command", ["plan", "run", pytest.param("latest", marks=NIGHT), pytest.param("hook", marks=NIGHT)]
)
def test_no_command_goes_back_in_time(command: str, root: Path, tmp_path: Path) -> None:
    more = ["--plan-dir", tmp_path / "plans"] if command in ("hook", "run") else []
    more += ["--", "true"] if command == "run" else []
    done = hanging.ckpt("read", newest(root), command, root, *HOUR, "--order", "step", *more)
    assert done.returncode == 5 and str(newest(root)) in done.stderr, done.stderr
    assert "has not returned" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.share(2)
@pytest.mark.parametrize(
    "call", ["readdir", "stat", pytest.param("opendir", marks=NIGHT), pytest.param("open", marks=NIGHT)]
)
def test_every_call_that_hangs_is_noticed(call: str, root: Path) -> None:
    path = newest(root).parent if call.endswith("dir") else newest(root)
    done = hanging.ckpt(call, path, "plan", root, *HOUR, "--order", "step")
    assert done.returncode == 5 and str(path) in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_verify_says_which_file_and_what_it_saw_of_the_others(root: Path) -> None:
    done = hanging.ckpt("read", newest(root), "verify", root, "--max-duration", "1h", "--json")
    assert done.returncode == 5, done.stderr
    files = {f["path"]: f for f in json.loads(done.stdout)["files"]}
    hung = files.pop(str(newest(root)))
    assert (hung["verdict"], [x["code"] for x in hung["findings"]]) == ("unknown", ["unreadable"])
    assert {f["verdict"] for f in files.values()} == {"ok"}


@pytest.mark.parametrize("jobs", [pytest.param("1", marks=NIGHT), "4"])
def test_contents_that_hang(jobs: str, tmp_path: Path) -> None:
    """Also in a thread beside others that read: nobody waits for it at the end."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(vectors(a=bytes(range(256)) * (8 << 12)))
    words = ("verify", path, "--max-duration", "1h", "-j", jobs, "--json")
    done = hanging.ckpt("read", path, *words, start=5 << 20)
    assert done.returncode == 5, done.stderr
    assert [f["verdict"] for f in json.loads(done.stdout)["files"]] == ["unknown"]


def test_copies_of_this_process_that_hang_are_not_waited_for(tmp_path: Path) -> None:
    many = megatron(tmp_path / "many", steps=range(70), world=1)
    path = many / "iter_0000069" / "mp_rank_00" / "model_optim_rng.pt"
    words = ("plan", many, *HOUR, "-j", "2", "--order", "step", "--level", "structure")
    done = hanging.ckpt("read", path, *words)
    assert done.returncode == 5 and str(path) in done.stderr, done.stderr


IN_PYTHON = """
import sys
from ckpt_tools.storage import stalls
stalls.GRACE = 1.0 - 3600
from ckpt_tools import CannotLook, Selection, plan
for skip in (False, True):
    try:
        print(plan(sys.argv[1], Selection(budget=3600.0, order="step", skip_unreadable=skip)).checkpoint.step)
    except CannotLook as error:
        print(type(error).__name__, sys.argv[2] in str(error))
"""


def test_python_gets_an_exception_and_ends_as_usual(root: Path) -> None:
    done = hanging.ckpt("read", newest(root), root, newest(root), code=IN_PYTHON)
    assert (done.returncode, done.stdout, done.stderr) == (0, "CannotLook True\n10\n", "")


def test_slow_is_not_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long after the limit: every call returned."""
    monkeypatch.setattr(stalls, "GRACE", 0.5)
    monkeypatch.setattr(stalls, "_AGAIN", 0.1)
    turn = threading.Event()
    with stalls.limited(0):
        assert stalls.away(lambda: [stalls.watched(turn.wait, 0.05) for _ in range(20)]) == [False] * 20


def test_after_three_nobody_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "GRACE", 0.0)
    monkeypatch.setattr(stalls, "_AGAIN", 0.05)
    never, asked = threading.Event(), []

    def hanging_call(path: str) -> None:
        asked.append(path)
        never.wait()

    with stalls.limited(0):
        for path in ("a", "a", "b", "c", "d"):
            with pytest.raises(stalls.Stalled):
                patiently(hanging_call, path)
    never.set()
    assert asked == ["a", "b", "c"]  # a is not asked about again, and d no more at all


def test_the_shim_is_what_makes_it_hang(root: Path) -> None:
    done = hanging.ckpt("nothing", newest(root), "plan", root, *HOUR, "--order", "step")
    assert done.returncode == 0, done.stderr
