"""Nodes of one job come to one conclusion: each puts up a value, the first node concludes, and all follow, or
all fail with the error of the first that failed. They meet in a trusted place: a directory that others cannot
write, or a store on the job's own network.
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
from msgspec.structs import replace

from ckpt_tools import __version__
from ckpt_tools.errors import CannotLook, CkptError, UsageError, explain_refusal
from ckpt_tools.job.decision import Failed, failure
from ckpt_tools.job.files import Backoff, make_own
from ckpt_tools.job.membership import Membership, Options
from ckpt_tools.launchers import LaunchLine
from ckpt_tools.model import ranges
from ckpt_tools.output.words import printable
from ckpt_tools.planning import first_launch
from ckpt_tools.planning.first_launch import safe
from ckpt_tools.settings import checked_json
from ckpt_tools.settings.parsers import is_address
from ckpt_tools.storage import trust
from ckpt_tools.storage.attempts import patiently
from ckpt_tools.storage.trust import OURS, Trust
from ckpt_tools.storage.writes import replace_file

V = TypeVar("V")
A = TypeVar("A")
SAME = "run the same version of ckpt with the same options on every node"
_DAY = 86400
_FAREWELL = 5.0
"""Seconds that nodes wait longer than the first one, to hear from it which node is missing; and that the
first one keeps a store after its failure.
"""
_MOST = (8 << 20) - 64
"""The most bytes of a value in torch's store (torch/csrc/distributed/c10d/TCPStoreLibUvBackend.cpp,
MAX_PAYLOAD_LEN): for longer ones it drops the connection.
"""


class Hello(Struct, frozen=True):
    """A node's answer to the call of the first one; ``name`` is a random name of its process."""

    version: str
    nodes: int
    name: str


class Files:
    """A board, on which nodes put up values for the others, one per key, the latest. It is a directory that
    all nodes see, with a file per key, replaced by rename; ``flag`` is the option that names it.
    """

    keeper = False
    """Whether the board ends with this process."""

    def __init__(self, directory: str, trusted: Trust = OURS, flag: str = first_launch.FLAG) -> None:
        self.directory, self.trusted, self.flag = directory, trusted, flag
        make_own(directory, trusted, f"name a directory that every node can write with {flag}", flag)

    def put(self, key: str, value: bytes) -> None:
        hint = f"make room, or name another directory with {self.flag}"
        with explain_refusal(f"{self.directory} cannot be written", hint), trust.named(self.flag):
            replace_file(self.directory, safe(key), value, self.trusted)

    def get(self, key: str) -> bytes | None:
        path = os.path.join(self.directory, safe(key))
        try:
            with trust.named(self.flag):  # NFS answers ESTALE if the file was replaced while we opened it
                return patiently(trust.read, path, first_launch.MOST, self.trusted)
        except FileNotFoundError:
            return None
        except OSError as e:
            hint = f"is the file system of {self.flag} still there?"
            raise CannotLook(f"{path} cannot be read: {e.strerror}", hint) from e

    def drop(self, prefix: str) -> None:
        """Remove the files of a session, and files that killed nodes left a day ago."""
        with suppress(OSError):
            for entry in os.scandir(self.directory):
                with suppress(OSError):
                    old = "." in entry.name and time.time() - entry.stat().st_mtime > _DAY
                    if old or entry.name.startswith(prefix):
                        os.unlink(entry.path)


class Store:
    """A board in torch's TCPStore, kept by the node ``host``; ``keeper``: this is that node."""

    def __init__(self, host: str, port: int, keeper: bool, *, timeout: float, prefix: str) -> None:
        try:
            import torch.distributed

            dist: Any = torch.distributed  # torch's type stubs lack the stores
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
            text = f"the store for the agreement at {host}:{port} {what}: {_first_line(e)}"
            raise CannotLook(text, "check that the first node runs, or add --meet HOST:PORT") from e

    def put(self, key: str, value: bytes) -> None:
        if len(value) > _MOST:
            text = f"the message of this node has {len(value):,} bytes, and torch's store takes {_MOST:,}"
            raise CannotLook(text, "add --meet DIR on a shared file system")
        with _explain_errors():
            self.store.set(key, value)

    def get(self, key: str) -> bytes | None:
        with _explain_errors():
            return bytes(self.store.get(key)) if self.store.check([key]) else None


@contextmanager
def _explain_errors() -> Iterator[None]:
    try:
        yield
    except Exception as e:
        text = f"the first node does not answer any more: {_first_line(e)}"
        raise CannotLook(text, "start again when all nodes are up") from e


def _first_line(e: Exception) -> str:
    return str(e).partition("\n")[0][:200]


Board = Files | Store


