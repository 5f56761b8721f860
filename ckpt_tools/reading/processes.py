"""Many calls made by several worker processes: most of what a small file takes is Python, and Python runs on
one CPU at a time.

They are copies of this process and know what it knows, so nothing is sent to them but numbers. What one that
dies leaves undone is left to the caller.
"""

from __future__ import annotations

import gc
import os
import select
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from ckpt_tools.storage import stalls, worker_processes

_BATCHES = 1000
"""Tickets at most: they must fit into a pipe, however small the system makes it."""
_FRAME, _TICKET = struct.Struct("=QQ"), struct.Struct("=I")
_COLLECTED = 50_000
"""Objects that a worker process makes, and has not let go of, before it looks for circles among them: a file
makes thousands, without any.
"""
_BEAT = 0.1
"""Seconds between two checks of whether somebody wants to stop."""

Work = Callable[[int], bytes]


class _Answers:
    """What has come through the pipe of one worker process, up to the answer that is still under way."""

    def __init__(self) -> None:
        self.heard = time.monotonic()
        self._bytes = bytearray()

    def add(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """(i, answer) of those that are whole by now."""
        self.heard = time.monotonic()
        got, at = self._bytes, 0
        got += data
        while len(got) - at >= _FRAME.size:
            i, size = _FRAME.unpack_from(got, at)
            if len(got) - at - _FRAME.size < size:
                break
            at += _FRAME.size
            yield i, bytes(got[at : at + size])
            at += size
        del got[:at]


def run(count: int, jobs: int, work: Work, beat: Callable[[], object]) -> Iterator[tuple[int, bytes]]:
    """(i, ``work(i)``) of the numbers below ``count``, in the order in which ``jobs`` worker processes are
    done; those that a dead one had are left out.

    ``beat`` is called ten times a second at least; what it raises ends everything. Gives nothing where no
    process can be made.
    """
    stalls.rest()
    if not worker_processes.alone():
        return
    most = max(1, -(-count // _BATCHES))
    starts = range(0, count, most)
    tickets, fill = os.pipe()
    os.write(fill, b"".join(map(_TICKET.pack, starts)))
    os.close(fill)  # whoever finds no ticket any more finds the end
    workers: dict[int, int] = {}
    try:
        for _ in range(min(jobs, len(starts))):
            ours, theirs = os.pipe()
            try:
                serve = partial(_serve, tickets, theirs, range(count), most, work)
                workers[ours] = worker_processes.forked(serve, (ours, *workers))
            except OSError:  # as many as the system allows
                os.close(ours)
                break
            finally:
                os.close(theirs)
        yield from _collected(list(workers), beat)
    finally:
        os.close(tickets)
        for fd, pid in workers.items():
            os.close(fd)
            worker_processes.end(pid)


def _serve(tickets: int, out: int, numbers: range, most: int, work: Work) -> None:
    """In a worker process: take tickets until there are none, and send back what the work of each gives."""
    stalls.unlimited()
    gc.freeze()  # what this process was given lives as long as it does
    gc.set_threshold(_COLLECTED)
    while len(ticket := os.read(tickets, _TICKET.size)) == _TICKET.size:
        (start,) = _TICKET.unpack(ticket)
        for i in numbers[start : start + most]:
            data = work(i)
            _write(out, _FRAME.pack(i, len(data)) + data)


def _write(out: int, data: bytes) -> None:
    with memoryview(data) as left:
        at = 0
        while at < len(left):
            at += os.write(out, left[at:])


def _collected(pipes: Sequence[int], beat: Callable[[], object]) -> Iterator[tuple[int, bytes]]:
    poll, running = select.poll(), {fd: _Answers() for fd in pipes}
    for fd in pipes:
        poll.register(fd, select.POLLIN)
    while running:
        for fd, _ in poll.poll(_BEAT * 1000):
            if data := os.read(fd, 1 << 20):
                yield from running[fd].add(data)
            else:  # it is done, or dead in the middle of an answer
                poll.unregister(fd)
                del running[fd]
        # What one that hangs had is read by the caller, where each call is watched.
        for fd in [fd for fd, answers in running.items() if stalls.overdue(answers.heard)]:
            poll.unregister(fd)
            del running[fd]
        beat()
