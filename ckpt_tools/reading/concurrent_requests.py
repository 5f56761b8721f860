"""Many files of a store read at a time: each waits for its answers most of the time, so one process and many
threads do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from itertools import islice

from ckpt_tools.storage.threads import Threads

FILES = 16
"""Files under way at a time, unless --jobs says otherwise."""


def run(
    count: int, jobs: int, work: Callable[[int], bytes], beat: Callable[[], object]
) -> Iterator[tuple[int, bytes]]:
    """(i, ``work(i)``) of the numbers below ``count``, in their order. ``beat`` is called before each; what
    it raises ends everything.
    """
    pool, numbers = Threads(jobs), iter(range(count))
    waiting: deque[tuple[int, Future[bytes]]] = deque()
    done = False
    try:
        while True:
            beat()
            waiting.extend((i, pool.submit(work, i)) for i in islice(numbers, 1 if waiting else 2 * jobs))
            if not waiting:
                done = True
                return
            i, future = waiting.popleft()
            yield i, future.result()
    finally:
        pool.close(wait=done)
