"""System calls that never return: made where they can be left behind, so that whoever asked goes on without
the answer.

A call that hangs in the kernel cannot be broken off: neither a signal nor another thread ends it. So with a
time limit a file is read by a thread that nobody has to wait for. In such a thread every call is noted while
it is under way; elsewhere each call is handed to one. Without a limit calls are made as they stand.
"""

from __future__ import annotations

import errno
import math
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from contextvars import ContextVar, Token
from threading import TIMEOUT_MAX, current_thread, get_ident, main_thread
from typing import Any, ParamSpec, TypeVar

from ckpt_tools.storage.threads import Threads

P = ParamSpec("P")
T = TypeVar("T")

GRACE = 30.0
"""Seconds after the time limit, or after its own begin, that a single system call has to return."""
MOST = 3
"""Calls that stall before no further one is waited for: a file system that is gone would cost ``GRACE`` for
every file.
"""
_AGAIN = 1.0
"""Seconds after which a call that is overdue is looked at once more: the whole process may have been stopped
meanwhile.
"""


Call = tuple[float, tuple[Any, ...]]
"""When a call began (``time.monotonic()``), and what it was given."""


class Stalled(OSError):
    """A system call has not returned in time; whether it ever will is not known."""

    def __init__(self, path: str = "") -> None:
        super().__init__(
            errno.ETIME,
            f"a system call has not returned {GRACE:g} s after the time limit: its file system hangs",
            path or None,
        )


class Task:
    """What a thread that may be left behind is doing, with those it starts: calls, and since when."""

    def __init__(self, limit: Limit) -> None:
        self.limit, self.ends = limit, limit.ends
        self.calls: dict[int, Call] = {}

    def call(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """``call(*args)``, noted while it is under way."""
        if args and args[0] in self.limit.lost:
            raise Stalled(str(args[0]))
        me = get_ident()
        self.calls[me] = time.monotonic(), args or (getattr(call, "__self__", None),)
        try:
            return call(*args, **kwargs)
        finally:
            self.calls.pop(me, None)

    def overdue(self) -> Call | None:
        """A call that should have returned by now."""
        return next((c for c in list(self.calls.values()) if _overdue(self.ends, c[0])), None)


class Limit:
    """The time limit of one question, ``seconds`` from now."""

    def __init__(self, seconds: float) -> None:
        self.ends = time.monotonic() + seconds
        self.stalled = 0
        self.lost: list[str] = []  # paths that are not asked about again; calls are given lists as well

    def call(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """One system call by a thread that may be left behind. Raises Stalled."""
        return self.away(lambda: watched(call, *args, **kwargs))

    def away(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """``work(*args)``, which makes many calls. Raises Stalled when one of them is overdue."""
        if self.stalled >= MOST:
            raise Stalled
        hand, task = Threads(1), Task(self)
        try:
            future = hand.submit(_work, task, work, args, kwargs)
            self._wait(future, task)
        except BaseException:
            hand.close(wait=False)  # should it ever come back
            raise
        hand.close(wait=True)  # so that this process may make copies of itself
        return future.result()

    def _wait(self, future: Future[Any], task: Task) -> None:
        """Wait for the work. Raises Stalled when the same call is overdue at two looks."""
        seen: Call | None = None
        while not wait([future], min(max(_AGAIN, self.ends + GRACE - time.monotonic()), TIMEOUT_MAX)).done:
            before, seen = seen, task.overdue()
            if seen is not None and seen is before:
                path = _path(seen[1])
                self.stalled += 1
                self.lost.append(path)
                raise Stalled(path)


_guard: ContextVar[Limit | Task | None] = ContextVar("ckpt_tools_limit", default=None)


def _overdue(ends: float, since: float) -> bool:
    return time.monotonic() - max(ends, since) >= GRACE


def _path(args: tuple[Any, ...]) -> str:
    """The path that a call was about: it was given one, the entry of a directory, or a file that is open."""
    what = getattr(args[0], "path", args[0]) if args else ""
    if isinstance(what, int):
        try:
            return os.readlink(f"/proc/self/fd/{what}")
        except OSError:
            return ""
    return what if isinstance(what, str) else ""


def _work(task: Task, work: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
    _guard.set(task)
    return work(*args, **kwargs)


def watched(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """``call(*args)``, one system call. Raises Stalled when there is a time limit and it does not return."""
    guard = _guard.get()
    return call(*args, **kwargs) if guard is None else guard.call(call, *args, **kwargs)


def interruptible(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """``watched``, of a call of foreign code that looks at no signals: Python handles one in the main thread,
    and there Ctrl-C would wait as long as the call does.
    """
    if _guard.get() is None and current_thread() is main_thread():
        with limited(math.inf):
            return watched(call, *args, **kwargs)
    return watched(call, *args, **kwargs)


def away(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """``work(*args)``, which makes many calls. Raises Stalled when one of them is overdue."""
    guard = _guard.get()
    return guard.away(work, *args, **kwargs) if isinstance(guard, Limit) else work(*args, **kwargs)


def overdue(since: float) -> bool:
    """Whether an answer that is awaited since then (``time.monotonic()``) should have come."""
    guard = _guard.get()
    return guard is not None and _overdue(guard.ends, since)


def unlimited() -> None:
    """For a copy of this process: who asked it watches over it, and it makes its calls as they stand."""
    _guard.set(None)


@contextmanager
def limited(seconds: float | None) -> Iterator[None]:
    """A time limit for the calls in this block; None for none."""
    token: Token[Limit | Task | None] = _guard.set(None if seconds is None else Limit(seconds))
    try:
        yield
    finally:
        _guard.reset(token)
