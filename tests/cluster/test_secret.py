"""Nodes that meet over TCP know each other by a secret: without one they meet on this machine alone, and what
others say is never used.
"""

from __future__ import annotations

import os
import select
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from run_helpers import ckpt, megatron
from two_nodes import free_port

from ckpt_tools.errors import CannotLook, CkptError, UsageError
from ckpt_tools.job import boards, hosts, lines, rendezvous, secret
from ckpt_tools.job.boards import Files, Store
from ckpt_tools.job.exchange import Meeting, meeting
from ckpt_tools.job.lines import Lines
from ckpt_tools.job.membership import Membership
from ckpt_tools.job.options import Options
from ckpt_tools.job.rendezvous import Rendezvous
from ckpt_tools.job.reported import Round, only
from ckpt_tools.job.secret import NotOurs, Seal
from ckpt_tools.launchers import line_of
from ckpt_tools.settings.checked_json import whole

RANDOM = "Zm9vYmFyMTIzNDU2Nzg5MGFiY2RlZmdoaWprbG1ub3BxcnM=\n"


def secret_file(path: Path, text: str = RANDOM, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


# -- the file ------------------------------------------------------------------------------------------------


def test_a_secret_is_read_without_the_end_of_its_line(tmp_path: Path) -> None:
    assert secret.read(str(secret_file(tmp_path / "s"))) == RANDOM.strip().encode()
    assert len(secret.read(str(secret_file(tmp_path / "t", "0123456789abcdef" * 2)))) == secret.LEAST


def test_the_command_of_the_hint_makes_one(tmp_path: Path) -> None:
    import subprocess

    made = tmp_path / "made"
    subprocess.run(["bash", "-c", secret.MAKE.replace("FILE", str(made))], check=True)
    assert len(secret.read(str(made))) >= secret.LEAST


def _fifo(path: Path) -> None:
    os.mkfifo(path, 0o600)


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "read by the group": (lambda p: secret_file(p, mode=0o640), "chmod 600"),
    "read by all": (lambda p: secret_file(p, mode=0o604), "chmod 600"),
    "written by all": (lambda p: secret_file(p, mode=0o602), "mode 0602"),
    "too short": (lambda p: secret_file(p, RANDOM[:31]), "31 bytes"),
    "blank": (lambda p: secret_file(p, " " * 64), "0 bytes"),
    "zeros": (lambda p: secret_file(p, "\0" * 64), "no random bytes"),
    "too long": (lambda p: secret_file(p, RANDOM * 100), "larger than"),
    "not there": (lambda p: None, "is not there"),
    "a directory": (lambda p: p.mkdir(mode=0o700), "is a directory"),
    "a pipe": (_fifo, "no regular file"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_keeps_no_secret_is_refused(tmp_path: Path, case: str) -> None:
    make, why = REFUSED[case]
    make(tmp_path / "s")
    with pytest.raises(UsageError) as raised:
        secret.read(str(tmp_path / "s"))
    assert "--secret-file" in str(raised.value) and why in f"{raised.value} {raised.value.hint}"


# -- where one is needed -------------------------------------------------------------------------------------

BEYOND = [
    "192.0.2.1",
    "node-1",
    "0.0.0.0",
    "2001:db8::1",
    "::",
    "127.1",
    socket.gethostname(),
    "localhost.example.com",
    "fe80::1%eth0",
]
HERE = ["127.0.0.1", "127.0.0.53", "::1", "localhost"]


def place(host: str, how: str, **options: Any) -> Rendezvous:
    """A rendezvous of two nodes at a host, as one of four places says it."""
    env: dict[str, str] = {}
    line = None
    said = f"[{host}]" if ":" in host else host
    if how == "flag":
        options["rendezvous"] = f"{said}:29500"
    elif how == "torchrun":
        line = line_of(["torchrun", "--nnodes=2", f"--rdzv-endpoint={said}:29500", "train.py"], {})
    elif how == "agent":
        env = {"MASTER_ADDR": host, "MASTER_PORT": "29500", "TORCHELASTIC_USE_AGENT_STORE": "True"}
        options["worker"] = True
    else:
        env = {"SLURM_JOB_NODELIST": host, "SLURM_JOB_ID": "77"}
    membership = Membership("key", "member", False, node=options.pop("node", 0), nodes=2, place="job")
    return Rendezvous(membership, Options(agree=True, **options), line, env)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent and nothing listens: not even a socket is made."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was made")

    monkeypatch.setattr(boards, "Store", refuse)
    monkeypatch.setattr(rendezvous, "Store", refuse)
    for name in ("socket", "create_server", "create_connection"):
        monkeypatch.setattr(socket, name, refuse)


@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize("how", ["flag", "torchrun", "agent", "slurm"])
@pytest.mark.parametrize("host", BEYOND)
@pytest.mark.usefixtures("no_network")
def test_beyond_this_machine_every_node_asks_for_a_secret(host: str, how: str, node: int) -> None:
    with pytest.raises(UsageError) as raised, place(host, how, node=node) as meeting:
        meeting.join()
    assert (
        raised.value.exit_code == 2
        and "--secret-file FILE" in raised.value.hint
        and host in str(raised.value)
    )


class Made(Exception):
    """A store would have been made."""


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> list[Seal]:
    seals: list[Seal] = []

    def make(*_at: Any, seal: Seal, **_more: Any) -> None:
        seals.append(seal)
        raise Made

    monkeypatch.setattr(rendezvous, "Store", make)
    return seals


@pytest.mark.parametrize("how", ["flag", "torchrun", "agent", "slurm"])
@pytest.mark.parametrize("host", HERE)
def test_on_this_machine_none_is_needed(host: str, how: str, stores: list[Seal]) -> None:
    with pytest.raises(Made), place(host, how) as meeting:
        meeting.join()
    assert stores == [Seal.of(b"", "job")]


@pytest.mark.parametrize("host", [*HERE, *BEYOND])
def test_a_secret_that_is_given_counts_everywhere(tmp_path: Path, host: str, stores: list[Seal]) -> None:
    file = secret_file(tmp_path / "s")
    with pytest.raises(Made), place(host, "flag", secret_file=str(file)) as meeting:
        meeting.join()
    assert stores == [Seal.of(RANDOM.strip().encode(), "job")]


@pytest.mark.usefixtures("no_network")
def test_a_directory_that_all_see_needs_none(tmp_path: Path) -> None:
    with (
        pytest.raises(CannotLook, match="node 1 did not come"),
        place("192.0.2.1", "flag", plan_dir=str(tmp_path), timeout=0) as meeting,
    ):
        meeting.join()


def test_names_that_resolve_elsewhere_are_not_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    row = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.7", 0))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [row])
    assert not hosts.loopback("localhost")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [])
    assert not hosts.loopback("localhost")


