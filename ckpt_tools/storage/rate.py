"""No more bytes per second than asked for, whoever reads them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


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
        self._lock = threading.Lock()

    def took(self, n: int) -> None:
        with self._lock:
            now = self._clock()
            self._paid = max(self._paid, now) + n / self.limit
            wait = self._paid - now
        self._sleep(wait)