class Meeting:
    """One of ``size`` nodes, number ``me``; node 0 concludes. Every wait ends after ``timeout`` seconds with
    CannotLook, which names the missing nodes. Values that an earlier start left on the board have no effect:
    node 0 calls a random ``session``, and answers each node under the random name that it gave itself.
    """

    def __init__(self, board: Board, me: int, size: int, timeout: float) -> None:
        self.board, self.me, self.size, self.timeout = board, me, size, timeout
        self.name, self.session, self.round = secrets.token_hex(16), "" if me else secrets.token_hex(16), 0
        self.found: dict[int, Any] = {}  # the values of this round, by node
        self.told = False  # whether all nodes know the outcome

    def _poll(self) -> Iterator[None]:
        """Yield once per look at the board. Raise CannotLook, which names who is missing, if time is over."""
        backoff = Backoff(self.timeout + (_FAREWELL if self.me else 0))
        while True:
            yield
            if not backoff.pause():
                missing = f"node {self.me} did not hear from the first node"
                if self.me == 0:
                    absent = _name_nodes([i for i in range(self.size) if i not in self.found])
                    missing = f"{absent} did not {'answer' if self.round else 'come'}"
                text = f"no agreement within {self.timeout:g} s: {missing}"
                raise CannotLook(text, "see why on that node, or wait longer with --timeout")

    def join(self) -> None:
        """Wait until all nodes are there, in a round before the first exchange."""
        mine = Hello(__version__, self.size, self.name)
        if self.me == 0:
            self.board.put("call", self.session.encode())
            self._conclude_with(mine, _require_one_version)
            return
        for _ in self._poll():
            called = (self.board.get("call") or b"").decode("ascii", "replace")
            if called != self.session:  # perhaps that of an earlier start, until this one's comes
                self.session = called
                self._put(f"0.{self.me}", mine)
            if called and self._read(f"{called}.0.{self.name}", 0, dict) is not None:
                return

    def exchange(
        self,
        value: V,
        conclude: Callable[[Sequence[V]], A],
        kind: type[A] = dict,  # type: ignore[assignment]  # by default any mapping
    ) -> A:
        """Send every node's ``value`` to node 0, and return its conclusion, of type ``kind``, on every node.
        An error that one node raises in the meeting is raised on all.
        """
        self.round += 1
        if self.me == 0:
            return self._conclude_with(value, conclude)
        self._put(f"{self.round}.{self.me}", value)
        for _ in self._poll():
            if (answer := self._read(f"{self.session}.{self.round}.all", 0, kind)) is not None:
                return answer
        raise AssertionError  # _poll ends by an error

    def _conclude_with(self, mine: V, conclude: Callable[[Sequence[V]], A]) -> A:
        self.found = {0: mine}
        try:
            for _ in self._poll():
                # in place of a process that died before all had come there may be another one
                for i in {*range(self.size)} - (self.found.keys() if self.round else {0}):
                    if (value := self._read(f"{self.session}.{self.round}.{i}", i, type(mine))) is not None:
                        self.found[i] = value
                if len(self.found) == self.size:
                    break
            answer = conclude([self.found[i] for i in range(self.size)])
        except CkptError as error:
            self.tell(failure(error))
            raise
        self._tell_all(self.round, answer)
        return answer

    def _tell_all(self, number: int, value: object) -> None:
        """Put up the conclusion of a round: of the first one for each node that has come, by its name."""
        names = ["all"] if number else [hello.name for hello in self.found.values()]
        for name in names:
            self._put(f"{number}.{name}", value)

    def _put(self, key: str, value: object) -> None:
        if self.session:  # else nobody is there to hear it
            self.board.put(f"{self.session}.{key}", json.dumps(to_builtins(value)).encode())

    def _read(self, key: str, of: int, kind: type[V]) -> V | None:
        """Return the value that node ``of`` has put up, None if there is none yet. Raise its error if it
        failed, UsageError if the value is no message, CannotLook if it is not of type ``kind``.
        """
        data = self.board.get(key)
        if data is None:
            return None
        try:
            value = checked_json.parsed(data)
        except checked_json.NoJson:
            value = None
        strange = f"node {of} says what no node of this job says ({key})"
        if not isinstance(value, dict):
            raise UsageError(strange, SAME)
        try:
            if "exit_code" not in value:
                return checked_json.checked(value, kind)
            failed = checked_json.checked(value, Failed)
        except checked_json.Invalid as e:
            raise CannotLook(f"{strange}: {e}", SAME) from e
        self.told = self.told or of == 0
        raise failed.as_error(f"node {of}: " if of else "")

    # ---- leaving

    def tell(self, failed: Failed) -> None:
        """Make the other nodes fail with this error at once, instead of waiting for this node."""
        for number in (self.round, self.round + 1):
            if self.me:
                self._put(f"{number}.{self.me}", failed)
            elif not number or self.board.get(f"{self.session}.{number}.all") is None:
                self._tell_all(number, failed)
        self.told = True

    def leave(self) -> None:
        """Say good-bye; the first node keeps the board until all have. Raise CannotLook if one has not."""
        if self.me:
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
        absent = list(range(1, self.size))
        while absent := [i for i in absent if not has_left(i)]:
            if not backoff.pause():
                if self.told:
                    return
                raise CannotLook(f"{_name_nodes(absent)} did not start", "see why on that node")
        if isinstance(self.board, Files):  # a store ends with the launcher that keeps it
            self.board.drop(f"{self.session}.")


