"""Nodes that meet: who fails, or dies by whatever signal, ends the others at once; waiting costs few calls;
all start or none does.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from run_helpers import CKPT, CLEAN, SAY, megatron
from two_nodes import Nodes, free_port

from ckpt_tools.errors import CannotLook
from ckpt_tools.job.boards import Board, Files
from ckpt_tools.job.exchange import Meeting, meeting
from ckpt_tools.job.files import locked
from ckpt_tools.job.liveness import Locks
from ckpt_tools.job.waiting import MOST, Backoff, Clock
from ckpt_tools.planning import decision_log

LONG = "600"
"""Seconds after which a wait would end by itself; no test lives that long."""
PATIENCE = 1000

MEMBER = """
import signal, sys, time
from ckpt_tools.cli import signals
from ckpt_tools.errors import CkptError, NoneUsable
from ckpt_tools.job.boards import Files, Store
from ckpt_tools.job.exchange import failure, meeting
from ckpt_tools.job.secret import Seal

where, me, size, does = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
signals.begin()
signals.work()
board = Store("127.0.0.1", int(where), me == 0, timeout=600, prefix="t", seal=Seal.of(b"", "t")) if where.isdigit() else Files(where)
try:
    if does == "wait":
        print("on", flush=True)
    with meeting(board, me, size, 600) as m:
        if does == "hang":
            print("on", flush=True)
            while True:
                time.sleep(0.01)
        if does == "fail":
            m.exchange(failure(NoneUsable("nothing here", "look")), lambda _: {})
        if does == "raise":
            raise RuntimeError("a bug")
        m.exchange({}, lambda _: {})
        m.exchange({}, lambda _: {})
    print("started")
except CkptError as e:
    print(type(e).__name__, e)
"""


class Members:
    """Processes in one meeting of files or of torch's store, each with what it does once all are there."""

    def __init__(self, where: str) -> None:
        self.where, self.started = where, list[subprocess.Popen[str]]()

    def start(self, *does: str, size: int = 0) -> list[subprocess.Popen[str]]:
        self.started = [self.one(i, size or len(does), what) for i, what in enumerate(does)]
        return self.started

    def one(self, i: int, size: int, does: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", MEMBER, self.where, str(i), str(size), does]
        return subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=CLEAN
        )

    def said(self, n: int) -> str:
        return self.started[n].communicate(timeout=PATIENCE)[0].removeprefix("on\n")


@pytest.fixture
def members(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Members]:
    if request.param == "torch":
        pytest.importorskip("torch")
    found = Members(str(tmp_path / "meeting") if request.param == "files" else str(free_port()))
    yield found
    for process in found.started:
        process.kill()
        process.communicate()


SIGNALS = [signal.SIGKILL, signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.exhaustive)]


def ways(*hows: Any) -> list[Any]:
    """(board, which node, how it ends): all of them for files; torch takes seconds to import, so only one
    node and the first way by default.
    """
    rows = [(where, who, how) for where in ("files", "torch") for who in (0, 1) for how in hows]
    slow = [r for r in rows if r[2] is signal.SIGINT or (r[0] == "torch" and r[1:] != (0, hows[0]))]
    return [
        pytest.param(
            *row,
            marks=pytest.mark.exhaustive if row in slow else (),
            id="-".join(str(getattr(w, "name", w)) for w in row),
        )
        for row in rows
    ]


@pytest.mark.share(6)
@pytest.mark.parametrize(
    ("members", "who", "number"), ways(signal.SIGKILL, signal.SIGTERM, signal.SIGINT), indirect=["members"]
)
def test_a_node_that_dies_ends_the_others_at_once(members: Members, who: int, number: signal.Signals) -> None:
    """All are there, and one is busy with its disk when it is killed. Nobody waits the ten minutes that they
    have.
    """
    does = ["hang" if i == who else "" for i in range(3 if members.where.startswith("/") else 2)]
    members.start(*does)
    doomed = members.started[who]
    assert doomed.stdout and doomed.stdout.readline() == "on\n"
    doomed.send_signal(number)
    for i in range(len(does)):
        if i != who:
            text = members.said(i)
            assert text.startswith("CannotLook") and (
                f"node {who}" in text or "signal" in text or "first node does not answer" in text
            ), text


