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
from contextvars import ContextVar
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


class Limit:
    """The time limit of one question, ``seconds`` from now."""

    def __init__(self, seconds: float) -> None:
        self.ends = time.monotonic() + seconds
        self.stalled = 0
        self.lost: list[str] = []  # paths that are not asked about again; calls are given lists as well

    def is_overdue(self, since: float) -> bool:
        return time.monotonic() - max(self.ends, since) >= GRACE

    def away(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """``work(*args)`` by a thread that may be left behind. Raises Stalled when a call of it, or of a
        thread that it starts, is overdue.
        """
        if self.stalled >= MOST:
            raise Stalled
        hand, calls = Threads(1), dict[int, Call]()

        def begin() -> T:
            _calls.set(calls)
            return work(*args, **kwargs)

        try:
            future = hand.submit(begin)
            self._wait(future, calls)
        except BaseException:
            hand.close(wait=False)  # should it ever come back
            raise
        hand.close(wait=True)  # so that this process may make copies of itself
        return future.result()

    def _wait(self, future: Future[Any], calls: dict[int, Call]) -> None:
        """Wait for the work. Raises Stalled when the same call is overdue at two looks."""
        seen: Call | None = None
        while not wait([future], min(max(_AGAIN, self.ends + GRACE - time.monotonic()), TIMEOUT_MAX)).done:
            before, seen = seen, next((c for c in list(calls.values()) if self.is_overdue(c[0])), None)
            if seen is not None and seen is before:
                path = _path(seen[1])
                self.stalled += 1
                self.lost.append(path)
                raise Stalled(path)


_limit: ContextVar[Limit | None] = ContextVar("ckpt_tools_limit", default=None)
_calls: ContextVar[dict[int, Call] | None] = ContextVar("ckpt_tools_calls", default=None)
"""Those under way in a thread that may be left behind, by thread; None elsewhere."""


def _path(args: tuple[Any, ...]) -> str:
    """The path that a call was about: it was given one, the entry of a directory, or a file that is open."""
    what = getattr(args[0], "path", args[0]) if args else ""
    if isinstance(what, int):
        try:
            return os.readlink(f"/proc/self/fd/{what}")
        except OSError:
            return ""
    return what if isinstance(what, str) else ""


def watched(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """``call(*args)``, one system call. Raises Stalled when there is a time limit and it does not return."""
    limit, calls = _limit.get(), _calls.get()
    if limit is None:
        return call(*args, **kwargs)
    if calls is None:
        return limit.away(watched, call, *args, **kwargs)  # type: ignore[arg-type]  # which takes any call
    if args and args[0] in limit.lost:
        raise Stalled(str(args[0]))
    me = get_ident()
    calls[me] = time.monotonic(), args or (getattr(call, "__self__", None),)
    try:
        return call(*args, **kwargs)
    finally:
        calls.pop(me, None)


def interruptible(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """``watched``, of a call of foreign code that looks at no signals: Python handles one in the main thread,
    and there Ctrl-C would wait as long as the call does.
    """
    if _limit.get() is None and current_thread() is main_thread():
        with limited(math.inf):
            return watched(call, *args, **kwargs)
    return watched(call, *args, **kwargs)


def away(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """``work(*args)``, which makes many calls. Raises Stalled when one of them is overdue."""
    limit = _limit.get()
    return (
        work(*args, **kwargs)
        if limit is None or _calls.get() is not None
        else limit.away(work, *args, **kwargs)
    )


def overdue(since: float) -> bool:
    """Whether an answer that is awaited since then (``time.monotonic()``) should have come."""
    limit = _limit.get()
    return limit is not None and limit.is_overdue(since)


def unlimited() -> None:
    """For a copy of this process: who asked it watches over it, and it makes its calls as they stand."""
    _limit.set(None)


@contextmanager
def limited(seconds: float | None) -> Iterator[None]:
    """A time limit for the calls in this block; None for none."""
    limit, calls = _limit.set(None if seconds is None else Limit(seconds)), _calls.set(None)
    try:
        yield
    finally:
        _limit.reset(limit)
        _calls.reset(calls)