def _require_one_version(values: Sequence[Hello]) -> dict[str, object]:
    first = values[0]
    for i, hello in enumerate(values):
        if (hello.version, hello.nodes) != (first.version, first.nodes):
            raise UsageError(
                f"node {i} is one of {hello.nodes} nodes with ckpt {printable(hello.version)},"
                f" node 0 one of {first.nodes} with {first.version}",
                SAME,
            )
    return {}


@contextmanager
def meeting(board: Board, me: int, size: int, timeout: float) -> Iterator[Meeting]:
    """Yield a meeting that all nodes have joined; tell them of an error or signal that ends it here."""
    m = Meeting(board, me, size, timeout)
    try:
        m.join()
        yield m
    except BaseException as error:
        if not m.told:
            failed = failure(_explain(error))
            with suppress(CkptError):
                m.tell(failed if me else replace(failed, message=f"node 0: {failed.message}"))
        if isinstance(error, Exception):  # not after a signal: its sender waits
            with suppress(CkptError):
                m.leave()
        raise
    m.leave()


def _explain(error: BaseException) -> CkptError:
    if isinstance(error, CkptError):
        return error
    if isinstance(error, Exception):
        text = f"internal error: {type(error).__name__}: {error}"
        return CannotLook(text, "report it with what that node printed")
    return CannotLook("it was interrupted or terminated by a signal", "start again when all nodes are up")


def _name_nodes(numbers: Sequence[int]) -> str:
    return f"node{'s' if len(numbers) > 1 else ''} {ranges.words(ranges.ranges(numbers))}"


def _read_port(text: str) -> int:
    """Return the number of a port; 0 if it is none."""
    return int(text) if text.isascii() and text.isdigit() and int(text) < 1 << 16 else 0


def find_board(
    of: Membership, options: Options, line: LaunchLine | None, env: Mapping[str, str], trusted: Trust
) -> Board:
    """Return the board of the job's nodes. Raise UsageError if nothing tells where they meet."""
    if is_address(options.meet) or (not options.meet and options.plan_dir is None):
        host, port, keeper = _find_endpoint(of, options, line, env)
        return Store(host, port, keeper, timeout=options.timeout, prefix=of.place or "job")
    if not of.place:
        text = "nothing names this job, so its nodes cannot find each other"
        raise UsageError(text, "give torchrun --rdzv-id, or add --job ID, the same on every node")
    # not in the root's directory of decisions, whose name differs if nodes mount the root elsewhere
    place = os.path.join(options.meet or options.plan_dir or "", f"{of.place}.meeting")
    return Files(place, trusted, "--meet" if options.meet else first_launch.FLAG)


def _find_endpoint(
    of: Membership, options: Options, line: LaunchLine | None, env: Mapping[str, str]
) -> tuple[str, int, bool]:
    """Return (host, port, whether this node keeps it) of the store for the agreement. Raise UsageError."""
    first, master, master_port = of.node == 0, env.get("MASTER_ADDR"), _read_port(env.get("MASTER_PORT", ""))
    agents = options.worker and env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    nodes, job = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST"), env.get("SLURM_JOB_ID", "")
    if at := options.meet or options.rendezvous:
        host, _, text = at.rpartition(":")
        port = _read_port(text)
        if not host or not port:
            raise UsageError(f"--meet {at!r} is not HOST:PORT", "name a free port of the first node")
    elif agents and master and master_port:
        # the store that torchrun keeps for its workers (torch/distributed/rendezvous.py)
        host, port, first = master, master_port, False
    elif line and line.endpoint and 0 < _read_port(line.port) < 65535:
        host, port = line.host, _read_port(line.port) + 1
    elif nodes and job.isdecimal():
        host, port = first_host(nodes), 20000 + int(job) % 20000
    else:
        raise UsageError(
            "the address where the nodes meet is unknown",
            "add --meet DIR that all see, or --meet HOST:PORT with a free port of the first node",
        )
    return host.removeprefix("[").removesuffix("]"), port, first


def first_host(nodes: str) -> str:
    """Return the first host of Slurm's ``node[03-05,9],other`` (scontrol(1) show hostnames)."""
    # the first number of every bracket: a name may have several
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", nodes).partition(",")[0]