@pytest.mark.parametrize(
    "host",
    [
        "-oProxyCommand=x",
        "a b",
        "a;b",
        "$(x)",
        "a\nb",
        "",
        "a" * 300,
        "-",
        "é",
        "a..b",
        ".a",
        "::x",
        "[",
        "fe80::1%a b",
    ],
)
def test_what_is_no_host_is_refused_wherever_it_is_said(host: str) -> None:
    assert not hosts.valid(host)
    for how in ("flag", "agent"):
        with pytest.raises(UsageError), place(host, how) as meeting:
            meeting.join()


@pytest.mark.parametrize("value", [None, 1, b"host", ["host"], {"a": 1}])
def test_what_is_no_text_is_no_host(value: object) -> None:
    assert not hosts.valid(value)


@pytest.mark.parametrize(
    "host", ["node-1", "node_1", "n1.cluster.example", "10.0.0.1", "::1", "fe80::1%eth0", "a.", "x" * 63]
)
def test_real_hosts_pass(host: str) -> None:
    assert hosts.valid(host)


def test_the_command_asks_for_a_secret(tmp_path: Path) -> None:
    """The flag, its variable and ckpt.toml reach the rendezvous."""
    root = megatron(tmp_path / "run")
    words = [
        "run",
        root,
        "--agree",
        "--nodes",
        "2",
        "--node",
        "0",
        "--world-size",
        "2",
        "--rendezvous",
        "192.0.2.1:29500",
        "--",
        "true",
    ]
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    done = ckpt(*words, env=env)
    assert done.returncode == 2 and "--secret-file FILE" in done.stderr and done.stdout == ""
    bad = secret_file(tmp_path / "s", mode=0o644)
    done = ckpt(*words, env={**env, "CKPT_SECRET_FILE": str(bad)})
    assert done.returncode == 2 and f"chmod 600 {bad}" in done.stderr


# -- what a seal shows ---------------------------------------------------------------------------------------

SEAL = Seal.of(b"secret" * 8, "job")


