"""Nodes that meet: who fails, or is told to end, ends the others at once; a time limit says who is missing;
waiting costs few calls; all start or none does.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from run_helpers import CLEAN
from two_nodes import Nodes, free_port

from ckpt_tools.errors import CannotLook, CkptError, NoneUsable, UsageError
from ckpt_tools.job import meeting as room
from ckpt_tools.job.decider import hold_lock
from ckpt_tools.job.meeting import LONGEST, Backoff, Board, Files, Hello, Meeting, Store, meeting
from ckpt_tools.planning import first_launch

LONG = "600"
"""Seconds after which a wait would end by itself; no test lives that long."""
PATIENCE = 1000

MEMBER = """
import signal, sys, time
from ckpt_tools.cli import signals
from ckpt_tools.errors import CkptError, NoneUsable
from ckpt_tools.job.meeting import Files, Store, meeting

where, me, size, does, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], float(sys.argv[5])
signals.begin()
signals.work()
board = Store("127.0.0.1", int(where), me == 0, timeout=600, prefix="t") if where.isdigit() else Files(where)
try:
    with meeting(board, me, size, seconds) as m:
        if does == "hang":
            print("on", flush=True)
            while True:
                time.sleep(0.01)
        if does == "fail":
            raise NoneUsable("nothing here", "look")
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

    def start(self, *does: str, seconds: str = LONG) -> None:
        how: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True, "env": CLEAN}
        line = [sys.executable, "-c", MEMBER, self.where]
        rows = ([*line, str(i), str(len(does)), what, seconds] for i, what in enumerate(does))
        self.started = [subprocess.Popen(row, **how) for row in rows]

    def is_on(self, n: int) -> subprocess.Popen[str]:
        """The process of one that hangs, once all are there."""
        process = self.started[n]
        assert process.stdout and process.stdout.readline() == "on\n"
        return process

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


def ways(*hows: Any) -> list[Any]:
    """(board, which node, how it ends): all of them for files; torch takes seconds to import, so only one
    node and the first way by default.
    """
    rows = [(where, who, how) for where in ("files", "torch") for who in (0, 1) for how in hows]
    quick = [row for row in rows if row[0] == "files" or row[1:] == (0, hows[0])]
    ids = {row: "-".join(str(getattr(w, "name", w)) for w in row) for row in rows}
    slow = pytest.mark.exhaustive
    return [pytest.param(*row, marks=() if row in quick else slow, id=name) for row, name in ids.items()]


@pytest.mark.share(4)
@pytest.mark.parametrize(
    ("members", "who", "number"), ways(signal.SIGTERM, signal.SIGINT), indirect=["members"]
)
def test_a_node_that_is_told_to_end_ends_the_others_at_once(
    members: Members, who: int, number: signal.Signals
) -> None:
    """All are there, and one is busy with its disk. Nobody waits the ten minutes that they have."""
    does = ["hang" if i == who else "" for i in range(3 if members.where.startswith("/") else 2)]
    members.start(*does)
    members.is_on(who).send_signal(number)
    for text in (members.said(i) for i in range(len(does)) if i != who):
        assert text.startswith("CannotLook"), text
        assert "signal" in text or "first node does not answer" in text, text


@pytest.mark.share(2)
@pytest.mark.parametrize(("members", "who", "how"), ways("killed"), indirect=["members"])
def test_a_node_that_is_killed_is_named_when_the_time_is_over(members: Members, who: int, how: str) -> None:
    assert how == "killed"
    members.start(*["hang" if i == who else "" for i in range(2)], seconds="4")
    members.is_on(who).kill()
    text = members.said(1 - who)
    gone = ("hear from the first node", "first node does not answer") if not who else ()
    assert text.startswith("CannotLook"), text
    assert any(words in text for words in (f"node {who} did not answer", *gone)), text


