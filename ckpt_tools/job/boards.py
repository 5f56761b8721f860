"""Where the nodes of a job put values up for each other: files that all see, or torch's TCPStore."""

from __future__ import annotations

import errno
import os
import time
import weakref
from contextlib import ExitStack, suppress
from datetime import timedelta
from typing import Any, Protocol

from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.job.files import write
from ckpt_tools.job.hosts import listener, loopback
from ckpt_tools.job.lines import Lines
from ckpt_tools.job.liveness import Locks, Watch
from ckpt_tools.job.secret import FLAG, NotOurs, Seal
from ckpt_tools.planning import decision_log
from ckpt_tools.planning.decision_log import safe
from ckpt_tools.storage import trust
from ckpt_tools.storage.trust import OURS, Trust

_DAY = 86400
_TRIES = 3
_MOST = (8 << 20) - 64
"""Bytes that torch's store takes (torch/csrc/distributed/c10d/TCPStoreLibUvBackend.cpp, MAX_PAYLOAD_LEN): at
more it drops the connection.
"""


class Board(Protocol):
    """Where values are put up for the others: a key holds one value, a later one replaces it. ``keeper``: it
    ends with this process.
    """

    keeper: bool

    def put(self, key: str, value: bytes) -> None: ...
    def get(self, key: str) -> bytes | None: ...
    def drop(self, prefix: str) -> None:
        """Forget the keys that begin so; a board that ends with its job may keep them."""
        ...

    def watch(self, first: bool) -> Watch:
        """What tells whether the processes of the other nodes still run; ``first`` for the first node."""
        ...


class Files:
    """A board in a directory that every node sees: one file per key, replaced by rename."""

    keeper = False

    def __init__(self, directory: str, trusted: Trust = OURS) -> None:
        self.directory, self.trusted = directory, trusted
        with ExitStack() as files:
            try:
                trust.make(directory, trusted)
                with trust.named(decision_log.FLAG):
                    self.place = files.enter_context(trust.place(directory, trusted))
            except OSError as e:
                hint = "name a directory that every node can write with --plan-dir"
                raise CannotLook(f"{directory} cannot be made: {e.strerror}", hint) from e
            weakref.finalize(self, files.pop_all().close)

    def put(self, key: str, value: bytes) -> None:
        write(os.path.join(self.directory, safe(key)), value, self.trusted)

    def get(self, key: str) -> bytes | None:
        path = os.path.join(self.directory, safe(key))
        for tries in range(_TRIES):
            try:
                with trust.named(decision_log.FLAG):
                    return self.place.read(safe(key), decision_log.MOST)
            except FileNotFoundError:
                return None
            except OSError as e:
                if (
                    e.errno != errno.ESTALE or tries == _TRIES - 1
                ):  # NFS says so of a file that was replaced while we opened it
                    raise CannotLook(
                        f"{path} cannot be read: {e.strerror}",
                        "is the file system of --plan-dir still there?",
                    ) from e
        return None

    def drop(self, prefix: str) -> None:
        """Forget a session, and what killed nodes left a day ago."""
        with suppress(OSError):
            for entry in os.scandir(self.directory):
                with suppress(OSError):
                    if entry.name.startswith(prefix) or (
                        "." in entry.name and time.time() - entry.stat().st_mtime > _DAY
                    ):
                        os.unlink(entry.path)

    def watch(self, first: bool) -> Watch:  # noqa: ARG002 - a Board has it
        return Locks(self.directory)


class Store:
    """A board in torch's TCPStore; ``host`` of the node that keeps it, ``keeper`` on that node itself.

    Whoever reaches its port can read and replace what is in it, so every value is sealed and nothing is read
    that is not.
    """

    def __init__(
        self, host: str, port: int, keeper: bool, *, timeout: float, prefix: str, seal: Seal
    ) -> None:
        try:
            import torch.distributed

            dist: Any = torch.distributed  # its types say nothing of the stores
        except ImportError as e:
            raise UsageError(
                "--agree needs torch, or a directory that all nodes share",
                "pip install 'ckpt-tools[torch]', or say --plan-dir DIR on a shared file system",
            ) from e
        self.host, self.port, self.keeper, self.seal = host, port, keeper, seal
        try:
            self.store: Any = dist.PrefixStore(f"ckpt/{prefix}", self._tcp(dist, timeout))
        except Exception as e:  # torch raises classes of its own, which differ between versions
            what = (
                f"could not be opened: {_first_line(e)}"
                if keeper
                else f"did not answer within {timeout:g} s: {_first_line(e)}"
            )
            raise CannotLook(
                f"the store for the agreement at {host}:{port} {what}",
                "check that the first node runs, or say --rendezvous HOST:PORT",
            ) from e

    def _tcp(self, dist: Any, timeout: float) -> Any:
        options: dict[str, Any] = {"wait_for_workers": False}
        if self.keeper and loopback(self.host):  # torch's own would listen on every address of this machine
            options["master_listen_fd"] = listener(self.host, self.port).detach()
        return dist.TCPStore(self.host, self.port, None, self.keeper, timedelta(seconds=timeout), **options)

    def put(self, key: str, value: bytes) -> None:
        sealed = self.seal.closed(key, value)
        if len(sealed) > _MOST:
            raise CannotLook(
                f"the message of this node has {len(sealed):,} bytes, and torch's store takes {_MOST:,}",
                "say --plan-dir DIR on a shared file system",
            )
        try:
            self.store.set(key, sealed)
        except Exception as e:
            raise CannotLook(
                f"the first node does not answer any more: {_first_line(e)}",
                "start again when all nodes are up",
            ) from e

    def get(self, key: str) -> bytes | None:
        """What a node of this job has put up. Raises UsageError for what anybody else has."""
        try:
            found = bytes(self.store.get(key)) if self.store.check([key]) else None
        except Exception as e:
            raise CannotLook(
                f"the first node does not answer any more: {_first_line(e)}",
                "start again when all nodes are up",
            ) from e
        try:
            return None if found is None else self.seal.opened(key, found)
        except NotOurs:
            raise UsageError(
                f"the store at {self.host}:{self.port} holds a value ({key}) of another secret, or not of"
                " this job",
                f"give every node the same {FLAG}; where they have it, somebody else writes to that port",
            ) from None

    def drop(self, prefix: str) -> None:  # noqa: ARG002 - a Board has it
        return  # the store ends with the launcher that keeps it

    def watch(self, first: bool) -> Watch:
        return Lines(self.host, self.port, self.seal, listen=first)


def _first_line(e: Exception) -> str:
    return str(e).partition("\n")[0][:200]
