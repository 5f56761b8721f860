"""Many files read by an engine: each by one of its workers, small ones together in one call. The reports are
put together here.
"""

from __future__ import annotations

import pickle
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct, field

from ckpt_tools.errors import CannotLook
from ckpt_tools.formats import Claim
from ckpt_tools.model.report import Level
from ckpt_tools.reading import engines
from ckpt_tools.reading.engines import Engine
from ckpt_tools.reading.reader import Reader
from ckpt_tools.reading.worker import work
from ckpt_tools.settings.plugins import tool_version
from ckpt_tools.storage import Stopped, count, stalls

AHEAD = 3
"""Batches handed out per call that runs at once: a worker that is done finds its next one waiting."""
BATCH = 256 * 1024 * 1024
"""Bytes of a batch: a tenth of a second on a fast node, while handing one out takes milliseconds here."""
FILES, EACH = 256, 32
"""Files in a batch at most, and how many batches each worker gets at least, so that all end at about the same
time.
"""
_HEADER = 64 * 1024
"""What the structure of a file counts for."""
_BEAT = 0.1
"""Seconds between two looks at whether somebody wants to stop."""
Came = TypeVar("Came")


class Request(NamedTuple):
    """A file to read to ``level``; ``size`` and ``mtime_ns`` as its directory showed them."""

    path: str
    size: int
    mtime_ns: int
    level: Level
    expect: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()


class Batch(Struct):
    """Files that one call reads, and what its worker is told of each."""

    begun_ns: int = field(default_factory=time.time_ns)
    requests: list[Request] = field(default_factory=list)
    sent: list[tuple[str, bytes]] = field(default_factory=list)
    size: int = 0


class Scheduler(ABC, Generic[Came]):
    """Hands out files to an engine, until it is ``over``. What comes of one is for those to say who want it:
    ``sent`` is the kind of work and what its worker is told, ``answered`` what a worker on a host found (None
    for both: it is better read here), ``unknown`` that nobody lived to say it.
    """

    def __init__(self, engine: Engine, reader: Reader, over: Callable[[], bool] = lambda: False) -> None:
        self.engine, self.reader, self.over = engine, reader, over
        self._out: dict[Future[Any], Batch] = {}
        self._heard = time.monotonic()

    @abstractmethod
    def sent(self, request: Request) -> tuple[Any, ...] | None: ...

    @abstractmethod
    def answered(self, request: Request, begun_ns: int, host: str, answer: Sequence[Any]) -> Came | None: ...

    @abstractmethod
    def unknown(self, request: Request, why: str) -> Came: ...

    def count(self, request: Request, bytes_read: int) -> None:
        """Take note that a worker has read so much of a file."""
        count(bytes_read)
        self.reader.opened(request.path)
        self.reader.progress(bytes_read)

    def read(self, requests: list[Request]) -> Iterator[tuple[Request, Came]]:
        """Yield every file that could be read so, in the order in which they are done. What is left out is to
        be read here. The list is emptied: a million take as much memory as their reports. Raises CannotLook
        when an engine elsewhere is gone, and Stopped when workers here are to be waited for no longer.
        """
        self._heard = time.monotonic()
        try:
            for batch in self._batches(requests):
                if self.over():
                    break
                self._submit(batch)
                while len(self._out) >= AHEAD * max(2, self.engine.width()):
                    yield from self._collect()
            while self._out:
                yield from self._collect()
        finally:
            for future in self._out:
                future.cancel()
            self._out.clear()

    def _batches(self, requests: list[Request]) -> Iterator[Batch]:
        files = max(1, min(FILES, len(requests) // (EACH * max(2, self.engine.width()))))
        requests.reverse()
        batch = Batch()
        while requests:
            request = requests.pop()
            if (sent := self._sent(request)) is None:
                continue
            batch.requests.append(request)
            batch.sent.append(sent)
            batch.size += _HEADER if request.level is Level.STRUCTURE else max(request.size, 0)
            if batch.size >= BATCH or len(batch.sent) >= files:
                yield batch
                batch = Batch()
        if batch.sent:
            yield batch

    def _sent(self, request: Request) -> tuple[str, bytes] | None:
        """Return the kind of work and what a worker is told; None of what no other process may see."""
        if self.reader.options.explain or (self.reader.key is not None and not self.engine.here):
            return None
        told = self.sent(request)
        try:
            return None if told is None else (told[0], pickle.dumps(told[1:]))
        except (pickle.PicklingError, AttributeError, TypeError):  # it holds what is not for other processes
            return None

    def _submit(self, batch: Batch) -> None:
        try:
            self._out[self.engine.executor.submit(work, tool_version(), tuple(batch.sent))] = batch
        except Exception as e:
            raise self.engine.failed(e) or e from e

    def _collect(self) -> Iterator[tuple[Request, Came]]:
        """Wait for some batch and yield what it found."""
        done, _ = wait(self._out, timeout=_BEAT, return_when=FIRST_COMPLETED)
        for future in done:
            yield from self._take(self._out.pop(future), future)
        self.reader.progress(0)
        here, width, now = self.engine.here, self.engine.width(), time.monotonic()
        if done or (width and not here):
            self._heard = now
        if here and (self.over() or not width or stalls.overdue(self._heard)):
            raise Stopped
        if not here and now - self._heard > engines.GRACE:
            raise CannotLook(
                f"{self.engine.name} has had no worker for {engines.GRACE:.0f} s",
                "start workers, and look into their logs for why they end",
            )

    def _take(self, batch: Batch, future: Future[Any]) -> Iterator[tuple[Request, Came]]:
        try:
            version, host, defect, answers = future.result()
        except (Exception, CancelledError) as e:
            if self.engine.here:
                return  # it is read here
            if (gone := self.engine.failed(e)) is not None:
                raise gone from e
            why = "every worker that read it died: look into their logs, for memory and for the file system"
            yield from ((request, self.unknown(request, why)) for request in batch.requests)
            return
        if version != tool_version():
            raise CannotLook(
                f"the worker on {host} has ckpt-tools {version}, this is {tool_version()}",
                "install the same version, and the same plug-ins, on all machines",
            )
        if defect and self.engine.here:
            return
        if defect:
            raise CannotLook(
                f"the worker on {host} failed: {defect}",
                "if it has enough memory, this is a bug in ckpt: please report it",
            ) from None
        for request, answer in zip(batch.requests, answers, strict=True):
            if (came := self.answered(request, batch.begun_ns, host, answer)) is not None:
                yield request, came


def unseen(why: str, host: str) -> str:
    return f"{why} on {host}, while this machine can open it: mount its file system there at the same place"


def other(host: str) -> str:
    return f"on {host} there is another file of this name: mount the same file system there"