@pytest.mark.share(3)
@pytest.mark.parametrize(("members", "who", "does"), ways("fail", "raise"), indirect=["members"])
def test_a_node_that_fails_ends_the_others_at_once(members: Members, who: int, does: str) -> None:
    """Also where a third one is busy and has not answered."""
    third = ["hang"] if members.where.startswith("/") and who else []
    members.start(*[does if i == who else "" for i in range(2)], *third)
    text = members.said(1 - who)
    assert text.startswith("NoneUsable" if does == "fail" else "CannotLook"), text
    assert not who or "node 1: " in text, text
    assert "nothing here" in text or "a bug" in text, text


def test_what_a_killed_start_left_keeps_nobody_from_meeting(tmp_path: Path) -> None:
    """Names and sessions of processes that died are no nodes of this start."""
    members = Members(str(tmp_path / "meeting"))
    for number in (signal.SIGKILL, signal.SIGTERM):
        members.start("hang", "hang")
        for process in [members.is_on(n) for n in range(2)]:
            process.send_signal(number)
            process.communicate()
    members.start("", "")
    assert [members.said(i) for i in range(2)] == ["started\n"] * 2


# -- in this process -----------------------------------------------------------------------------------------


def meet(*boards: Board, timeout: float = 600, size: int = 0, does: Callable[[Meeting], Any]) -> list[Any]:
    """What each node came to: what ``does`` returned, or its error."""

    def member(me: int) -> Any:
        try:
            with meeting(boards[me], me, size or len(boards), timeout) as m:
                return does(m)
        except CkptError as error:
            return error

    with ThreadPoolExecutor(len(boards)) as pool:
        return list(pool.map(member, range(len(boards))))


def add(m: Meeting) -> Any:
    return m.exchange({"n": m.node + 1}, lambda values: {"sum": sum(v["n"] for v in values)})["sum"]


def boards(where: Path, number: int) -> list[Board]:
    return [Files(str(where)) for _ in range(number)]


def test_nine_nodes_and_many_rounds(tmp_path: Path) -> None:
    def rounds(m: Meeting) -> Any:
        told = [m.exchange({"n": n}, lambda values: {"sum": sum(v["n"] for v in values)}) for n in range(5)]
        return [value["sum"] for value in told]

    assert meet(*boards(tmp_path, 9), does=rounds) == [[0, 9, 18, 27, 36]] * 9
    left = [name for name in os.listdir(tmp_path) if "." in name and not name.startswith(("join.", "offer"))]
    assert len(left) <= 20  # a session does not stay behind


def test_what_concluding_raises_is_raised_everywhere(tmp_path: Path) -> None:
    def conclude(_: object) -> dict[str, object]:
        raise NoneUsable("nothing", "look")

    found = meet(*boards(tmp_path, 3), does=lambda m: m.exchange({}, conclude))
    assert [(type(f), str(f), f.hint) for f in found] == [(NoneUsable, "nothing", "look")] * 3


def test_who_fails_after_its_answer_is_heard(tmp_path: Path) -> None:
    told = Event()

    def member(m: Meeting) -> Any:
        if m.node == 0:
            return told.wait() and add(m)
        m.tell(NoneUsable("nothing", "look"))
        m._put("1.1", {"n": 2})
        return told.set()

    (found, _) = meet(*boards(tmp_path, 2), does=member)
    assert isinstance(found, NoneUsable) and str(found) == "node 1: nothing", found


def test_a_board_that_goes_away(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotLook):
        Files(str(tmp_path / "file/below"))


def test_all_who_came_are_told_who_did_not(tmp_path: Path) -> None:
    found = meet(*boards(tmp_path, 2), size=4, timeout=0.5, does=add)
    assert [type(f) for f in found] == [CannotLook] * 2
    assert all("nodes 2, 3 did not come" in str(f) for f in found), found


def test_one_that_never_says_that_it_has_heard_is_named(tmp_path: Path) -> None:
    """The first node starts only where the others do."""
    m = Meeting(Files(str(tmp_path)), 0, 2, 0.2)
    m.session = "s"
    with pytest.raises(CannotLook, match="node 1 did not start"):
        m.leave()