@pytest.mark.share(3)
@pytest.mark.parametrize(("members", "who", "does"), ways("fail", "raise"), indirect=["members"])
def test_a_node_that_fails_ends_the_others_at_once(members: Members, who: int, does: str) -> None:
    """Also where a third one is busy and has not answered."""
    third = ["hang"] if members.where.startswith("/") and who else []
    members.start(*[does if i == who else "" for i in range(2)], *third)
    text = members.said(1 - who)
    assert text.startswith("NoneUsable node" if does == "fail" else "CannotLook") and (
        "nothing here" in text or "a bug" in text
    ), text


@pytest.mark.parametrize("number", SIGNALS, ids=lambda s: s.name)
@pytest.mark.parametrize("who", [0, 1])
def test_a_node_that_dies_while_others_are_still_to_come(
    tmp_path: Path, who: int, number: signal.Signals
) -> None:
    members = Members(str(tmp_path / "meeting"))
    started = members.start("wait", "wait", size=3)
    doomed, other = started[who], started[1 - who]
    try:
        assert (
            doomed.stdout
            and doomed.stdout.readline() == "on\n"
            and other.stdout
            and other.stdout.readline() == "on\n"
        )
        _until_seen(other, tmp_path / "meeting", who)
        doomed.send_signal(number)
        text = members.said(1 - who)
        assert text.startswith("CannotLook") and ("signal" in text or f"node {who} has ended" in text), text
    finally:
        for process in members.started:
            process.kill()
            process.communicate()


class Slow(Files):
    """A board whose writes take so long that much happens meanwhile: ``then`` by the end of the key."""

    def __init__(self, directory: str, then: Mapping[str, Callable[[], object]]) -> None:
        super().__init__(directory)
        self.then = then

    def put(self, key: str, value: bytes) -> None:
        super().put(key, value)
        for end, happens in self.then.items():
            if key.endswith(end):
                happens()


@pytest.mark.parametrize("members", ["files"], indirect=True)
@pytest.mark.parametrize("me", [0, 1])
def test_a_node_that_was_met_is_missed_however_fast_it_was(members: Members, me: int) -> None:
    """The other one has joined, and is killed, while we write: we never waited for it."""
    doomed = members.one(1 - me, 2, "hang")
    members.started = [doomed]

    def answered() -> None:
        while not list(Path(members.where).glob("*.ack.1")):
            assert doomed.poll() is None
            time.sleep(0.02)

    def joined() -> None:
        assert doomed.stdout and doomed.stdout.readline() == "on\n"
        doomed.kill()
        doomed.wait()

    board = Slow(members.where, {".ack.1": joined} if me else {"offer": answered, ".go": joined})
    with (
        pytest.raises(CannotLook, match=f"node {1 - me} has ended"),
        meeting(board, me, 2, float(LONG)) as m,
    ):
        m.exchange({}, lambda _: {})


def _until_seen(other: subprocess.Popen[str], board: Path, who: int) -> None:
    """Until the other process holds open what the one that is to die has locked: then it has seen it."""
    while True:
        names = [(board / f"join.{i}") for i in range(2)]
        if all(n.exists() for n in names):
            held = {
                os.readlink(f"/proc/{other.pid}/fd/{fd}")
                for fd in os.listdir(f"/proc/{other.pid}/fd")
                if _links(other.pid, fd)
            }
            if str(board / f"alive.{names[who].read_text()}") in held:
                return
        time.sleep(0.02)


def _links(pid: int, fd: str) -> bool:
    return os.path.lexists(f"/proc/{pid}/fd/{fd}")


def test_what_a_killed_start_left_keeps_nobody_from_meeting(tmp_path: Path) -> None:
    """Names, locks and sessions of processes that died are no nodes of this start, and no dead ones either."""
    members = Members(str(tmp_path / "meeting"))
    for number in (signal.SIGKILL, signal.SIGTERM):
        members.start("hang", "hang")
        for process in members.started:
            assert process.stdout and process.stdout.readline() == "on\n"
        for process in members.started:
            process.send_signal(number)
            process.communicate()
    members.start("", "")
    assert [members.said(i) for i in range(2)] == ["started\n"] * 2


