"""Threads for one caller that keep no process from ending: one may hang in a read for ever."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from contextvars import copy_context
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

MOST = 32
"""Threads at most, unless somebody asks for more: memory and its bus bear no more."""


def count_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_jobs() -> int:
    """Threads that read when nobody says how many."""
    return min(MOST, count_cpus())


class Threads(Executor):
    """Up to ``count`` daemon threads, started as there is work for them; each piece of work sees the caller's
    context variables. Where no thread can be started the caller does the work.
    """

    def __init__(self, count: int) -> None:
        self.width = count
        self._work: SimpleQueue[tuple[Future[object], Callable[[], object]] | None] = SimpleQueue()
        self._threads: list[Thread] = []

    def submit(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        context = copy_context()
        self._work.put((future, lambda: context.run(work, *args, **kwargs)))  # type: ignore[arg-type]  # a future of any kind
        if len(self._threads) < self.width:
            thread = Thread(target=self._serve, daemon=True, name=f"ckpt-work-{len(self._threads)}")
            try:
                thread.start()
            except RuntimeError:  # a process that ends, or has as many as it may, starts none
                if not self._threads:
                    self._work.put(None)
                    self._serve()
            else:
                self._threads.append(thread)
        return future

    def _serve(self) -> None:
        while (todo := self._work.get()) is not None:
            future, work = todo
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as e:  # whoever asks for the result raises it
                    future.set_exception(e)
            del todo, future, work

    def close(self, *, wait: bool) -> None:
        """Drop what has not begun; with ``wait`` until what is under way is finished."""
        while True:
            try:
                todo = self._work.get_nowait()
            except Empty:
                break
            if todo is not None:
                todo[0].cancel()
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads if wait else ():
            thread.join()


def do_each(work: Callable[[S], T], items: Iterable[S], count: int) -> list[T]:
    """What some work makes of each, up to ``count`` of them at a time. Raises the first error of it."""
    pool = Threads(count)
    try:
        return [future.result() for future in [pool.submit(work, item) for item in items]]
    finally:
        pool.close(wait=False)


class Rate:
    """Bytes per second that all threads share: whoever has read some waits until their time is over.

    Time in which nobody read is not saved up. ``clock`` and ``sleep`` are those of ``time``.
    """

    def __init__(
        self,
        limit: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.limit, self._clock, self._sleep = limit, clock, sleep
        self._paid = clock()  # until then the bytes that were read are paid for
        self._lock = Lock()

    def took(self, n: int) -> None:
        with self._lock:
            now = self._clock()
            self._paid = max(self._paid, now) + n / self.limit
            wait = self._paid - now
        self._sleep(wait)
