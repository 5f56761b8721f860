"""Nodes of one job come to one conclusion: each puts up a value, the first one concludes, and all follow it.
All get it, or all fail as the first that failed.

Where they meet is trusted: a directory that others cannot write, or a store on the job's own network.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

from msgspec import Struct, to_builtins

from ckpt_tools import __version__
from ckpt_tools.errors import CannotLook, CkptError, UsageError
from ckpt_tools.job.decision import Failed, failure
from ckpt_tools.job.files import Backoff, make_own, write
from ckpt_tools.job.membership import Membership, Options
from ckpt_tools.launchers import LaunchLine
from ckpt_tools.model import ranges
from ckpt_tools.output.words import printable
from ckpt_tools.planning import first_launch
from ckpt_tools.planning.first_launch import safe
from ckpt_tools.settings import fault_file
from ckpt_tools.settings.parsers import is_address
from ckpt_tools.storage import trust
from ckpt_tools.storage.attempts import patiently
from ckpt_tools.storage.trust import OURS, Trust

V = TypeVar("V")
A = TypeVar("A")
SAME = "run the same version of ckpt with the same options on every node"
_DAY = 86400
_FAREWELL = 5.0
"""Seconds that nodes wait longer than the first one, to hear from it who is missing; and that the first one
keeps a store after it has failed.
"""
_MOST = (8 << 20) - 64
"""Bytes that torch's store takes (torch/csrc/distributed/c10d/TCPStoreLibUvBackend.cpp, MAX_PAYLOAD_LEN): at
more it drops the connection.
"""


class Hello(Struct, frozen=True):
    """How a node answers an offer."""

    version: str
    nodes: int


class Offer(Struct, frozen=True):
    """A session, and the names of those who are in it."""

    session: str
    members: list[str]


class Files:
    """A board, on which values are put up for the others: a key holds one, a later one replaces it. It is a
    directory that all nodes see, with one file per key, replaced by rename; ``flag`` named it.
    """

    keeper = False
    """Whether the board ends with this process."""

    def __init__(self, directory: str, trusted: Trust = OURS, flag: str = first_launch.FLAG) -> None:
        self.directory, self.trusted, self.flag = directory, trusted, flag
        make_own(directory, trusted, f"name a directory that every node can write with {flag}", flag)

    def put(self, key: str, value: bytes) -> None:
        write(os.path.join(self.directory, safe(key)), value, self.trusted)

    def get(self, key: str) -> bytes | None:
        path = os.path.join(self.directory, safe(key))
        try:
            with trust.named(self.flag):  # NFS says ESTALE of a file that was replaced while we opened it
                return patiently(trust.read, path, first_launch.MOST, self.trusted)
        except FileNotFoundError:
            return None
        except OSError as e:
            hint = f"is the file system of {self.flag} still there?"
            raise CannotLook(f"{path} cannot be read: {e.strerror}", hint) from e

    def drop(self, prefix: str) -> None:
        """Forget a session, and what killed nodes left a day ago."""
        with suppress(OSError):
            for entry in os.scandir(self.directory):
                with suppress(OSError):
                    old = "." in entry.name and time.time() - entry.stat().st_mtime > _DAY
                    if old or entry.name.startswith(prefix):
                        os.unlink(entry.path)


class Store:
    """A board in torch's TCPStore; ``host`` is of the node that keeps it, ``keeper`` that node itself."""

    def __init__(self, host: str, port: int, keeper: bool, *, timeout: float, prefix: str) -> None:
        try:
            import torch.distributed

            dist: Any = torch.distributed  # its types say nothing of the stores
        except ImportError as e:
            raise UsageError(
                "--agree needs torch, or a directory that all nodes share",
                "pip install 'ckpt-tools[torch]', or add --meet DIR on a shared file system",
            ) from e
        self.keeper = keeper
        try:
            store = dist.TCPStore(
                host, port, None, keeper, timedelta(seconds=timeout), wait_for_workers=False
            )
            self.store: Any = dist.PrefixStore(f"ckpt/{prefix}", store)
        except Exception as e:  # torch raises classes of its own, which differ between versions
            what = "could not be opened" if keeper else f"did not answer within {timeout:g} s"
            raise CannotLook(
                f"the store for the agreement at {host}:{port} {what}: {_first_line(e)}",
                "check that the first node runs, or add --meet HOST:PORT",
            ) from e

    def put(self, key: str, value: bytes) -> None:
        if len(value) > _MOST:
            raise CannotLook(
                f"the message of this node has {len(value):,} bytes, and torch's store takes {_MOST:,}",
                "add --meet DIR on a shared file system",
            )
        with _answering():
            self.store.set(key, value)

    def get(self, key: str) -> bytes | None:
        with _answering():
            return bytes(self.store.get(key)) if self.store.check([key]) else None


