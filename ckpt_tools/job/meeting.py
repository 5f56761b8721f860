"""Nodes of one job exchange values and come to one conclusion, through files that all see or through torch's TCPStore. All get it, or all fail."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Protocol

from ckpt_tools.errors import BY_EXIT_CODE, CannotLook, CkptError, UsageError
from ckpt_tools.job.files import safe, write

Value = dict[str, Any]
_POLL = 0.02


class Board(Protocol):
    """Where values are put up for the others: a key holds one value, a later one replaces it."""

    def put(self, key: str, value: bytes) -> None: ...
    def get(self, key: str) -> bytes | None: ...
    def drop(self, prefix: str) -> None:
        """Forget the keys that begin so; a board that ends with its job may keep them."""
        ...


class Files:
    """A board in a directory that every node sees: one file per key, replaced by rename."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        try:
            os.makedirs(directory, exist_ok=True)
        except OSError as e:
            raise CannotLook(f"{directory} cannot be made: {e.strerror}", "name a directory that every node can write with --plan-dir") from e

    def put(self, key: str, value: bytes) -> None:
        write(os.path.join(self.directory, safe(key)), value)

    def get(self, key: str) -> bytes | None:
        try:
            with open(os.path.join(self.directory, safe(key)), "rb") as f:
                return f.read()
        except FileNotFoundError:
            return None
        except OSError as e:
            raise CannotLook(f"{self.directory} cannot be read: {e.strerror}", "is the file system of --plan-dir still there?") from e

    def drop(self, prefix: str) -> None:
        with suppress(OSError):
            for name in os.listdir(self.directory):
                if name.startswith(prefix):
                    os.unlink(os.path.join(self.directory, name))


class Store:
    """A board in torch's TCPStore; ``host`` of the node that keeps it, ``keeper`` on that node itself."""

    def __init__(self, host: str, port: int, keeper: bool, timeout: float, prefix: str) -> None:
        try:
            import torch.distributed

            dist: Any = torch.distributed  # its types say nothing of the stores
        except ImportError as e:
            raise UsageError(
                "--agree needs torch, or a directory that all nodes share",
                "pip install 'ckpt-tools[torch]', or say --plan-dir DIR on a shared file system",
            ) from e
        try:
            tcp = dist.TCPStore(host, port, None, keeper, timedelta(seconds=timeout), wait_for_workers=False)
        except Exception as e:  # torch raises classes of its own, which differ between versions
            what = f"could not be opened: {_first_line(e)}" if keeper else f"did not answer within {timeout:g} s: {_first_line(e)}"
            raise CannotLook(
                f"the store for the agreement at {host}:{port} {what}", "check that the first node runs, or say --rendezvous HOST:PORT"
            ) from e
        self.store: Any = dist.PrefixStore(f"ckpt/{prefix}", tcp)

    def put(self, key: str, value: bytes) -> None:
        try:
            self.store.set(key, value)
        except Exception as e:
            raise CannotLook(f"the first node does not answer any more: {_first_line(e)}", "start again when all nodes are up") from e

    def get(self, key: str) -> bytes | None:
        try:
            return bytes(self.store.get(key)) if self.store.check([key]) else None
        except Exception as e:
            raise CannotLook(f"the first node does not answer any more: {_first_line(e)}", "start again when all nodes are up") from e

    def drop(self, prefix: str) -> None:  # noqa: ARG002 - a Board has it
        return  # the store ends with the launcher that keeps it


def _first_line(e: Exception) -> str:
    return str(e).partition("\n")[0][:200]


