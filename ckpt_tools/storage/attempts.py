"""Calls and requests that are made again before an error counts."""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import ParamSpec, TypeVar

from ckpt_tools.storage.stalls import watch_call

P = ParamSpec("P")
T = TypeVar("T")

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
