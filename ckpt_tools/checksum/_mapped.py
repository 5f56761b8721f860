"""CRC-32s of a mapped file: nothing is copied, but a file that shrinks kills whoever has it mapped, so helper processes do it.

A helper that dies, of whatever cause, leaves its range to the caller, who reads it and says what is wrong with it.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import zlib
from collections import deque
from collections.abc import Iterator, Sequence

from ckpt_tools.checksum import _mapped_child
from ckpt_tools.checksum._crc import Progress
from ckpt_tools.checksum._crcs import CRC32, crc32
from ckpt_tools.checksum._mapped_child import PAIR
from ckpt_tools.checksum._sums import Extent, Sum, Unit
from ckpt_tools.storage import LocalSource
from ckpt_tools.storage._rule import WORTH, suits

LEAST = 1 << 20
"""Bytes of a range below which asking a helper takes longer than reading."""
HELPERS = 16
"""At most: the memory bus is full long before."""
_AHEAD = 2
"""Requests that wait for a helper, so that it never waits for us."""


def mappable(source: LocalSource, sums: Sequence[Sum], units: Sequence[Unit]) -> list[Unit]:
    """The units that helpers may do; none where that does not pay or is not wanted."""
    if source.io not in ("auto", "mmap") or (source.io == "auto" and not suits(source, WORTH if _alone() else 4 * WORTH)):
        return []
    return [u for u in units if u.length >= LEAST and u.sum >= 0 and sums[u.sum].hash is CRC32 and isinstance(sums[u.sum].pieces[u.piece], Extent)]


def crcs_of_mapped(source: LocalSource, units: Sequence[Unit], jobs: int, progress: Progress | None) -> Iterator[tuple[Unit, int]]:
    """The CRC-32 of each unit, in any order; without those that a helper had when it died. Raises what ``progress`` raises; no helper is left behind."""
    waiting = deque(units)
    helpers: dict[int, _Helper] = {}
    poll = select.poll()
    try:
        for _ in range(min(jobs, HELPERS, len(units))):
            helper = _Helper.start(source.fd, [fd for h in helpers.values() for fd in (h.requests, h.answers)])
            if helper is None:
                break
            helpers[helper.answers] = helper
            poll.register(helper.answers, select.POLLIN)
            for _ in range(_AHEAD):
                helper.ask(waiting)
        while any(h.asked for h in helpers.values()):
            for fd, _ in poll.poll():
                helper = helpers[fd]
                answer = os.read(fd, PAIR.size)
                if len(answer) < PAIR.size:  # it is dead, and what it was asked stays undone
                    poll.unregister(fd)
                    helper.asked.clear()
                    continue
                unit, crc = helper.asked.popleft(), PAIR.unpack(answer)[1]
                helper.ask(waiting)
                source.count(unit.length)
                yield unit, crc
                if progress:
                    progress(unit.length)
    finally:
        for helper in helpers.values():
            helper.end()


class _Helper:
    """One helper process and the two pipes to it."""

    def __init__(self, pid: int, requests: int, answers: int) -> None:
        self.pid, self.requests, self.answers = pid, requests, answers
        self.asked: deque[Unit] = deque()

    @classmethod
    def start(cls, file: int, others: Sequence[int]) -> _Helper | None:
        """None when no process can be started. ``others`` are the pipes of those that run already."""
        theirs, requests = os.pipe()
        answers, ours = os.pipe()
        try:
            pid = _forked(theirs, ours, file, (*others, requests, answers)) if _alone() else _spawned(theirs, ours, file)
        except OSError:
            pid = -1
        os.close(theirs)
        os.close(ours)
        if pid > 0:
            return cls(pid, requests, answers)
        os.close(requests)
        os.close(answers)
        return None

    def ask(self, waiting: deque[Unit]) -> None:
        """Hand it the next unit."""
        if waiting:
            try:
                os.write(self.requests, PAIR.pack(waiting[0].offset, waiting[0].length))
            except BrokenPipeError:  # its other end says so as well
                return
            self.asked.append(waiting.popleft())

    def end(self) -> None:
        os.close(self.requests)
        os.close(self.answers)
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ChildProcessError, ProcessLookupError):  # somebody ignores SIGCHLD: it is gone already
            pass


def _alone() -> bool:
    """Whether this process has one thread only, of Python or not: a child that is forked beside others may find their locks taken for ever."""
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _forked(requests: int, answers: int, file: int, others: Sequence[int]) -> int:
    """A copy of this process, which takes about a millisecond."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # so that no handler of ours runs in the child
    try:
        pid = os.fork()
        if pid == 0:
            try:
                _quiet()
                for fd in others:
                    os.close(fd)
                signal.pthread_sigmask(signal.SIG_SETMASK, held)
                _mapped_child.serve(requests, answers, file, crc32)
            finally:
                os._exit(0)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
    return pid


def _quiet() -> None:
    """Die without a trace: no handlers of the parent's, no core dump, and Ctrl-C is the parent's business."""
    import resource

    for number in (*_SIGNALS, signal.SIGBUS):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def _spawned(requests: int, answers: int, file: int) -> int:
    """A Python of its own, which takes some 20 ms. -1 where there is none to start."""
    if not sys.executable or min(requests, answers, file) < 3:
        return -1
    package = os.path.dirname(os.path.dirname(sys.modules[crc32.__module__].__file__ or "")) if crc32 is not zlib.crc32 else ""
    actions = [(os.POSIX_SPAWN_DUP2, fd, to) for to, fd in enumerate((requests, answers, file))]
    command = [sys.executable, "-I", "-S", _mapped_child.__file__, package]
    return os.posix_spawn(sys.executable, command, dict(os.environ), file_actions=actions, setsigmask=(), setsigdef=_SIGNALS)
