"""Threads that keep no process from ending, and system calls that never return: each runs in such a thread,
which can be left behind, so that the caller goes on without its result. Calls and requests that fail for a
moment are made again before an error counts.

A call that hangs in the kernel cannot be broken off: neither a signal nor another thread ends it. So under a
time limit a file is read by a thread that nobody has to wait for, and each call in such a thread is noted
while it runs; a call from any other thread is handed to one. Without a limit calls are made directly.
"""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, wait
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from queue import Empty, SimpleQueue
from threading import TIMEOUT_MAX, Lock, Thread, current_thread, get_ident, main_thread
from typing import Any, ParamSpec, TypeVar

S = TypeVar("S")
MOST_THREADS = 32
"""The default number of threads at most: memory and its bus bear no more."""


def count_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_jobs() -> int:
    """Return the number of reading threads if no option sets it."""
    return min(MOST_THREADS, count_cpus())


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
        with suppress(Empty):
            while True:
                if (task := self._work.get_nowait()) is not None:
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
    """A limit in bytes per second for all threads together, kept by sleeps; idle time is not saved up."""

    def __init__(self, limit: float) -> None:
        self.limit, self._lock = limit, Lock()
        self._paid_until = time.monotonic()  # the time at which all bytes read so far are within the limit

    def took(self, n: int) -> None:
        """Note ``n`` bytes as read, and sleep until they are within the limit."""
        with self._lock:
            now = time.monotonic()
            self._paid_until = max(self._paid_until, now) + n / self.limit
            wait = self._paid_until - now
        time.sleep(wait)


P = ParamSpec("P")
T = TypeVar("T")

GRACE = 30.0
"""Seconds that a system call has to return, from its begin or the time limit, whichever is later."""
MOST = 3
"""Stalled calls after which no call is waited for: each file of a dead file system would cost ``GRACE``."""
_AGAIN = 1.0
"""Seconds until an overdue call is looked at again: the whole process may have been stopped meanwhile."""

Call = tuple[float, tuple[Any, ...]]
"""The time at which a call began (``time.monotonic()``), and its arguments."""


class Stalled(OSError):
    """A system call has not returned in time; whether it ever will is unknown."""

    def __init__(self, path: str = "") -> None:
        super().__init__(
            errno.ETIME,
            f"a system call has not returned {GRACE:g} s after the time limit: its file system hangs",
            path or None,
        )