@contextmanager
def _answering() -> Iterator[None]:
    try:
        yield
    except Exception as e:
        raise CannotLook(
            f"the first node does not answer any more: {_first_line(e)}", "start again when all nodes are up"
        ) from e


def _first_line(e: Exception) -> str:
    return str(e).partition("\n")[0][:200]


Board = Files | Store


class Meeting:
    """``me`` of ``size`` nodes, the first of which concludes. Every wait ends after ``timeout`` seconds with
    CannotLook, which says who is missing.

    What an earlier start left on the board is not followed: each process brings a name that was never used,
    and a session is the list of them.
    """

    def __init__(self, board: Board, me: int, size: int, timeout: float) -> None:
        self.board, self.me, self.size, self.timeout = board, me, size, timeout
        self.name, self.session, self.round = secrets.token_hex(16), "", 0
        self.members = [""] * size
        self.told = False  # all know how it ended

    def _waiting(self, missing: Callable[[], str]) -> Iterator[None]:
        backoff = Backoff(self.timeout + (_FAREWELL if self.me else 0))
        while True:
            yield
            if not backoff.pause():
                raise CannotLook(
                    f"no agreement within {self.timeout:g} s: {missing()}",
                    "see why on that node, or wait longer with --timeout",
                )

    def _unheard(self) -> str:
        return f"node {self.me} did not hear from the first node"

    def join(self) -> None:
        """Wait until all are there: the round before the first exchange, in which nodes say which they are.
        The first one offers a session to those it sees; who is not in it (an earlier start was) makes it
        offer another.
        """
        mine = Hello(__version__, self.size)
        self.board.put(f"join.{self.me}", self.name.encode())
        if self.me == 0:
            self._conclude_with(mine, _require_one_version)
            return
        for _ in self._waiting(self._unheard):
            offer = None
            with suppress(CkptError):  # one of another version, as it was left here, is none of ours
                offer = self._read("offer", 0, Offer)
            if offer is None or self.name not in offer.members:
                continue
            if offer.session != self.session:
                self.session = offer.session
                self._put(f"0.{self.me}", mine)
            if self._read(f"{self.session}.0.all", 0, dict) is not None:
                return

    def exchange(
        self,
        value: V | Failed,
        conclude: Callable[[Sequence[V]], A],
        kind: type[A] = dict,  # type: ignore[assignment]  # a mapping of anything, where nothing is declared
    ) -> A:
        """Every node's value to the first, its conclusion, of that ``kind``, to every node. What one node
        raised (``failure``), or concluding raises, is raised on all.
        """
        self.round += 1
        if self.me == 0:
            return self._conclude_with(value, conclude)
        self._put(f"{self.round}.{self.me}", value)
        for _ in self._waiting(self._unheard):
            if (answer := self._read(f"{self.session}.{self.round}.all", 0, kind)) is not None:
                return answer
        raise AssertionError  # waiting ends by an error

    def _conclude_with(self, mine: V | Failed, conclude: Callable[[Sequence[V]], A]) -> A:
        try:
            if isinstance(mine, Failed):
                raise mine.as_error("node 0: ")
            answer = conclude(self._gather(mine))
        except CkptError as error:
            self.tell(failure(error))
            raise
        self._put(f"{self.round}.all", answer)
        return answer

    def _gather(self, mine: V) -> list[V]:
        found, missing, offered = {0: mine}, list[int](), list[str]()
        for _ in self._waiting(lambda: f"{_nodes(missing)} did not {'answer' if self.round else 'come'}"):
            if self.round == 0:
                others = (self.board.get(f"join.{i}") or b"" for i in range(1, self.size))
                self.members = [self.name, *(name.decode("ascii", "replace") for name in others)]
                missing[:] = [i for i, name in enumerate(self.members) if not name]
                if missing:
                    continue
                if self.members != offered:
                    offered, found = self.members, {0: mine}
                    self._offer()
            for i in set(range(self.size)) - set(found):
                if (value := self._read(f"{self.session}.{self.round}.{i}", i, type(mine))) is not None:
                    found[i] = value
            missing[:] = sorted(set(range(self.size)) - set(found))
            if not missing:
                break
        return [found[i] for i in range(self.size)]

    def _offer(self) -> None:
        self.session = secrets.token_hex(16)
        self.board.put("offer", json.dumps(to_builtins(Offer(self.session, self.members))).encode())

    def _put(self, key: str, value: object) -> None:
        self.board.put(f"{self.session}.{key}", json.dumps(to_builtins(value)).encode())

    def _read(self, key: str, of: int, kind: type[V]) -> V | None:
        """What a node has put up, None while there is nothing. Raises what it raised, UsageError for what is
        no message, and CannotLook for one that says what none says.
        """
        data = self.board.get(key)
        if data is None:
            return None
        try:
            value = fault_file.parsed(data)
        except fault_file.NoJson:
            value = None
        strange = f"node {of} says what no node of this job says ({key})"
        if not isinstance(value, dict):
            raise UsageError(strange, SAME)
        try:
            if "exit_code" not in value:
                return fault_file.checked(value, kind)
            failed = fault_file.checked(value, Failed)
        except fault_file.Invalid as e:
            raise CannotLook(f"{strange}: {e}", SAME) from e
        concluded = key.endswith(".all")
        self.told = self.told or concluded
        raise failed.as_error("" if concluded else f"node {of}: ")

    # ---- leaving

    def tell(self, told: Failed) -> None:
        """Let the others fail where they wait, now or next, instead of waiting for this node."""
        if self.me == 0 and not self.session:
            self._offer()  # to those that have come
        who = str(self.me) if self.me else "all"
        for number in (self.round, self.round + 1):
            concluded = self.me == 0 and self.board.get(f"{self.session}.{number}.all") is not None
            if self.session and not concluded:
                self._put(f"{number}.{who}", told)
        self.told = True

    def leave(self) -> None:
        """Say good-bye; the first node keeps the board until the others have read everything. Raises
        CannotLook where one of them does not say that it has.
        """
        if self.me:
            if self.session:
                with suppress(CannotLook):
                    self._put(f"bye.{self.me}", {})
            return
        if self.told and not self.board.keeper:
            return

        def has_left(i: int) -> bool:
            with suppress(CannotLook):
                return self.board.get(f"{self.session}.bye.{i}") is not None
            return False

        backoff = Backoff(_FAREWELL if self.told else self.timeout)
        away = list(range(1, self.size))
        while away := [i for i in away if not has_left(i)]:
            if not backoff.pause():
                if self.told:
                    return
                raise CannotLook(f"{_nodes(away)} did not start", "see why on that node")
        if isinstance(self.board, Files):  # a store ends with the launcher that keeps it
            self.board.drop(f"{self.session}.")