@pytest.mark.parametrize("differs", ["version", "nodes"])
def test_nodes_of_another_version_or_number_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, differs: str
) -> None:
    put, other = Meeting._put, {"version": Hello("0", 2), "nodes": Hello(room.__version__, 3)}[differs]
    monkeypatch.setattr(Meeting, "_put", lambda m, k, v: put(m, k, other if isinstance(v, Hello) else v))
    found = meet(*boards(tmp_path, 2), does=add)
    assert all(isinstance(e, UsageError) and str(e).startswith("node 1 is one of") for e in found), found


@pytest.mark.parametrize("data", [b"", b"[", b"[" * 200_000, b"null", b"[]", b'"x"', b"\xff", b'{"a": NaN}'])
def test_what_is_no_message_is_refused_by_all(tmp_path: Path, data: bytes) -> None:
    class Broken(Files):
        def put(self, key: str, value: bytes) -> None:
            super().put(key, data if key.endswith(".1.1") else value)

    found = meet(Files(str(tmp_path)), Broken(str(tmp_path)), does=add)
    assert all(isinstance(f, CannotLook) and "node 1 says what no node" in str(f) for f in found), found


def test_an_error_of_another_node_cannot_steer_a_terminal(tmp_path: Path) -> None:
    def fail(m: Meeting) -> Any:
        if m.node:
            raise CannotLook("\x1b[2Jgone\r", "\x07ring")
        return add(m)

    first, second = meet(*boards(tmp_path, 2), does=fail)
    assert str(first) == "node 1: \\x1b[2Jgone\\x0d" and first.hint == "\\x07ring"
    assert isinstance(first, CannotLook) and isinstance(second, CannotLook)


def test_an_offer_of_an_earlier_start_or_version_is_passed_over(tmp_path: Path) -> None:
    """A directory of decisions outlives starts and versions: what lies there and does not name this process
    is none of its business.
    """
    board = Files(str(tmp_path))
    board.put("offer", b'{"session": 5, "members": ["0123456789abcdef"]}')
    board.put("join.0", b"0123456789abcdef")
    board.put("join.1", b'{"error": "x", "name": "0123456789abcdef"}')
    assert meet(*boards(tmp_path, 2), does=add) == [3, 3]


