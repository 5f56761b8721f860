"""Copies of this process that read for it: started only where that is safe, quiet in whatever way they end,
and never left behind.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What ends a program from outside: handlers of the parent's are not for its children."""


def alone() -> bool:
    """Whether this process has one thread only, of Python or not: a child that is forked beside others may
    find their locks taken for ever.
    """
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


def forked(serve: Callable[[], object], others: Iterable[int] = ()) -> int:
    """The pid of a child that closes the descriptors ``others``, calls ``serve`` and ends; about a
    millisecond. Raises OSError. Call only when ``alone``.
    """
    held = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # so that no handler of ours runs in the child
    try:
        pid = os.fork()
        if pid == 0:
            try:
                _quiet()
                for fd in others:
                    os.close(fd)
                signal.pthread_sigmask(signal.SIG_SETMASK, held)
                serve()
            finally:
                os._exit(0)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
    return pid


def _quiet() -> None:
    """Die without a trace: no handlers of the parent's, no core dump, and Ctrl-C is the parent's business."""
    import resource

    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def end(pid: int) -> None:
    """End a child at once, wherever it is; one that hangs in the kernel ends when the kernel lets it."""
    try:
        os.kill(pid, signal.SIGKILL)
        for pause in (0.0, *[0.001] * 20, *[0.1] * 20):
            time.sleep(pause)
            if os.waitpid(pid, os.WNOHANG)[0]:
                return
    except (ChildProcessError, ProcessLookupError):  # somebody ignores SIGCHLD: it is gone already
        pass
