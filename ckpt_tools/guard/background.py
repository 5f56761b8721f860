"""Seals beside training: in a thread, one checkpoint after the other; errors are logged as warnings."""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotDone
from functools import cache
from typing import TYPE_CHECKING

from ckpt_tools.storage.retry import exists
from ckpt_tools.storage.stalls import Threads

if TYPE_CHECKING:
    from ckpt_tools.model.seal import Sealing

log = logging.getLogger("ckpt_tools")
LONGEST = 300.0
"""Seconds that the end of the process, or the next save, waits for seals that are being written."""
_FAULTLESS_STATES = frozenset({"sealed", "would-seal", "already", "merged"})


class Pending:
    """A sealing that goes on in the background."""

    def __init__(self, future: Future[Sealing | None]) -> None:
        self._future = future

    def wait(self, timeout: float | None = None) -> Sealing | None:
        """Return the result; None if it failed, or is not there after ``timeout`` seconds."""
        try:
            return self._future.result(timeout)
        except NotDone:
            return None


def seal_later(work: Callable[[], Sealing], roots: Sequence[str]) -> Pending:
    """Call ``work``, which seals ``roots``, after all earlier calls. A failure is logged, not raised."""

    def seal() -> Sealing | None:
        try:
            sealing = work()
        except Exception as e:
            where = ", ".join(roots)
            if any(map(_may_exist, roots)):
                log.warning("%s: not sealed: %s", where, e, exc_info=log.isEnabledFor(logging.DEBUG))
            else:
                log.info("%s: not sealed: it is gone", where)
            return None
        for c in sealing.checkpoints:
            if c.state not in _FAULTLESS_STATES and _may_exist(c.path):
                reason = c.findings[0].message if c.findings else "nothing more is known"
                log.warning("%s: not sealed, it is %s: %s", c.path, c.state, reason)
        return sealing

    return Pending(_get_worker().submit(seal))


def _may_exist(path: str) -> bool:
    """Return False if nothing lies at ``path``, True if something does or the file system cannot say."""
    try:
        return exists(path)
    except OSError:
        return True


def finish(timeout: float | None = None) -> bool:
    """Wait for all sealings under way in this process; return False if ``timeout`` seconds are too few."""
    if not _get_worker.cache_info().currsize:
        return True
    try:
        _get_worker().submit(lambda: None).result(timeout)
    except NotDone:
        return False
    return True


@cache
def _get_worker() -> Threads:
    """Return the pool of one daemon thread that seals: whatever it hangs in, the process can end."""
    return Threads(1)


@atexit.register
def _finish_at_exit() -> None:
    if not finish(LONGEST):
        log.warning("the process ends with sealings under way: what they are of stays as it was")


os.register_at_fork(after_in_child=_get_worker.cache_clear)  # a fork has no threads