def test_through_a_store_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torchrun keeps one: it outlives starts, and serves one after the other."""
    torch = pytest.importorskip("torch.distributed")
    port = free_port()
    kept = torch.TCPStore("127.0.0.1", port, None, True, wait_for_workers=False)
    for _ in range(2):
        stores = [Store("127.0.0.1", port, False, timeout=60, prefix="job") for _ in range(2)]
        assert meet(*stores, does=add) == [3, 3]
    monkeypatch.setattr(room, "_MOST", 100)
    with pytest.raises(CannotLook, match="torch's store takes 100"):
        stores[0].put("k", b"x" * 101)
    del kept


def test_a_port_that_is_taken_is_said() -> None:
    pytest.importorskip("torch")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotLook, match="could not be opened"):
            Store("127.0.0.1", port, True, timeout=30, prefix="job")


# -- through the command -------------------------------------------------------------------------------------


def test_a_node_that_cannot_begin_tells_the_others(tmp_path: Path) -> None:
    """Its directory of decisions cannot be made: known before it has looked at any checkpoint."""
    nodes = Nodes(tmp_path)
    nodes.shared.mkdir()
    Path(first_launch.name_home(str(nodes.shared), str(nodes.disks[1]))).write_text("in the way")
    answers = nodes.run("--timeout", LONG)
    assert [code for code, _, _ in answers] == [5, 5]
    assert "node 1: " in answers[0][2] and "cannot be made" in answers[0][2]


def test_a_node_that_cannot_start_after_all_keeps_the_others_from_starting(tmp_path: Path) -> None:
    """They have agreed, and then one cannot build its view: nobody starts."""
    nodes = Nodes(tmp_path)
    (tmp_path / "view-1").mkdir()
    (tmp_path / "view-1/precious").write_text("x")
    running = [nodes.start(n, "--timeout", LONG, "--view", str(tmp_path / f"view-{n}")) for n in range(2)]
    answers = ended(running)
    assert [code for code, _, _ in answers] == [2, 2] and not any(out for _, out, _ in answers)
    assert "node 1: " in answers[0][2] and "is not empty" in answers[0][2]
    assert not list(nodes.shared.rglob("last.json"))  # nothing was started


def ended(running: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    said = [process.communicate(timeout=PATIENCE) for process in running]
    return [(process.returncode, *texts) for process, texts in zip(running, said, strict=True)]


@pytest.mark.exhaustive
def test_a_decision_that_cannot_be_written_on_one_node(tmp_path: Path) -> None:
    """A full disk shows when the decision is written, after all have agreed on it."""
    pytest.importorskip("torch")
    nodes, how = Nodes(tmp_path), {"meet": f"127.0.0.1:{free_port()}"}
    # blocks of 512 bytes: less than a decision. It would cut compiled modules as well, for everybody
    full = ["sh", "-c", 'export PYTHONDONTWRITEBYTECODE=1; ulimit -f 1; trap "" XFSZ; exec "$@"', "x"]
    words = ("--timeout", LONG, "--no-cache")
    answers = ended([nodes.start(n, *words, **how, inside=full if n else ()) for n in range(2)])
    assert [code for code, _, _ in answers] == [5, 5] and not any(out for _, out, _ in answers), answers
    assert "could not be written" in answers[1][2] and "node 1: " in answers[0][2]


# -- few calls -----------------------------------------------------------------------------------------------


class Simulated:
    """Time that passes only by waiting."""

    def __init__(self) -> None:
        self.at, self.pauses = 0.0, list[float]()

    def monotonic(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds
        self.pauses.append(seconds)


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Simulated:
    made = Simulated()
    monkeypatch.setattr(room, "time", made)
    return made


@pytest.mark.parametrize(("seconds", "most"), [(1, 40), (10, 60), (600, 400)])
def test_pauses_grow_with_what_is_waited_already(seconds: float, most: int, simulated: Simulated) -> None:
    backoff = Backoff(seconds)
    while backoff.pause():
        pass
    assert len(simulated.pauses) <= most and simulated.at == pytest.approx(seconds)
    waited = 0.0
    for pause in simulated.pauses[:-1]:
        # what has come is seen at most an eighth later
        assert pause <= max(0.01, waited / 8) + 1e-9 and pause <= LONGEST
        waited += pause


@pytest.mark.parametrize("me", [0, 1])
def test_a_wait_of_ten_seconds_asks_a_shared_directory_a_few_hundred_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, simulated: Simulated, me: int
) -> None:
    """It was 500 times for every file that is waited for; calls on a directory that a whole cluster shares
    are what its server does nothing else for.
    """
    calls = Counter[str]()

    def count(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *a, **k: (calls.update([name]), call(*a, **k))[1]

    for name in ("open", "stat", "listdir", "scandir"):
        monkeypatch.setattr(os, name, count(name, getattr(os, name)))
    monkeypatch.setattr("builtins.open", count("open", open))
    with pytest.raises(CannotLook, match="no agreement within 10 s"):
        Meeting(Files(str(tmp_path)), me, 2, 10).join()
    assert simulated.at == pytest.approx(15 if me else 10) and sum(calls.values()) <= 200, calls


def test_waiting_for_a_lock_asks_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, simulated: Simulated
) -> None:
    tried, real, lock = list[int](), fcntl.flock, str(tmp_path / "lock")
    with hold_lock(lock, 1):
        monkeypatch.setattr(fcntl, "flock", lambda fd, how: (tried.append(how), real(fd, how)))
        with pytest.raises(CannotLook, match="deciding for more than 10 s"), hold_lock(lock, 10):
            pass
    assert 10 <= len(tried) <= 60


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
        if len(tries) > 3:
            raise OSError(errno.EIO, "Input/output error")
        return real(*a, **k)

    monkeypatch.setattr(os, "open", stale)
    assert board.get("k") == b"v"
    with pytest.raises(CannotLook, match="Input/output error"):
        board.get("k")
