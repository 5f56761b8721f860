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

from ckpt_tools import __version__
from ckpt_tools.errors import CannotLook, CkptError, UsageError, explain_refusal
from ckpt_tools.job.decision import Failed
from ckpt_tools.job.membership import Membership, Options
from ckpt_tools.launchers import LaunchLine
from ckpt_tools.model import ranges
from ckpt_tools.output.words import printable
from ckpt_tools.planning import first_launch
from ckpt_tools.planning.first_launch import make_safe
from ckpt_tools.settings import checked_json
from ckpt_tools.settings.parsers import is_address
from ckpt_tools.storage import trust
from ckpt_tools.storage.stalls import retry_call
from ckpt_tools.storage.trust import OURS, Trust
from ckpt_tools.storage.writes import replace_file

V = TypeVar("V")
A = TypeVar("A")
SHORTEST, LONGEST = 0.01, 2.0
"""Seconds of a pause between two looks."""
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


class Backoff:
    """Pauses between two looks, each an eighth of the time waited so far: an answer is seen at most an eighth
    late, in some 50 looks for 10 s and 350 for 10 minutes.
    """

    def __init__(self, timeout: float) -> None:
        self.started = time.monotonic()
        self.ends = self.started + timeout

    def pause(self) -> bool:
        """Sleep until the next look. Return False, without sleeping, if the time is over."""
        now = time.monotonic()
        if now >= self.ends:
            return False
        time.sleep(min(LONGEST, max(SHORTEST, (now - self.started) / 8), self.ends - now))
        return True


class Hello(Struct, frozen=True):
    """The answer of a node to an offer: its version of ckpt, and how many nodes it waits for."""

    version: str
    nodes: int


class Offer(Struct, frozen=True):
    """A session, and the names of the processes in it."""

    session: str
    members: list[str]


class Files:
    """A board with a value per key: files in a directory that all nodes see, which option ``flag`` names."""

    keeper = False
    """Whether the board ends with this process."""

    def __init__(self, directory: str, trusted: Trust = OURS, flag: str = first_launch.FLAG) -> None:
        self.directory, self.trusted, self.flag = directory, trusted, flag
        hint = f"name a directory that every node can write with {flag}"
        with explain_refusal(f"{directory} cannot be made", hint), trust.label(flag):
            trust.make(directory, trusted)
            trust.check(directory, trusted)

    def put(self, key: str, value: bytes) -> None:
        name, hint = make_safe(key), f"make room, or name another directory with {self.flag}"
        with explain_refusal(f"{self.directory}/{name} cannot be written", hint), trust.label(self.flag):
            replace_file(self.directory, name, value, self.trusted)

    def get(self, key: str) -> bytes | None:
        path = os.path.join(self.directory, make_safe(key))
        try:
            with trust.label(self.flag):  # NFS answers ESTALE if the file was replaced while we opened it
                return retry_call(trust.read, path, first_launch.MOST, self.trusted)
        except FileNotFoundError:
            return None
        except OSError as e:
            hint = f"is the file system of {self.flag} still there?"
            raise CannotLook(f"{path} cannot be read: {e.strerror}", hint) from e

    def drop(self, prefix: str) -> None:
        """Remove files whose names begin with ``prefix``, and files that killed nodes left a day ago."""
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
            text = "--agree needs torch, or a directory that all nodes share"
            hint = "pip install 'ckpt-tools[torch]', or add --meet DIR on a shared file system"
            raise UsageError(text, hint) from e
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
        with _convert_store_errors():
            self.store.set(key, value)

    def get(self, key: str) -> bytes | None:
        with _convert_store_errors():
            return bytes(self.store.get(key)) if self.store.check([key]) else None


@contextmanager
def _convert_store_errors() -> Iterator[None]:
    """Raise CannotLook for any error of torch's store."""
    try:
        yield
    except Exception as e:
        text = f"the first node does not answer any more: {_first_line(e)}"
        raise CannotLook(text, "start again when all nodes are up") from e


def _first_line(e: Exception) -> str:
    return str(e).partition("\n")[0][:200]


Board = Files | Store


