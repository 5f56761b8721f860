"""Copies of this process as an executor: what a small file takes is Python, which uses one CPU at a time."""

from __future__ import annotations

import gc
import pickle
import socket
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, ParamSpec, TypeVar

from ckpt_tools.storage import stalls, worker_processes

P = ParamSpec("P")
T = TypeVar("T")
_COLLECTED = 50_000
"""Objects that a copy makes before it looks for circles among them: a file makes thousands, without any."""


class _Plain(pickle.Unpickler):
    """Reads plain data alone: a copy looks into files of others, and nothing it says is to be called."""

    def find_class(self, module: str, name: str, /) -> Any:
        """Raises UnpicklingError."""
        raise pickle.UnpicklingError(f"{module}.{name} is no plain data")


class Processes(Executor):
    """Up to ``jobs`` copies of this process, none where it has other threads. A thread for each hands work to
    it; what a copy had that dies ends in an exception.

    Python's own pool waits for a copy that hangs in the kernel when the program ends, and leaves its copies
    behind when the program is killed.
    """

    def __init__(self, jobs: int) -> None:
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._pids, pipes = list[int](), list[socket.socket]()
        stalls.rest()
        for _ in range(jobs if worker_processes.alone() else 0):
            ours, theirs = socket.socketpair()
            pipes.append(ours)
            try:
                with theirs:
                    serve = partial(_serve, theirs)
                    self._pids.append(worker_processes.forked(serve, [pipe.fileno() for pipe in pipes]))
            except OSError:  # as many as the system allows
                pipes.pop().close()
                break
        self._threads = [Thread(target=self._hand_over, args=(pipe,), daemon=True) for pipe in pipes]
        for thread in self._threads:
            thread.start()

    @property
    def width(self) -> int:
        """How many of the copies still work."""
        return sum(thread.is_alive() for thread in self._threads)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        self._work.put((future, partial(fn, *args, **kwargs)))
        return future

    def _hand_over(self, pipe: socket.socket) -> None:
        with pipe, pipe.makefile("rb") as answers:
            while (todo := self._work.get()) is not None:
                future, call = todo
                try:
                    if future.set_running_or_notify_cancel():
                        pipe.sendall(pickle.dumps(call))
                        future.set_result(_Plain(answers).load())
                except Exception as e:  # it is dead
                    future.set_exception(e)
                    return

    def close(self, *, wait: bool) -> None:
        """End the copies. Where all are idle, ``wait`` for their threads, which close their pipes."""
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads if wait else ():
            thread.join()
        for pid in self._pids:
            worker_processes.end(pid)


def _serve(pipe: socket.socket) -> None:
    """Do what comes through the pipe, until its other end is closed."""
    stalls.unlimited()
    gc.freeze()  # what this process was given lives as long as it does
    gc.set_threshold(_COLLECTED)
    with pipe.makefile("rb") as calls:
        while True:
            pipe.sendall(pickle.dumps(pickle.load(calls)()))  # noqa: S301 - our own parent asks