class Meeting:
    """``me`` of ``size`` nodes, the first of which concludes. Every wait ends after ``timeout`` seconds with CannotLook.

    Nobody trusts what an earlier start left on the board: each process brings a number that was never used, and a session is the set of them.
    """

    def __init__(self, board: Board, me: int, size: int, timeout: float) -> None:
        self.board, self.me, self.size, self.timeout = board, me, size, timeout
        self.session, self.round = "", 0

    def _waiting(self, what: Callable[[], str]) -> Iterator[None]:
        end = time.monotonic() + self.timeout
        while True:
            yield
            if time.monotonic() >= end:
                raise CannotLook(f"no agreement within {self.timeout:g} s: {what()}", "see why on that node, or wait longer with --timeout")
            time.sleep(_POLL)

    def join(self) -> None:
        """Wait until all are there. The first offers a session to those it sees; who is not in it (an earlier start was) makes it offer another."""
        nonce = secrets.token_hex(8)
        self.board.put(f"join.{self.me}", nonce.encode())
        if self.me == 0:
            self._gather_members(nonce)
            return
        seen = ""
        for _ in self._waiting(lambda: f"node {self.me} did not hear from the first node"):
            offer = self._read("offer")
            if offer and offer["members"][self.me : self.me + 1] == [nonce]:
                if offer["session"] != seen:
                    seen = offer["session"]
                    self.board.put(f"{seen}.ack.{self.me}", b"1")
                if self.board.get(f"{seen}.go"):
                    self.session = seen
                    return

    def _gather_members(self, nonce: str) -> None:
        offered: list[str] = []
        session = ""
        absent: list[int] = []
        for _ in self._waiting(lambda: f"{_nodes(absent)} did not come"):
            members = [nonce if i == 0 else (self.board.get(f"join.{i}") or b"").decode("ascii", "replace") for i in range(self.size)]
            absent[:] = [i for i, n in enumerate(members) if not n]
            if absent:
                continue
            if members != offered:
                offered, session = members, secrets.token_hex(8)
                self.board.put("offer", json.dumps({"session": session, "members": members}).encode())
            absent[:] = [i for i in range(1, self.size) if not self.board.get(f"{session}.ack.{i}")]
            if not absent:
                self.board.put(f"{session}.go", b"1")
                self.session = session
                return

    def exchange(self, value: Value, conclude: Callable[[Sequence[Value]], Value]) -> Value:
        """Every node's value to the first, its conclusion to every node. What one node raised (``failure``), or concluding raises, is raised on all."""
        self.round += 1
        key = f"{self.session}.{self.round}"
        if self.me:
            self.board.put(f"{key}.{self.me}", json.dumps(value).encode())
            for _ in self._waiting(lambda: f"node {self.me} did not hear from the first node"):
                answer = self._read(f"{key}.all")
                if answer is not None:
                    return _raised(answer)
        values: list[Value] = []
        try:
            values = self._gather(key, value)
            for i, v in enumerate(values):
                if "error" in v:
                    raise BY_EXIT_CODE.get(v["exit_code"], CannotLook)(f"node {i}: {v['error']}", v["hint"])
            answer = conclude(values)
        except CkptError as error:
            self.board.put(f"{key}.all", json.dumps(failure(error)).encode())
            raise
        self.board.put(f"{key}.all", json.dumps(answer).encode())
        return answer

    def abandon(self, error: CkptError) -> None:
        """Let the others fail at the next exchange instead of waiting for this node."""
        name = f"{self.me}" if self.me else "all"
        with suppress(CannotLook):
            self.board.put(f"{self.session}.{self.round + 1}.{name}", json.dumps(failure(error)).encode())

    def _gather(self, key: str, mine: Value) -> list[Value]:
        found: dict[int, Value] = {0: mine}
        for _ in self._waiting(lambda: f"{_nodes([i for i in range(self.size) if i not in found])} did not answer"):
            for i in range(self.size):
                if i not in found and (value := self._read(f"{key}.{i}")) is not None:
                    found[i] = value
            if len(found) == self.size:
                break
        return [found[i] for i in range(self.size)]

    def _read(self, key: str) -> Value | None:
        data = self.board.get(key)
        if data is None:
            return None
        value = json.loads(data)
        return value if isinstance(value, dict) else None

    def close(self) -> None:
        """Say good-bye; the first node keeps the board until the others have read everything."""
        if self.me:
            self.board.put(f"{self.session}.bye.{self.me}", b"1")
            return
        end = time.monotonic() + min(5.0, self.timeout)
        while time.monotonic() < end and not all(self.board.get(f"{self.session}.bye.{i}") for i in range(1, self.size)):
            time.sleep(_POLL)
        self.board.drop(f"{self.session}.")


@contextmanager
def meeting(board: Board, me: int, size: int, timeout: float) -> Iterator[Meeting]:
    """A meeting that all have joined."""
    m = Meeting(board, me, size, timeout)
    m.join()
    try:
        yield m
    finally:
        m.close()


def failure(error: CkptError) -> Value:
    """What a node puts up instead of its value when it cannot go on."""
    return {"error": str(error), "hint": error.hint, "exit_code": error.exit_code}


def _raised(answer: Value) -> Value:
    if "error" in answer:
        raise BY_EXIT_CODE.get(answer["exit_code"], CannotLook)(answer["error"], answer["hint"])
    return answer


def _nodes(numbers: Sequence[int]) -> str:
    names = ", ".join(map(str, numbers[:8])) + (" …" if len(numbers) > 8 else "")
    return f"node {names}" if len(numbers) == 1 else f"nodes {names}"