@pytest.mark.parametrize(
    ("seal", "name"),
    [
        (Seal.of(b"secret" * 8, "another"), "s.1.1"),
        (Seal.of(b"Secret" * 8, "job"), "s.1.1"),
        (Seal.of(b"", "job"), "s.1.1"),
        (SEAL, "s.1.2"),
        (SEAL, "s.2.1"),
        (SEAL, "t.1.1"),
        (SEAL, "s.1.all"),
        (SEAL, "join.1"),
    ],
)
def test_a_seal_of_another_job_node_round_or_meeting_does_not_pass(seal: Seal, name: str) -> None:
    sealed = SEAL.closed("s.1.1", b'{"ok": true}')
    assert SEAL.opened("s.1.1", sealed) == b'{"ok": true}'
    with pytest.raises(NotOurs):
        seal.opened(name, sealed)


def test_every_bit_counts() -> None:
    sealed = SEAL.closed("k", b"value")
    for i in range(len(sealed) * 8):
        changed = bytearray(sealed)
        changed[i // 8] ^= 1 << (i % 8)
        with pytest.raises(NotOurs):
            SEAL.opened("k", bytes(changed))
    for end in range(len(sealed)):
        with pytest.raises(NotOurs):
            SEAL.opened("k", sealed[:end])
    with pytest.raises(NotOurs):
        SEAL.opened("k", sealed + b"!")


def test_words_do_not_run_into_each_other() -> None:
    assert (
        len(
            {
                SEAL.proof("a", "bc"),
                SEAL.proof("ab", "c"),
                SEAL.proof("abc"),
                SEAL.proof("a", "b", "c"),
                SEAL.proof("", "abc"),
            }
        )
        == 5
    )
    assert "secret" not in repr(SEAL) and SEAL.key.hex() not in repr(SEAL)


# -- a store that others write to ----------------------------------------------------------------------------


class Outsider:
    """A store in which somebody exchanges values. ``changed`` gets each key and value that is put up, and all
    that were, and says what is there instead.
    """

    def __init__(self, store: Any, changed: Callable[[str, bytes, Mapping[str, bytes]], bytes]) -> None:
        self.store, self.changed, self.seen = store, changed, dict[str, bytes]()

    def set(self, key: str, value: bytes) -> None:
        new = self.changed(key, value, self.seen)
        self.seen[key] = value
        self.store.set(key, new)

    def get(self, key: str) -> bytes:
        return bytes(self.store.get(key))

    def check(self, keys: list[str]) -> bool:
        return bool(self.store.check(keys))


class Board(Store):
    """A store without a network, so without lines."""

    def __init__(self, store: Any, seal: Seal) -> None:
        self.host, self.port, self.keeper, self.seal, self.store = "store", 1, False, seal, store

    def watch(self, first: bool) -> Any:
        return lines.Lines("127.0.0.1", 1, self.seal, listen=False)


def meet(
    store: Any, seals: tuple[Seal, Seal], timeout: float = 600, numbers: tuple[int, int] = (10, 11)
) -> list[object]:
    """What two nodes come to who tell each other their numbers and add them, twice: the sums, or the error of
    each.
    """

    def member(me: int) -> object:
        try:
            with meeting(Board(store, seals[me]), me, 2, timeout) as m:
                first = m.exchange({"n": numbers[me]}, _sum, SUMS)["sum"]
                return (first, m.exchange({"n": first + me}, _sum, SUMS)["sum"])
        except CkptError as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(member, range(2)))


SUMS = Round(only({"n": whole}), only({"sum": whole}))


def _sum(values: Sequence[Mapping[str, int]]) -> dict[str, int]:
    return {"sum": sum(v["n"] for v in values)}


@pytest.fixture
def hash_store() -> Any:
    pytest.importorskip("torch")
    import torch.distributed

    return torch.distributed.HashStore()


def test_two_nodes_with_one_secret_meet(hash_store: Any) -> None:
    assert meet(Outsider(hash_store, lambda _key, value, _seen: value), (SEAL, SEAL)) == [(21, 43)] * 2


def test_two_secrets_are_said_on_both_nodes(hash_store: Any) -> None:
    found = meet(hash_store, (SEAL, Seal.of(b"other" * 8, "job")))
    for error in found:
        assert (
            isinstance(error, UsageError)
            and "another secret, or not of this job" in str(error)
            and "--secret-file" in error.hint
        )


