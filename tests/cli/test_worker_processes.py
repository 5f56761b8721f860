"""Many small files looked at by copies of this process: the same answer, whatever happens to a copy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import small_files
from msgspec.structs import replace
from places import FORMAT_FILES
from timed import put

from ckpt_tools import Level, NoneUsable, Selection, Verification, plan
from ckpt_tools import verify as verify_paths
from ckpt_tools.cache import Seen
from ckpt_tools.reading import engines, scheduler
from ckpt_tools.reading.scheduler import Request, Scheduler

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
def copies(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(files, those answered by a copy) of every run in the test. Threads that were there before it do not
    count: that by which pytest watches for hangs, and what a library keeps that another test has used.
    """
    before = frozenset(threading.enumerate())
    monkeypatch.setattr(engines, "is_single_threaded", lambda: before.issuperset(threading.enumerate()))
    seen: list[tuple[int, int]] = []
    real = Scheduler.read

    def counting(self: Scheduler, requests: list[Request]) -> Iterator[tuple[Request, Seen]]:
        count, n = len(requests), 0
        try:
            for one in real(self, requests):
                n += 1
                yield one
        finally:
            seen.append((count, n))

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
def test_the_answer_is_that_of_one_process(many: Path, level: Level, copies: list[tuple[int, int]]) -> None:
    alone = told(verify_paths([str(many)], level, jobs=1))
    assert not copies
    assert told(verify_paths([str(many)], level, jobs=3)) == alone
    assert copies == [(159, 159)]  # one of the 160 is empty: there is nothing to read
    codes = {f.report.path: {x.code for x in f.report.findings} for f in alone.files}
    newest = [codes[str(many / f"rank_{rank}" / "net-1_200.ckpt")] for rank in range(80)]
    assert ("crc-mismatch" in newest[3]) is (level is Level.CONTENT)
    assert "truncated" in newest[17] and "empty-file" in newest[40] and "bad-header" in newest[41]


@pytest.mark.parametrize("runs", [1, pytest.param(3, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    "root",
    ["formats/tf_bundle", *(pytest.param(r, marks=pytest.mark.exhaustive) for r in ("formats", "layouts"))],
)
def test_every_fixture_at_once(root: str, runs: int, copies: list[tuple[int, int]]) -> None:
    """What a check adds up over several files, such as the total size of sharded safetensors, is not torn
    apart.
    """
    alone = told(verify_paths([str(FORMAT_FILES.parent / root)], jobs=1))
    for _ in range(runs):
        assert told(verify_paths([str(FORMAT_FILES.parent / root)], jobs=4)) == alone
    assert len(copies) >= runs and max(copies)[0] > 100 and all(n == done for n, done in copies)


@pytest.mark.share(2)
@pytest.mark.parametrize("level", [Level.STRUCTURE, Level.CONTENT])
def test_plans_are_the_same_and_fall_back_the_same(
    many: Path, level: Level, copies: list[tuple[int, int]]
) -> None:
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
    many: Path, monkeypatch: pytest.MonkeyPatch, copies: list[tuple[int, int]]
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