# -- through the command -------------------------------------------------------------------------------------


def test_a_node_that_cannot_begin_tells_the_others(tmp_path: Path) -> None:
    """Its directory of decisions cannot be made: known before it has looked at any checkpoint."""
    nodes = Nodes(tmp_path)
    nodes.shared.mkdir()
    Path(decision_log.place(str(nodes.shared), str(nodes.disks[1]))).write_text("in the way")
    answers = nodes.run("--timeout", LONG)
    assert (
        [code for code, _, _ in answers] == [5, 5]
        and "node 1: " in answers[0][2]
        and "cannot be made" in answers[0][2]
    )


def test_a_node_that_cannot_start_after_all_keeps_the_others_from_starting(tmp_path: Path) -> None:
    """They have agreed, and then one cannot build its view: nobody starts."""
    nodes = Nodes(tmp_path)
    (tmp_path / "view-1").mkdir()
    (tmp_path / "view-1/precious").write_text("x")
    running = [nodes.start(n, "--timeout", LONG, "--view", str(tmp_path / f"view-{n}")) for n in range(2)]
    answers = [(p.communicate(timeout=PATIENCE), p.returncode) for p in running]
    assert [code for _, code in answers] == [2, 2] and all(out == "" for (out, _), _ in answers)
    assert "node 1: " in answers[0][0][1] and "is not empty" in answers[0][0][1]
    assert not list(nodes.shared.rglob("last.json"))  # nothing was started


@pytest.mark.exhaustive
def test_a_decision_that_cannot_be_written_on_one_node(tmp_path: Path) -> None:
    """A full disk shows when the decision is written, after all have agreed on it."""
    nodes, torch = Nodes(tmp_path), pytest.importorskip("torch")
    assert torch
    meet = f"127.0.0.1:{free_port()}"
    # blocks of 512 bytes: less than a decision
    full = ["sh", "-c", 'ulimit -f 1; trap "" XFSZ; exec "$@"', "x"]
    running = [
        nodes.start(n, "--timeout", LONG, "--no-cache", meet=meet, inside=full if n else ()) for n in range(2)
    ]
    answers = [(p.communicate(timeout=PATIENCE), p.returncode) for p in running]
    assert [code for _, code in answers] == [5, 5] and all(out == "" for (out, _), _ in answers), answers
    assert "could not be written" in answers[1][0][1] and "node 1: " in answers[0][0][1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda s: s.name)
def test_a_launcher_that_is_killed_while_it_waits(tmp_path: Path, number: signal.Signals) -> None:
    """Two launchers of three that share a directory: one is killed while both wait for the third."""
    root, plans = megatron(tmp_path / "run"), tmp_path / "plans"
    line = ["torchrun", "--nnodes=3", "--nproc-per-node=1", "--rdzv-id=same"]
    words = [*CKPT, "run", str(root), "--plan-dir", str(plans), "--timeout", LONG, "--"]
    start = [
        subprocess.Popen(
            [*words, *line, f"--node-rank={n}", *SAY], env=CLEAN, stderr=subprocess.PIPE, text=True
        )
        for n in range(2)
    ]
    try:
        board = plans / "same.meeting"
        while not (board / "join.0").exists() or not (board / "join.1").exists():
            assert start[0].poll() is None and start[1].poll() is None
            time.sleep(0.05)
        _until_seen(start[0], board, 1)
        start[1].send_signal(number)
        _, err = start[0].communicate(timeout=PATIENCE)
        assert start[0].returncode == 5 and "node 1" in err, err
        start[1].communicate(timeout=PATIENCE)
        assert start[1].returncode in (143, -9)
    finally:
        for process in start:
            process.kill()
            process.communicate()


# -- few calls -----------------------------------------------------------------------------------------------


class Simulated:
    """Time that passes only by waiting."""

    def __init__(self) -> None:
        self.at, self.pauses = 0.0, list[float]()

    def sleep(self, seconds: float) -> None:
        self.at += seconds
        self.pauses.append(seconds)

    @property
    def clock(self) -> Clock:
        return Clock(lambda: self.at, self.sleep)