KEYS = {
    "the offer": "offer",
    "an answer": ".1.1",
    "a conclusion": ".1.all",
    "a go": ".go",
    "an ack": ".ack.1",
}
NAMES = {"join.1": 0, "join.0": 1}
"""The key of each node's name, and the node that reads it."""
LIES: dict[str, Callable[[str, bytes, Mapping[str, bytes]], bytes]] = {
    "unsigned": lambda _key, value, _seen: value[len(secret._MARK) + secret._TAG :],
    "signed by an outsider": (
        lambda key, value, _seen: Seal.of(b"", "job").closed(key, value[len(secret._MARK) + secret._TAG :])
    ),
    "changed": lambda _key, value, _seen: value[:-2] + b"9}",
    "empty": lambda _key, _value, _seen: b"",
    "garbage": lambda _key, _value, _seen: b"\xff" * 100,
    "of another key": lambda _key, value, seen: next(iter(seen.values()), value + b" "),
    "not JSON, nested deep": lambda _key, _value, _seen: b"[" * 100_000,
}


@pytest.mark.share(4)
@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("what", KEYS)
def test_what_an_outsider_puts_up_is_never_used(hash_store: Any, what: str, lie: str) -> None:
    """Nobody comes to another sum than that of what the nodes have said, and the error names the cause."""

    def changed(key: str, value: bytes, seen: Mapping[str, bytes]) -> bytes:
        return LIES[lie](key, value, seen) if key.endswith(KEYS[what]) else value

    found = meet(Outsider(hash_store, changed), (SEAL, SEAL))
    errors = [f for f in found if isinstance(f, CkptError)]
    assert errors and all(f == (21, 43) for f in found if f not in errors)
    assert any(isinstance(e, UsageError) and "of another secret" in str(e) for e in errors), errors


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("key", NAMES)
def test_a_name_that_an_outsider_puts_up_is_never_used(hash_store: Any, key: str, lie: str) -> None:
    hash_store.set(
        key, LIES[lie](key, SEAL.closed(key, b"a" * lines.NAME), {"k": SEAL.closed("k", b"b" * lines.NAME)})
    )
    with (
        pytest.raises(UsageError, match="of another secret"),
        meeting(Board(hash_store, SEAL), NAMES[key], 2, 600),
    ):
        pass


@pytest.mark.parametrize("what", [*KEYS, *NAMES])
def test_what_was_said_in_an_earlier_meeting_is_never_used(hash_store: Any, what: str) -> None:
    """An outsider who has heard a whole meeting of this job, with other numbers, plays it again: the offer,
    names and answers are signed, and of that meeting.
    """
    heard: dict[str, bytes] = {}

    def listen(key: str, value: bytes, _seen: Mapping[str, bytes]) -> bytes:
        heard[key.partition(".")[2] if len(key.partition(".")[0]) == lines.NAME else key] = value
        return value

    assert meet(Outsider(hash_store, listen), (SEAL, SEAL), numbers=(1, 2)) == [(3, 7)] * 2

    def replay(key: str, value: bytes, _seen: Mapping[str, bytes]) -> bytes:
        if not key.endswith(KEYS.get(what, what)):
            return value
        return heard[key.partition(".")[2] if len(key.partition(".")[0]) == lines.NAME else key]

    found = meet(Outsider(hash_store, replay), (SEAL, SEAL), 0.5)
    # which only serves to see that it ended
    assert any(isinstance(f, CkptError) for f in found) or what == "join.0"
    assert all(isinstance(f, CkptError) or f == (21, 43) for f in found)


def test_a_value_that_is_too_large_for_the_store_is_said(hash_store: Any) -> None:
    board = Board(hash_store, SEAL)
    with pytest.raises(CannotLook, match="torch's store takes"):
        board.put("k", b"x" * (8 << 20))
    assert not hash_store.check(["k"])


def test_what_is_read_after_all_have_agreed_fails_nobody(hash_store: Any) -> None:
    """An outsider who writes garbage in place of a good-bye: the first node has what it needs, and does not
    fail alone.
    """
    m = Meeting(Board(hash_store, SEAL), 0, 2, 60)
    m.session, m.members = "s", ["a", "b"]
    hash_store.set("s.bye.1", b"garbage")
    assert m._bye(1) is False


# -- who listens ---------------------------------------------------------------------------------------------


