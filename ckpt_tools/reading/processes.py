"""Many files looked at by several copies of this process: most of what a small file takes is Python, and Python runs on one CPU at a time.

The copies know what this process knows, so nothing is sent to them but numbers; what they send back is what the cache of verdicts holds. What a copy that dies leaves undone is read here.
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

LEAST = 64
"""Files for which copies pay for their start."""
LARGE = 32 << 20
"""Bytes of a file from which its content is read by threads instead: then the memory bus is the limit, and threads share one file."""
_BATCHES = 1000
"""Tickets at most: they must fit into a pipe, however small the system makes it."""
_FRAME, _TICKET = struct.Struct("=QQ"), struct.Struct("=I")
_COLLECTED = 50_000
"""Objects that a copy makes, and has not let go of, before it looks for circles among them: a file makes thousands, without any."""
_LOOK = 0.1
"""Seconds between two looks at whether somebody wants to stop."""

Answer = Callable[[int], bytes]


def crowd(count: int, jobs: int, answer: Answer, beat: Callable[[], object]) -> Iterator[tuple[int, bytes]]:
    """(i, ``answer(i)``) of the numbers below ``count``, in the order in which ``jobs`` copies of this process are done; those that a dead copy had are left out.

    ``beat`` is called ten times a second at least; what it raises ends everything. Gives nothing where a copy cannot be made.
    """
    stalls.rest()
    if not worker_processes.alone():
        return
    most = max(1, -(-count // _BATCHES))
    starts = range(0, count, most)
    tickets, fill = os.pipe()
    os.write(fill, b"".join(map(_TICKET.pack, starts)))
    os.close(fill)  # whoever finds no ticket any more finds the end
    copies: dict[int, int] = {}
    try:
        for _ in range(min(jobs, len(starts))):
            ours, theirs = os.pipe()
            try:
                serve = partial(_serve, tickets, theirs, count, most, answer)
                copies[ours] = worker_processes.forked(serve, (ours, *copies))
            except OSError:  # as many as the system allows
                os.close(ours)
                break
            finally:
                os.close(theirs)
        yield from _collected(list(copies), beat)
    finally:
        os.close(tickets)
        for fd, pid in copies.items():
            os.close(fd)
            worker_processes.end(pid)


def _serve(tickets: int, out: int, count: int, most: int, answer: Answer) -> None:
    stalls.unlimited()
    gc.freeze()  # what this process was given lives as long as it does
    gc.set_threshold(_COLLECTED)
    while len(ticket := os.read(tickets, _TICKET.size)) == _TICKET.size:
        (start,) = _TICKET.unpack(ticket)
        for i in range(start, min(count, start + most)):
            data = answer(i)
            with memoryview(_FRAME.pack(i, len(data)) + data) as left:
                at = 0
                while at < len(left):
                    at += os.write(out, left[at:])


def _collected(pipes: Sequence[int], beat: Callable[[], object]) -> Iterator[tuple[int, bytes]]:
    poll, parts = select.poll(), {fd: bytearray() for fd in pipes}
    heard = dict.fromkeys(pipes, time.monotonic())
    for fd in pipes:
        poll.register(fd, select.POLLIN)
    while parts:
        for fd, _ in poll.poll(_LOOK * 1000):
            data, got = os.read(fd, 1 << 20), parts[fd]
            if not data:  # it is done, or dead in the middle of an answer
                poll.unregister(fd)
                del parts[fd]
                continue
            got += data
            heard[fd] = time.monotonic()
            at = 0
            while len(got) - at >= _FRAME.size:
                i, size = _FRAME.unpack_from(got, at)
                if len(got) - at - _FRAME.size < size:
                    break
                at += _FRAME.size
                yield i, bytes(got[at : at + size])
                at += size
            del got[:at]
        for fd in [
            fd for fd in parts if stalls.overdue(heard[fd])
        ]:  # what it had is read here, where each call is watched
            poll.unregister(fd)
            del parts[fd]
        beat()