class Limit:
    """One time limit, ``seconds`` from now, for all calls of a question."""

    def __init__(self, seconds: float) -> None:
        self.ends = time.monotonic() + seconds
        self.stalled = 0
        self.lost: list[str] = []  # paths not to be tried again; no set: arguments may be lists

    def is_overdue(self, since: float) -> bool:
        return time.monotonic() - max(self.ends, since) >= GRACE

    def away(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return ``work(*args)`` from a thread that may be left behind. Raise Stalled if one of its system
        calls, or of a thread that it starts, is overdue.
        """
        if self.stalled >= MOST:
            raise Stalled
        thread, calls = Threads(1), dict[int, Call]()

        def begin() -> T:
            _calls.set(calls)
            return work(*args, **kwargs)

        try:
            future = thread.submit(begin)
            self._wait(future, calls)
        except BaseException:
            thread.close(wait=False)  # the thread ends if its call ever returns
            raise
        thread.close(wait=True)  # no thread is left: this process may fork
        return future.result()

    def _wait(self, future: Future[Any], calls: dict[int, Call]) -> None:
        """Wait for ``future``. Raise Stalled if the same call of ``calls`` is overdue at two looks."""
        seen: Call | None = None
        while not wait([future], min(max(_AGAIN, self.ends + GRACE - time.monotonic()), TIMEOUT_MAX)).done:
            before, seen = seen, next((c for c in list(calls.values()) if self.is_overdue(c[0])), None)
            if seen is not None and seen is before:
                path = _path_of(seen[1])
                self.stalled += 1
                self.lost.append(path)
                raise Stalled(path)


_limit: ContextVar[Limit | None] = ContextVar("ckpt_tools_limit", default=None)
_calls: ContextVar[dict[int, Call] | None] = ContextVar("ckpt_tools_calls", default=None)
"""The calls under way in a thread that may be left behind, by thread id; None in other threads."""


def _path_of(args: tuple[Any, ...]) -> str:
    """Return the path that a call is about, or ""; its first argument is a path, entry or descriptor."""
    what = getattr(args[0], "path", args[0]) if args else ""
    if isinstance(what, int):
        try:
            return os.readlink(f"/proc/self/fd/{what}")
        except OSError:
            return ""
    return what if isinstance(what, str) else ""


def watch_call(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return ``call(*args)``, one system call. Raise Stalled if it is not back within the time limit."""
    limit, calls = _limit.get(), _calls.get()
    if limit is None:
        return call(*args, **kwargs)
    if calls is None:
        return limit.away(watch_call, call, *args, **kwargs)  # type: ignore[arg-type]  # watch_call takes any
    if args and args[0] in limit.lost:
        raise Stalled(str(args[0]))
    me = get_ident()
    calls[me] = time.monotonic(), args or (getattr(call, "__self__", None),)
    try:
        return call(*args, **kwargs)
    finally:
        calls.pop(me, None)


TRANSIENT = frozenset({errno.ESTALE, errno.EINTR, errno.ETIMEDOUT, errno.ECONNRESET})
"""Errors worth another attempt: of a network file system while a server restarts or a handle is renewed, and
ECONNRESET of a store's answer that broke off.
"""
PAUSES = (0.001, 0.01, 0.05)
"""Seconds before each further system call: long enough to renew a handle, too short to be felt."""
STORE_PAUSES = (0.1, 0.4, 1.6)
"""Seconds before each further request whose answer broke off. Requests that a store refused, or that never
reached it, obstore itself repeats (RetryConfig: ten times, with growing and random pauses).
"""
pause: Callable[[float], None] = time.sleep


def wait_for_another(e: OSError, pauses: Iterator[float]) -> None:
    """Wait for the next of ``pauses``. Raise ``e`` if it is not ``TRANSIENT``, or no pause is left."""
    seconds = next(pauses, None) if e.errno in TRANSIENT else None
    if seconds is None:
        raise e
    pause(seconds * random.uniform(0.5, 1.5))  # noqa: S311 - not to be in step with others


def ask_again(ask: Callable[[], T], each: Sequence[float] = STORE_PAUSES) -> T:
    """Return ``ask()``, repeated after each pause of ``each`` on a ``TRANSIENT`` error. Raise OSError."""
    pauses = iter(each)
    while True:
        try:
            return ask()
        except OSError as e:
            wait_for_another(e, pauses)


def retry_call(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return ``call(*args)``, one system call, repeated up to three times on a ``TRANSIENT`` error."""
    return ask_again(lambda: watch_call(call, *args, **kwargs), PAUSES)


def interruptible(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return ``watch_call(call)`` for foreign code that ignores signals. In the main thread Python could not
    handle Ctrl-C before the call ends, so another thread makes it.
    """
    if _limit.get() is None and current_thread() is main_thread():
        return do_each(lambda _: call(*args, **kwargs), [None], 1)[0]
    return watch_call(call, *args, **kwargs)


def run_aside(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return ``work(*args)``, which makes many system calls. Raise Stalled if one of them is overdue."""
    limit = _limit.get()
    if limit is None or _calls.get() is not None:
        return work(*args, **kwargs)
    return limit.away(work, *args, **kwargs)


def is_overdue(since: float) -> bool:
    """Return True if an answer awaited since ``since`` (``time.monotonic()``) should have come by now."""
    limit = _limit.get()
    return limit is not None and limit.is_overdue(since)


def drop_limit() -> None:
    """Drop the limit in a forked copy of this process: its parent watches it, and it makes calls directly."""
    _limit.set(None)


@contextmanager
def limit_time(seconds: float | None) -> Iterator[None]:
    """Set a time limit in ``seconds`` for the calls in this block; None sets no limit."""
    limit, calls = _limit.set(None if seconds is None else Limit(seconds)), _calls.set(None)
    try:
        yield
    finally:
        _limit.reset(limit)
        _calls.reset(calls)