def reaches(address: str, port: int) -> bool:
    with socket.socket() as s:
        s.settimeout(10)
        return s.connect_ex((address, port)) == 0


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="all of 127.0.0.0/8 is this machine on Linux alone"
)
def test_what_meets_on_this_machine_listens_there_alone() -> None:
    """127.0.0.2 is an address of this machine as its card's are: who listens on all addresses is reached
    there.
    """
    pytest.importorskip("torch")
    port = free_port()
    store = Store("127.0.0.1", port, True, timeout=30, prefix="job", seal=SEAL)
    line = Lines("127.0.0.1", port, SEAL, listen=True)
    try:
        for p in (port, line.offer["port"]):
            assert reaches("127.0.0.1", p) and not reaches("127.0.0.2", p)
        store.put("k", b"v")
        assert store.get("k") == b"v"
    finally:
        line.close()


def test_a_port_that_is_taken_is_said() -> None:
    pytest.importorskip("torch")
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(CannotLook, match="could not be opened"),
    ):
        Store("127.0.0.1", taken.getsockname()[1], True, timeout=30, prefix="job", seal=SEAL)


@pytest.mark.exhaustive
def test_an_outsider_at_the_port_of_a_real_store(tmp_path: Path) -> None:
    """It reads and replaces what it wants, and sends garbage beside it: the nodes meet all the same, or say
    that somebody else wrote there.
    """
    pytest.importorskip("torch")
    import torch.distributed

    port = free_port()
    stores = [Store("127.0.0.1", port, n == 0, timeout=60, prefix="job", seal=SEAL) for n in range(2)]
    outsider = torch.distributed.PrefixStore(
        "ckpt/job", torch.distributed.TCPStore("127.0.0.1", port, None, False, wait_for_workers=False)
    )
    half_open = [socket.create_connection(("127.0.0.1", port)) for _ in range(8)]
    for s, garbage in zip(
        half_open, (b"", b"\0", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 4096, b"x"), strict=False
    ):
        s.sendall(garbage)

    def member(me: int) -> object:
        try:
            with meeting(stores[me], me, 2, 600) as m:
                return m.exchange({"n": me + 1}, _sum, SUMS)["sum"]
        except CkptError as error:
            return error

    try:
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(member, range(2))) == [3, 3]
            outsider.set("join.1", b"{}")
            error = member(0)
        assert isinstance(error, UsageError) and "of another secret" in str(error)
        heard = bytes(outsider.get("offer"))
        assert SEAL.opened("offer", heard) and SEAL.key not in heard and RANDOM.encode() not in heard
    finally:
        for s in half_open:
            s.close()


# -- the lines -----------------------------------------------------------------------------------------------


@pytest.fixture
def first() -> Iterator[Lines]:
    line = Lines("127.0.0.1", 1, SEAL, listen=True)
    line.announce("f" * lines.NAME)
    yield line
    line.close()


def follow(node: Lines, first: Lines, offer: Mapping[str, Any] | None = None) -> bool:
    """Let a node connect to the first one, and say whether both see each other."""
    done = Thread(target=node.follow, args=(offer or {**first.offer, "hosts": ["127.0.0.1"]}, first.name))
    done.start()
    while done.is_alive():
        first.sleep(0.01)
    done.join()
    return first.alive(node.name) and node.alive(first.name)


def node(name: str, seal: Seal = SEAL) -> Lines:
    line = Lines("127.0.0.1", 1, seal, listen=False)
    line.announce(name * lines.NAME)
    return line


def test_nodes_of_one_secret_see_each_other_and_that_one_ends(first: Lines) -> None:
    second = node("2")
    assert follow(second, first)
    second.close()
    assert first.gone(second.name)


@pytest.mark.parametrize(
    "seal", [Seal.of(b"other" * 8, "job"), Seal.of(b"secret" * 8, "other"), Seal.of(b"", "job")]
)
def test_a_line_of_another_secret_is_none(first: Lines, seal: Seal) -> None:
    stranger = node("2", seal)
    assert not follow(stranger, first)
    assert not first.alive(stranger.name) and not stranger.alive(first.name)
    stranger.close()
    assert not first.gone("2" * lines.NAME)


def raw(first: Lines) -> socket.socket:
    return socket.create_connection(("127.0.0.1", first.offer["port"]))


def heard(s: socket.socket, first: Lines, count: int) -> bytes:
    """So many bytes from the first node, which is served meanwhile; fewer when it hangs up."""
    said = b""
    while len(said) < count:
        first.alive("")
        if select.select([s], [], [], 0.01)[0]:
            try:
                more = s.recv(count - len(said))
            except OSError:
                more = b""
            if not more:
                break
            said += more
    return said


