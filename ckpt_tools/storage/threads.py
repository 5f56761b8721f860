"""Daemon threads for one caller: they never keep the process from ending, though one may hang in a read."""

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
"""The default number of threads at most: memory and its bus bear no more."""


def count_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_jobs() -> int:
    """Return the number of reading threads if no option sets it."""
    return min(MOST, count_cpus())


class Threads(Executor):
    """An executor of up to ``count`` daemon threads, started as work comes; work sees the caller's context
    variables. If no thread can be started, the caller's thread does the work.
    """

    def __init__(self, count: int) -> None:
        self.width = count
        self._work: SimpleQueue[tuple[Future[object], Callable[[], object]] | None] = SimpleQueue()
        self._threads: list[Thread] = []

    def submit(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        context = copy_context()
        self._work.put((future, lambda: context.run(work, *args, **kwargs)))  # type: ignore[arg-type]  # a future of any type
        if len(self._threads) < self.width:
            thread = Thread(target=self._run_tasks, daemon=True, name=f"ckpt-work-{len(self._threads)}")
            try:
                thread.start()
            except RuntimeError:  # the process is ending, or has as many threads as it may
                if not self._threads:
                    self._work.put(None)
                    self._run_tasks()
            else:
                self._threads.append(thread)
        return future

    def _run_tasks(self) -> None:
        while (task := self._work.get()) is not None:
            future, work = task
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as e:  # whoever asks for the result raises it
                    future.set_exception(e)
            del task, future, work

    def close(self, *, wait: bool) -> None:
        """Cancel the work that has not begun; with ``wait``, wait until running work is finished."""
        while True:
            try:
                task = self._work.get_nowait()
            except Empty:
                break
            if task is not None:
                task[0].cancel()
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads if wait else ():
            thread.join()


def do_each(work: Callable[[S], T], items: Iterable[S], count: int) -> list[T]:
    """Return ``work(item)`` for each item in order, up to ``count`` at a time. Raise its first error."""
    pool = Threads(count)
    try:
        return [future.result() for future in [pool.submit(work, item) for item in items]]
    finally:
        pool.close(wait=False)


class Rate:
    """A limit in bytes per second for all threads together: each read is followed by a sleep that keeps to
    it.

    Idle time is not saved up. ``clock`` and ``sleep`` default to those of ``time``.
    """

    def __init__(
        self,
        limit: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.limit, self._clock, self._sleep = limit, clock, sleep
        self._paid_until = clock()  # the time at which all bytes read so far are within the limit
        self._lock = Lock()

    def took(self, n: int) -> None:
        """Note ``n`` bytes as read, and sleep until they are within the limit."""
        with self._lock:
            now = self._clock()
            self._paid_until = max(self._paid_until, now) + n / self.limit
            wait = self._paid_until - now
        self._sleep(wait)