def _require_one_version(values: Sequence[Hello]) -> dict[str, object]:
    first = values[0]
    for i, hello in enumerate(values):
        if hello != first:
            raise UsageError(
                f"node {i} is one of {hello.nodes} nodes with ckpt {printable(hello.version)},"
                f" node 0 one of {first.nodes} with {first.version}",
                SAME,
            )
    return {}


@contextmanager
def meeting(board: Board, me: int, size: int, timeout: float) -> Iterator[Meeting]:
    """A meeting that all have joined. What ends it early on this node, a signal too, the others are told."""
    m = Meeting(board, me, size, timeout)
    try:
        m.join()
        yield m
    except BaseException as error:
        if not m.told:
            with suppress(CkptError):
                m.tell(failure(_explain(error)))
        if isinstance(error, Exception):  # not a signal: whoever sent it waits
            with suppress(CkptError):
                m.leave()
        raise
    m.leave()


def _explain(error: BaseException) -> CkptError:
    if isinstance(error, CkptError):
        return error
    if isinstance(error, Exception):
        return CannotLook(
            f"internal error: {type(error).__name__}: {error}", "report it with what that node printed"
        )
    return CannotLook("it was interrupted or terminated by a signal", "start again when all nodes are up")


def _nodes(numbers: Sequence[int]) -> str:
    return f"node{'s' if len(numbers) > 1 else ''} {ranges.words(ranges.ranges(numbers))}"


