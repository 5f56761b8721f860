"""Many small files looked at by copies of this process: the same answer, whatever happens to a copy. A system call that
never returns: its file is unreadable, the exit code 5, and the process ends all the same.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import hanging
import pytest
import small_files
from msgspec.structs import replace
from places import FORMAT_FILES
from run_helpers import megatron
from safetensors_writer import vectors
from timed import put

from ckpt_tools import Level, NoneUsable, Selection, Verification, plan
from ckpt_tools import verify as verify_paths
from ckpt_tools.cache import Seen
from ckpt_tools.reading import engines, scheduler
from ckpt_tools.reading.scheduler import Request, Scheduler
from ckpt_tools.storage import stalls
from ckpt_tools.storage.stalls import retry_call

pytestmark = pytest.mark.slow  # copies of the process, and hundreds of files for them

STEPS = (100, 200)


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """80 ranks with two checkpoints each, of which some files are damaged in ways of their own, and bare
    files beside them.
    """
    for rank in range(80):
        for step in STEPS:
            data = small_files.mindspore(True, 0, step_num=step, cur_rank=rank)
            put(tmp_path / f"rank_{rank}/net-1_{step}.ckpt", data, 1_700_000_000 + step)
    spoilt: dict[int, Callable[[bytes], bytes]] = {
        3: lambda data: data.replace(small_files.PAYLOAD, b"\x3e" + small_files.PAYLOAD[1:], 1),
        17: lambda data: data[:-40],
        40: lambda data: b"",
        41: lambda data: b"no checkpoint",
    }
    for rank, spoil in spoilt.items():
        path = tmp_path / f"rank_{rank}/net-1_200.ckpt"
        put(path, spoil(path.read_bytes()), 1_700_000_200)
    return tmp_path


def told(found: Verification) -> Verification:
    return replace(found, summary=replace(found.summary, seconds=0.0))


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """(files, those answered by a copy) of every run in the test. Threads that were there before it do not
    count: that by which pytest watches for hangs, and what a library keeps that another test has used.
    """
    before = frozenset(threading.enumerate())
    monkeypatch.setattr(engines, "is_single_threaded", lambda: before.issuperset(threading.enumerate()))
    seen, real = list[list[int]](), Scheduler.read

    def counting(self: Scheduler, requests: list[Request]) -> Iterator[tuple[Request, Seen]]:
        seen.append(count := [len(requests), 0])
        for one in real(self, requests):
            count[1] += 1
            yield one

    monkeypatch.setattr(Scheduler, "read", counting)
    return seen


def wait_until(true: Callable[[], bool]) -> None:
    while not true():
        time.sleep(0.02)


def children() -> set[int]:
    out = set[int]()
    for task in os.listdir("/proc/self/task"):
        with suppress(FileNotFoundError):  # a thread has ended
            out.update(map(int, Path(f"/proc/self/task/{task}/children").read_text().split()))
    return out


@pytest.mark.parametrize("level", [Level.STRUCTURE, Level.CONTENT])
def test_the_answer_is_that_of_one_process(many: Path, level: Level, copies: list[list[int]]) -> None:
    alone = told(verify_paths([str(many)], level, jobs=1))
    assert not copies
    assert told(verify_paths([str(many)], level, jobs=3)) == alone
    assert copies == [[159, 159]]  # one of the 160 is empty: there is nothing to read
    codes = {f.report.path: {x.code for x in f.report.findings} for f in alone.files}
    newest = [codes[str(many / f"rank_{rank}" / "net-1_200.ckpt")] for rank in range(80)]
    assert ("crc-mismatch" in newest[3]) is (level is Level.CONTENT)
    assert "truncated" in newest[17] and "empty-file" in newest[40] and "bad-header" in newest[41]


@pytest.mark.parametrize("runs", [1, pytest.param(3, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    "root",
    ["formats/tf_bundle", *(pytest.param(r, marks=pytest.mark.exhaustive) for r in ("formats", "layouts"))],
)
def test_every_fixture_at_once(root: str, runs: int, copies: list[list[int]]) -> None:
    """What a check adds up over several files, such as the total size of sharded safetensors, is not torn
    apart.
    """
    alone = told(verify_paths([str(FORMAT_FILES.parent / root)], jobs=1))
    for _ in range(runs):
        assert told(verify_paths([str(FORMAT_FILES.parent / root)], jobs=4)) == alone
    assert len(copies) >= runs and max(copies)[0] > 100 and all(n == done for n, done in copies)


@pytest.mark.share(2)
@pytest.mark.parametrize("level", [Level.STRUCTURE, Level.CONTENT])
def test_plans_are_and_fall_back_the_same(many: Path, level: Level, copies: list[list[int]]) -> None:
    question = Selection(level=level, settle=0.0)
    alone = plan(str(many), replace(question, jobs=1))
    made = plan(str(many), replace(question, jobs=2))
    assert copies and made == alone and made.checkpoint is not None
    assert [p.path.endswith("net-1_100.ckpt") for p in made.checkpoint.parts] == [True] * 80
    for rank in range(80):
        (many / f"rank_{rank}" / "net-1_100.ckpt").write_bytes(b"\0")
    with pytest.raises(NoneUsable):
        plan(str(many), replace(question, jobs=2))


def test_what_a_dead_copy_leaves_is_read_here(
    many: Path, monkeypatch: pytest.MonkeyPatch, copies: list[list[int]]
) -> None:
    before = children()  # of other tests
    alone = told(verify_paths([str(many)], jobs=1))
    here, real = os.getpid(), scheduler.inspect

    def deadly(path: str, *rest: object, **more: object) -> object:
        if os.getpid() != here and "rank_5/" in path:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(path, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(scheduler, "inspect", deadly)
    found = told(verify_paths([str(many)], jobs=2))
    assert copies[0][1] < copies[0][0]
    assert found == alone
    assert children() <= before


def test_no_copy_outlives_a_stop(many: Path, copies: object) -> None:
    def stop(done: int, total: int) -> None:
        if children() - before:
            raise KeyboardInterrupt

    before = children()
    with pytest.raises(KeyboardInterrupt):
        verify_paths([str(many)], jobs=4, progress=stop)
    assert children() <= before


def test_a_copy_ends_with_its_parent(tmp_path: Path, copies: object) -> None:
    parent = os.fork()
    if not parent:
        with engines.copies_here(2) as engine:
            for _ in range(1000):
                engine.executor.submit(os.system, f"touch {tmp_path}/$PPID; sleep 0.02")
            wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(parent, 0)
    pids = [int(p.name) for p in tmp_path.iterdir()]
    assert len(pids) == 2
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))


TELLING = """
import sys, ckpt_tools.cli
from ckpt_tools.reading import engines
real = engines._begin_copy
def told():
    sys.stderr.write("a copy is made\\n"); sys.stderr.flush()
    real()
engines._begin_copy = told
sys.exit(ckpt_tools.cli.execute(sys.argv[1:]))
"""


def test_the_command_makes_copies(many: Path) -> None:
    words = [sys.executable, "-c", TELLING, "verify", str(many), "--jobs", "2", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=1000)
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("a copy is made") == 2


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
    with stalls.limit_time(0):
        assert (
            stalls.run_aside(lambda: [stalls.watch_call(turn.wait, 0.05) for _ in range(20)]) == [False] * 20
        )


def test_after_three_nobody_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "GRACE", 0.0)
    monkeypatch.setattr(stalls, "_AGAIN", 0.05)
    never, asked = threading.Event(), []

    def hanging_call(path: str) -> None:
        asked.append(path)
        never.wait()

    with stalls.limit_time(0):
        for path in ("a", "a", "b", "c", "d"):
            with pytest.raises(stalls.Stalled):
                retry_call(hanging_call, path)
    never.set()
    assert asked == ["a", "b", "c"]  # a is not asked about again, and d no more at all


def test_the_shim_is_what_makes_it_hang(root: Path) -> None:
    done = hanging.ckpt("nothing", newest(root), "plan", root, *HOUR, "--order", "step")
    assert done.returncode == 0, done.stderr