def test_a_handshake_that_was_heard_is_of_no_use(first: Lines) -> None:
    """In another connection, towards another first node, and back at the one who sent it."""
    name, mine = "2" * lines.NAME, "a" * lines.NAME
    with raw(first) as s:
        asked = heard(s, first, lines.NAME).decode()
        answer = (name + mine + SEAL.proof("line", first.name, name, asked, mine)).encode()
        s.sendall(answer)
        back = heard(s, first, lines.PROOF)
        assert back.decode() == SEAL.proof("first", first.name, name, asked, mine) and first.alive(name)
    assert first.gone(name)
    for said in (answer, back + back, (name + mine).encode() + back):
        with raw(first) as s:
            heard(s, first, lines.NAME)
            s.sendall(said[: lines._ANSWER].ljust(lines._ANSWER, b"x"))
            assert heard(s, first, lines.PROOF) == b""  # it hangs up
            assert not first._lines


@pytest.mark.parametrize(
    "said", [b"", b"x", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 127, b"\xff" * 128, b"2" * 128, b"x" * 100_000]
)
def test_garbage_and_half_open_connections_do_nothing(first: Lines, said: bytes) -> None:
    second = node("2")
    with raw(first) as s:
        s.sendall(said)
        assert follow(second, first)  # who belongs to the job gets through beside it
        assert list(first._lines) == [second.name]
        assert all(len(x.said) <= lines._ANSWER for x in first._strangers.values())
    assert not first.gone(second.name)
    second.close()


def test_a_flood_of_connections_is_bounded_and_throws_out_no_node(
    first: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "STRANGERS", 16)
    second = node("2")
    assert follow(second, first)
    flood = []
    try:
        for _ in range(4 * lines.STRANGERS):
            flood.append(raw(first))
            first.alive("")
            assert len(first._strangers) <= lines.STRANGERS
        for s in flood:
            s.close()
        first.alive("")
        assert first.alive(second.name) and not first.gone(second.name)
        third = node("3")
        assert follow(third, first)
        third.close()
    finally:
        for s in flood:
            s.close()
        second.close()


def test_strangers_do_not_wake_who_sleeps(first: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a flood would make the first node ask the store without a pause. Time here passes only in select."""
    at, waits = [0.0], list[float]()
    real = first._ready.select

    def wait(seconds: float) -> Any:
        waits.append(seconds)
        at[0] += min(seconds, 0.5)
        return real(0)

    monkeypatch.setattr(lines.time, "monotonic", lambda: at[0])
    monkeypatch.setattr(first._ready, "select", wait)
    strangers = [raw(first) for _ in range(3)]
    first.sleep(2)
    assert at[0] == 2 and sum(min(w, 0.5) for w in waits) == 2
    for s in strangers:
        s.close()


def test_one_name_has_one_line(first: Lines) -> None:
    """A second connection of a name that is there does not take its place, and its end is not the node's."""
    second, double = node("2"), node("2")
    assert follow(second, first)
    follow(double, first)
    double.close()
    assert not first.gone(second.name) and first.alive(second.name)
    second.close()


def test_who_answers_a_byte_at_a_time_keeps_nobody() -> None:
    """The time for an answer is one for all of it."""
    at, asked = [0.0], list[float]()

    class Slow:
        def settimeout(self, seconds: float) -> None:
            asked.append(seconds)

        def recv(self, _count: int) -> bytes:
            at[0] += 0.3
            return b"x"

    real = lines.time.monotonic
    lines.time.monotonic = lambda: at[0]  # type: ignore[assignment]
    try:
        with pytest.raises(OSError, match="has not answered"):
            lines._received(Slow(), lines.PROOF, 1.0)  # type: ignore[arg-type]
    finally:
        lines.time.monotonic = real  # type: ignore[assignment]
    assert len(asked) <= 5


def test_more_nodes_than_select_can_watch(first: Lines) -> None:
    """select(2) takes no descriptor of 1024 or more."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    held = [os.dup(0) for _ in range(1100)]
    try:
        second = node("2")
        assert follow(second, first)
        assert second._lines[first.name].fileno() >= 1024
        second.close()
        assert first.gone(second.name)
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_files_are_not_sealed(tmp_path: Path) -> None:
    """A directory that only the job's user can write needs no secret: who may write there is another rule."""
    board = Files(str(tmp_path))
    board.put("k", b"v")
    assert (tmp_path / "k").read_bytes() == b"v"