_PORTS = 1 << 16


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text) < _PORTS


def find_board(
    of: Membership, options: Options, line: LaunchLine | None, env: Mapping[str, str], trusted: Trust
) -> Board:
    """Return the board of the nodes of this job. Raises UsageError when nothing tells where they meet."""
    if is_address(options.meet) or (not options.meet and options.plan_dir is None):
        host, port, keeper = _find_endpoint(of, options, line, env)
        return Store(host, port, keeper, timeout=options.timeout, prefix=of.place or "job")
    if not of.place:
        raise UsageError(
            "nothing names this job, so its nodes cannot find each other",
            "give torchrun --rdzv-id, or add --job ID, the same on every node",
        )
    # not below the root's own place: nodes may mount it elsewhere
    place = os.path.join(options.meet or options.plan_dir or "", f"{of.place}.meeting")
    return Files(place, trusted, "--meet" if options.meet else first_launch.FLAG)


def _find_endpoint(
    of: Membership, options: Options, line: LaunchLine | None, env: Mapping[str, str]
) -> tuple[str, int, bool]:
    """Return the host and the port of the agreement's store, and whether this node keeps it. Raises
    UsageError when nothing tells.
    """
    first, master, master_port = of.node == 0, env.get("MASTER_ADDR"), env.get("MASTER_PORT", "")
    agents = options.worker and env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if at := options.meet or options.rendezvous:
        host, _, port = at.rpartition(":")
        if not host or not _is_port(port):
            raise UsageError(f"--meet {at!r} is not HOST:PORT", "name a free port of the first node")
        number = int(port)
    elif agents and master and _is_port(master_port):
        # the store that torchrun keeps for its workers (torch/distributed/rendezvous.py)
        host, number, first = master, int(master_port), False
    elif line and line.endpoint:
        if not _is_port(line.port) or int(line.port) == _PORTS - 1:
            raise UsageError(
                f"{line.endpoint!r}: there is no other port beside {line.port}", "add --meet HOST:PORT"
            )
        host, number = line.host, int(line.port) + 1
    elif slurm := _find_slurms(env):
        host, number = slurm
    else:
        raise UsageError(
            "the address where the nodes meet is unknown",
            "add --meet DIR that all see, or --meet HOST:PORT with a free port of the first node",
        )
    return host.removeprefix("[").removesuffix("]"), number, first


def _find_slurms(env: Mapping[str, str]) -> tuple[str, int] | None:
    nodes, job = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST"), env.get("SLURM_JOB_ID", "")
    return (first_host(nodes), 20000 + int(job) % 20000) if nodes and job.isdigit() else None


def first_host(nodes: str) -> str:
    """Return the first of Slurm's ``node[03-05,9],other`` (scontrol(1) show hostnames)."""
    # the first number of every bracket: a name may have several
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", nodes).partition(",")[0]