@pytest.mark.parametrize(("seconds", "most"), [(1, 40), (10, 60), (600, 400)])
def test_pauses_grow_with_what_is_waited_already(seconds: float, most: int) -> None:
    simulated = Simulated()
    backoff = Backoff(seconds, simulated.clock)
    while backoff.pause():
        pass
    assert len(simulated.pauses) <= most and simulated.at == pytest.approx(seconds)
    waited = 0.0
    for pause in simulated.pauses[:-1]:
        # what has come is seen at most an eighth later
        assert pause <= max(0.01, waited / 8) + 1e-9 and pause <= MOST
        waited += pause


@pytest.mark.parametrize("me", [0, 1])
def test_a_wait_of_ten_seconds_asks_a_shared_directory_a_few_hundred_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, me: int
) -> None:
    """It was 500 times for every file that is waited for; calls on a directory that a whole cluster shares
    are what its server does nothing else for.
    """
    calls = Counter[str]()
    real = {name: getattr(os, name) for name in ("open", "stat", "listdir", "scandir")}
    for name, call in real.items():
        monkeypatch.setattr(
            os, name, lambda *a, call=call, name=name, **k: (calls.update([name]), call(*a, **k))[1]
        )
    opened = open
    monkeypatch.setattr("builtins.open", lambda *a, **k: (calls.update(["open"]), opened(*a, **k))[1])
    simulated = Simulated()
    with pytest.raises(CannotLook, match="no agreement within 10 s"):
        Meeting(Files(str(tmp_path)), me, 2, 10, simulated.clock).join()
    assert simulated.at == pytest.approx(10) and sum(calls.values()) <= 200, calls


def test_waiting_for_a_lock_asks_few_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    simulated, tried = Simulated(), list[int]()
    real = fcntl.flock

    def flock(fd: int, how: int) -> None:
        tried.append(how)
        real(fd, how)

    with locked(str(tmp_path / "lock"), 1):
        monkeypatch.setattr(fcntl, "flock", flock)
        with (
            pytest.raises(CannotLook, match="deciding for more than 10 s"),
            locked(str(tmp_path / "lock"), 10, simulated.clock),
        ):
            pass
    assert 10 <= len(tried) <= 60


# -- what the kernel tells -----------------------------------------------------------------------------------

HOLD = """
import sys
from ckpt_tools.job.liveness import Locks
watch = Locks(sys.argv[1])
watch.announce("them")
print("on", flush=True)
sys.stdin.read()
"""


def test_a_lock_is_missed_only_by_who_has_seen_it(tmp_path: Path) -> None:
    seen, late = Locks(str(tmp_path)), Locks(str(tmp_path))
    assert not seen.gone("them")  # not there yet
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=CLEAN
    ) as other:
        assert other.stdout and other.stdout.readline() == b"on\n"
        assert not seen.gone("them") and seen.alive("them")
        other.kill()
    assert seen.gone("them") and not seen.alive("them")
    assert not late.gone("them")  # it may be of an earlier start
    for watch in (seen, late):
        watch.close()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO, errno.ESTALE])
def test_where_locks_do_not_work_nothing_is_concluded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    import fcntl

    mine, other = Locks(str(tmp_path)), Locks(str(tmp_path))
    mine.announce("me")

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "lockf", refuse)
    mine.announce("again")
    assert not other.gone("me") and not other.alive("me") and not other.gone("again")


def test_a_board_reads_again_what_was_replaced_while_it_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board: Board = Files(str(tmp_path))
    board.put("k", b"v")
    real, tries = os.open, list[int]()

    def stale(*a: Any, **k: Any) -> Any:
        tries.append(1)
        if len(tries) < 3:
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(*a, **k)

    monkeypatch.setattr(os, "open", stale)
    assert board.get("k") == b"v"
    monkeypatch.setattr(
        os, "open", lambda *_a, **_k: (_ for _ in ()).throw(OSError(errno.EIO, "Input/output error"))
    )
    with pytest.raises(CannotLook, match="Input/output error"):
        board.get("k")
