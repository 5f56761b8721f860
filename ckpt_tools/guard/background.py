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

from ckpt_tools.storage.retry import there
from ckpt_tools.storage.stalls import Threads

if TYPE_CHECKING:
    from ckpt_tools.model.seal import Sealing

log = logging.getLogger("ckpt_tools")
LONGEST = 300.0
"""Seconds that the end of the process, or the next save, waits for seals that are being written."""
_NO_FAULT = frozenset({"sealed", "would-seal", "already", "merged"})


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
    """Call ``work`` in the background, after all earlier calls. A failure is logged: training continues."""

    def seal() -> Sealing | None:
        try:
            sealing = work()
        except Exception as e:
            where = ", ".join(roots)
            if any(map(_may_be_there, roots)):
                log.warning("%s: not sealed: %s", where, e, exc_info=log.isEnabledFor(logging.DEBUG))
            else:
                log.info("%s: not sealed: it is gone", where)
            return None
        for one in sealing.checkpoints:
            if one.state not in _NO_FAULT and _may_be_there(one.path):
                why = one.findings[0].message if one.findings else "nothing more is known"
                log.warning("%s: not sealed, it is %s: %s", one.path, one.state, why)
        return sealing

    return Pending(_worker().submit(seal))


def _may_be_there(path: str) -> bool:
    """Return False if nothing lies at ``path``, True also if nobody can say."""
    try:
        return there(path)
    except OSError:
        return True


def finish(timeout: float | None = None) -> bool:
    """Wait until everything that was to be sealed is done; False if it is not after ``timeout`` seconds."""
    if not _worker.cache_info().currsize:
        return True
    try:
        _worker().submit(lambda: None).result(timeout)
    except NotDone:
        return False
    return True


@cache
def _worker() -> Threads:
    """Return the one thread of this process, a daemon: whatever it hangs in, the process can end."""
    return Threads(1)


@atexit.register
def _finish_at_exit() -> None:
    if not finish(LONGEST):
        log.warning("the process ends with sealings under way: what they are of stays as it was")


os.register_at_fork(after_in_child=_worker.cache_clear)  # a fork has no threads