class Meeting:
    """The place of ``node`` among ``size`` nodes that meet; node 0 concludes. Every wait ends after
    ``timeout`` seconds with CannotLook, which names the missing nodes. Values that an earlier start left on
    the board have no effect: each process brings a new random name, and a session is the list of these names.
    """

    def __init__(self, board: Board, node: int, size: int, timeout: float) -> None:
        self.board, self.node, self.size, self.timeout = board, node, size, timeout
        self.name, self.session, self.round = secrets.token_hex(16), "", 0
        self.is_told = False  # whether all nodes know of an error

    def _poll(self, missing: Callable[[], str]) -> Iterator[None]:
        """Yield once per look at the board. Raise the error of a node that has failed, and CannotLook with
        ``missing()`` if the time is over.
        """
        backoff = Backoff(self.timeout + (_FAREWELL if self.node else 0))
        while True:
            yield
            self._require_none_failed()
            if not backoff.pause():
                text = f"no agreement within {self.timeout:g} s: {missing()}"
                raise CannotLook(text, "see why on that node, or wait longer with --timeout")

    def _require_none_failed(self) -> None:
        """Raise the error of a node that has failed."""
        if self.session and (failed := self._read(f"{self.session}.failed", Failed)) is not None:
            self.is_told = True
            raise failed.as_error()

    def _explain_silence(self) -> str:
        return f"node {self.node} did not hear from the first node"

    def join(self) -> None:
        """Wait until all nodes are there, in a round before the first exchange."""
        hello = Hello(__version__, self.size)
        self.board.put(f"join.{self.node}", self.name.encode())
        if self.node == 0:
            self._put("0.all", _require_one_version(self._invite(hello)))
            return
        for _ in self._poll(self._explain_silence):
            offer = None
            with suppress(CkptError):  # an old offer by another version is not for us
                offer = self._read("offer", Offer)
            if offer is None or self.name not in offer.members:
                continue
            if offer.session != self.session:
                self.session = offer.session
                self._put(f"0.{self.node}", hello)
            if self._read(f"{self.session}.0.all", dict) is not None:
                return

    def _invite(self, hello: Hello) -> list[Hello]:
        """Return the answers of all nodes to the offer of a session: to the names that have come, and another
        one if a name (of an earlier start) is replaced.
        """
        answers, offered, missing = {0: hello}, list[str](), list[int]()
        for _ in self._poll(lambda: f"{_name_nodes(missing)} did not come"):
            names = self._list_names()
            missing[:] = [i for i, name in enumerate(names, 1) if not name]
            if missing:
                continue
            if names != offered:
                offered, answers = names, {0: hello}
                self._offer_session(names)
            missing[:] = self._add_values(answers, Hello)
            if not missing:
                break
        return [answers[i] for i in range(self.size)]

    def _list_names(self) -> list[str]:
        """Return the names of the processes on the other nodes, "" for one that has not come."""
        names = (self.board.get(f"join.{i}") or b"" for i in range(1, self.size))
        return [name.decode("ascii", "replace") for name in names]

    def _offer_session(self, names: Sequence[str]) -> None:
        """Offer a session of a new random id to the other nodes of these names."""
        self.session = secrets.token_hex(16)
        offer = Offer(self.session, [self.name, *names])
        self.board.put("offer", json.dumps(to_builtins(offer)).encode())

    def exchange(
        self,
        value: V,
        conclude: Callable[[Sequence[V]], A],
        kind: type[A] = dict,  # type: ignore[assignment]  # by default any mapping
    ) -> A:
        """Send every node's ``value`` to node 0, and return its conclusion, of type ``kind``, on every node.
        An error of one node, or of ``conclude``, is raised on all.
        """
        self.round += 1
        if self.node == 0:
            answer = conclude(self._gather(value))
            self._put(f"{self.round}.all", answer)
            return answer
        self._put(f"{self.round}.{self.node}", value)
        for _ in self._poll(self._explain_silence):
            if (found := self._read(f"{self.session}.{self.round}.all", kind)) is not None:
                return found
        raise AssertionError  # _poll ends by an error

    def _gather(self, own: V) -> list[V]:
        """Return the values of all nodes in this round."""
        values, missing = {0: own}, list[int]()
        for _ in self._poll(lambda: f"{_name_nodes(missing)} did not answer"):
            missing[:] = self._add_values(values, type(own))
            if not missing:
                break
        return [values[i] for i in range(self.size)]

    def _add_values(self, values: dict[int, V], kind: type[V]) -> list[int]:
        """Add the values of nodes that have answered in this round; return the nodes that have not. If all
        have, raise the error of one that has failed since.
        """
        for i in set(range(self.size)) - set(values):
            if (value := self._read(f"{self.session}.{self.round}.{i}", kind)) is not None:
                values[i] = value
        missing = sorted(set(range(self.size)) - set(values))
        if not missing:
            self._require_none_failed()
        return missing

    def _put(self, key: str, value: object) -> None:
        """Put up a value as JSON, for this session alone."""
        self.board.put(f"{self.session}.{key}", json.dumps(to_builtins(value)).encode())

    def _read(self, key: str, kind: type[V]) -> V | None:
        """Return the value at a key, or None. Raise CannotLook if it is not of type ``kind``."""
        data = self.board.get(key)
        if data is None:
            return None
        try:
            return checked_json.decode(checked_json.parse(data), kind)
        except ValueError as e:
            sender = key.rpartition(".")[2]
            text = f"node {sender if sender.isdigit() else 0} says what no node of this job says ({key}): {e}"
            raise CannotLook(text, SAME) from e

    # ---- leaving

    def tell(self, error: CkptError) -> None:
        """Make the other nodes fail with this error at once, instead of waiting for this node."""
        if self.node == 0 and not self.session:  # to the nodes that have come
            self._offer_session(self._list_names())
        if self.session:
            who = f"node {self.node}: " if self.node else ""
            self._put("failed", Failed(f"{who}{error}", error.hint, error.exit_code))
        self.is_told = True

    def leave(self) -> None:
        """Say good-bye; the first node keeps the board until all have. Raise CannotLook if one has not."""
        if self.node:
            if self.session:
                with suppress(CannotLook):
                    self._put(f"bye.{self.node}", {})
            return
        if self.is_told and not self.board.keeper:
            return

        def has_left(i: int) -> bool:
            with suppress(CannotLook):
                return self.board.get(f"{self.session}.bye.{i}") is not None
            return False

        backoff = Backoff(_FAREWELL if self.is_told else self.timeout)
        absent = list(range(1, self.size))
        while absent := [i for i in absent if not has_left(i)]:
            if not backoff.pause():
                if self.is_told:
                    return
                raise CannotLook(f"{_name_nodes(absent)} did not start", "see why on that node")
        if isinstance(self.board, Files):  # a store ends with the launcher that keeps it
            self.board.drop(f"{self.session}.")


