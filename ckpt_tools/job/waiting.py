"""Waiting for other processes through a file system or a store that many share: ever longer pauses, bounded
by what is waited already.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

FIRST, MOST = 0.01, 2.0
"""Seconds of the shortest and the longest pause."""
_SHARE = 8


class Clock(NamedTuple):
    """Where seconds come from, and how they pass."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Backoff:
    """Pauses between two looks: an eighth of the time waited so far, so that an answer is seen at most an
    eighth later than it came, in some 50 looks for 10 s and 350 for 10 minutes.
    """

    def __init__(self, timeout: float, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.started = self.clock.now()
        self.ends = self.started + timeout

    def pause(self, sleep: Callable[[float], None] | None = None) -> bool:
        """Wait a little, by ``sleep`` where that is interrupted when there is something to see; False, and no
        pause, when the time is over.
        """
        now = self.clock.now()
        if now >= self.ends:
            return False
        seconds = min(MOST, max(FIRST, (now - self.started) / _SHARE), self.ends - now)
        (sleep or self.clock.sleep)(seconds)
        return True
