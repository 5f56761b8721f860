"""Calls and requests that are made again before an error counts."""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import ParamSpec, TypeVar

from ckpt_tools.storage.stalls import watched

P = ParamSpec("P")
T = TypeVar("T")

TRANSIENT = frozenset({errno.ESTALE, errno.EINTR, errno.ETIMEDOUT, errno.ECONNRESET})
"""What a network file system answers while a server restarts or a handle is renewed, and what an answer of a
store that broke off is: the next one may be whole.
"""
PAUSES = (0.001, 0.01, 0.05)
"""Seconds before each further attempt: long enough for a handle to be renewed, too short to be felt."""
OF_A_STORE = (0.1, 0.4, 1.6)
"""The same of a request. What the store refused, or what never reached it, the library repeats itself
(RetryConfig of obstore: ten times, with growing and random pauses).
"""
pause: Callable[[float], None] = time.sleep


def wait_for_another(e: OSError, pauses: Iterator[float]) -> None:
    """Wait before the next attempt after one of ``TRANSIENT``; else, and in the end, raise the error."""
    seconds = next(pauses, None) if e.errno in TRANSIENT else None
    if seconds is None:
        raise e
    pause(seconds * random.uniform(0.5, 1.5))  # noqa: S311 - not to be in step with others


def ask_again(ask: Callable[[], T], each: Sequence[float] = OF_A_STORE) -> T:
    """What a request answers, made again while its answer breaks off. Raises OSError."""
    pauses = iter(each)
    while True:
        try:
            return ask()
        except OSError as e:
            wait_for_another(e, pauses)


def patiently(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """``call(*args)``, made up to three times more while it fails with one of ``TRANSIENT``."""
    return ask_again(lambda: watched(call, *args, **kwargs), PAUSES)