def _require_one_version(hellos: Sequence[Hello]) -> dict[str, object]:
    """Raise UsageError if the nodes differ in ckpt's version or the number of nodes. Return {}."""
    first = hellos[0]
    for i, hello in enumerate(hellos):
        if hello != first:
            raise UsageError(
                f"node {i} is one of {hello.nodes} nodes with ckpt {printable(hello.version)},"
                f" node 0 one of {first.nodes} with {first.version}",
                SAME,
            )
    return {}


@contextmanager
def meeting(board: Board, node: int, size: int, timeout: float) -> Iterator[Meeting]:
    """Yield a meeting that all nodes have joined; tell them of an error or signal that ends it here."""
    m = Meeting(board, node, size, timeout)
    try:
        m.join()
        yield m
    except BaseException as error:
        if not m.is_told:
            with suppress(CkptError):
                m.tell(_convert_error(error))
        if isinstance(error, Exception):  # not after a signal: its sender waits
            with suppress(CkptError):
                m.leave()
        raise
    m.leave()


def _convert_error(error: BaseException) -> CkptError:
    """Return the error that other nodes are told: a CkptError itself, else CannotLook about it."""
    if isinstance(error, CkptError):
        return error
    text = f"it was ended by a signal, or an internal error: {type(error).__name__}: {error}"
    return CannotLook(text, "see what that node printed, and start again when all nodes are up")


def _name_nodes(numbers: Sequence[int]) -> str:
    return f"node{'s' if len(numbers) > 1 else ''} {ranges.words(ranges.ranges(numbers))}"


def find_board(
    member: Membership, options: Options, line: LaunchLine | None, env: Mapping[str, str], trusted: Trust
) -> Board:
    """Return the board of the job's nodes. Raise UsageError if nothing tells where they meet."""
    name = member.meeting_name
    if is_address(options.meet) or (not options.meet and options.plan_dir is None):
        host, port, keeper = _find_endpoint(member, options, line, env)
        return Store(host, port, keeper, timeout=options.timeout, prefix=name or "job")
    if not name:
        text = "nothing names this job, so its nodes cannot find each other"
        raise UsageError(text, "give torchrun --rdzv-id, or add --job ID, the same on every node")
    # not in the root's directory of decisions, whose name differs if nodes mount the root elsewhere
    directory = os.path.join(options.meet or options.plan_dir or "", f"{name}.meeting")
    return Files(directory, trusted, "--meet" if options.meet else first_launch.FLAG)


def _find_endpoint(
    member: Membership, options: Options, line: LaunchLine | None, env: Mapping[str, str]
) -> tuple[str, int, bool]:
    """Return (host, port, whether this node keeps it) of torch's store for the meeting. Raise UsageError."""
    at, keeper = options.meet or options.rendezvous, member.node == 0
    agents = options.worker and env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if not at and agents and "MASTER_ADDR" in env:
        # the store that torchrun keeps for its workers (torch/distributed/rendezvous.py)
        at, keeper = f"{env['MASTER_ADDR']}:{env.get('MASTER_PORT')}", False
    elif not at and line and line.endpoint and line.port.isdecimal():
        at = f"{line.host}:{int(line.port) + 1}"  # beside the port where torchrun's nodes meet
    host, _, port = at.rpartition(":")
    if not host or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 1 << 16:
        text = f"where the nodes meet is unknown: {at!r} is not HOST:PORT"
        hint = "add --meet DIR that all see, or --meet HOST:PORT with a free port of the first node"
        raise UsageError(text, hint)
    return host.removeprefix("[").removesuffix("]"), int(port), keeper
