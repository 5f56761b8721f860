"""Digests of a mapped file: nothing is copied, but a file that shrinks kills whoever has it mapped, so helper
processes do it.

A helper that dies, of whatever cause, leaves its range to the caller, who reads it and says what is wrong
with it.
"""

from __future__ import annotations

import os
import select
import struct
import sys
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from ckpt_tools.checksum import mapped_child
from ckpt_tools.checksum.chunks import ChunkDigests
from ckpt_tools.checksum.combine import CRC32, CRC32C, castagnoli
from ckpt_tools.checksum.crc import Progress
from ckpt_tools.checksum.mapped_child import ANSWER, REQUEST
from ckpt_tools.checksum.segments import Segments, segments
from ckpt_tools.checksum.sums import MAPPED, Extent, Riders, Sum, Unit, xxh3
from ckpt_tools.storage import LocalSource, stalls, worker_processes
from ckpt_tools.storage.mapping import WORTH, suits

HELPERS = 16
"""At most: the memory bus is full long before."""
_KINDS: dict[object, int] = {CRC32: mapped_child.CRC32, CRC32C: mapped_child.CRC32C, xxh3: mapped_child.XXH3}
"""What sums are worked out with -> what helpers call it."""
_NEEDED = {
    mapped_child.CHUNK: (mapped_child.XXH3, mapped_child.CRC32),
    mapped_child.SEALED: (mapped_child.XXH3, mapped_child.CRC32, mapped_child.CRC32C),
}
"""What a chunk is digested with."""
_LOOK = 1.0
"""Seconds between two looks at whether helpers should have answered."""
_AHEAD = 2
"""Requests that wait for a helper, so that it never waits for us."""


class Task(NamedTuple):
    """What a helper is asked for: a ``unit``, and what rides on it."""

    unit: Unit
    kind: int
    segments: Segments | None = None

    @property
    def request(self) -> bytes:
        lengths, watched = (self.segments.lengths, self.segments.watched) if self.segments else ((), False)
        head = REQUEST.pack(self.unit.offset, self.unit.length, self.kind, len(lengths), watched)
        return head + struct.pack(f"={len(lengths)}q", *lengths)

    @property
    def answer_size(self) -> int:
        return self.segments.answer_size if self.segments else ANSWER.size

    def outcomes(self, answer: bytes) -> list[tuple[Unit, int | bytes]]:
        """What the answer means for each unit; nothing where it does not tell."""
        if self.segments:
            return self.segments.outcomes(answer) or []
        digest = ANSWER.unpack(answer)[1]
        return [(self.unit, digest if self.kind == mapped_child.XXH3 else int.from_bytes(digest, "big"))]


def mappable(source: LocalSource, sums: Sequence[Sum], units: Sequence[Unit], riders: Riders) -> list[Task]:
    """What helpers may do; nothing where that does not pay or is not wanted."""
    if source.io not in ("auto", "mmap") or (
        source.io == "auto" and not suits(source, WORTH if worker_processes.alone() else 4 * WORTH)
    ):
        return []
    return [
        task
        for u in units
        if u.length >= MAPPED and u.sum >= 0 and (task := _task(sums, u, riders.get(u, ()))) is not None
    ]


def _task(sums: Sequence[Sum], u: Unit, riders: Sequence[Unit]) -> Task | None:
    """None for a unit that helpers cannot do."""
    s = sums[u.sum]
    if riders or s.hash is ChunkDigests:
        found = segments(sums, u, riders)
        few = found is not None and len(found.lengths) <= mapped_child.PIECES
        return Task(u, found.kind, found) if found is not None and few else None
    return Task(u, _KINDS[s.hash]) if s.hash in _KINDS and _one_range(s, u) else None


def _one_range(s: Sum, u: Unit) -> bool:
    return isinstance(s.pieces[u.piece], Extent) and (u.piece >= 0 or len(s.pieces) == 1)


def digests_of_mapped(
    source: LocalSource, tasks: Sequence[Task], jobs: int, progress: Progress | None
) -> Iterator[tuple[Unit, int | bytes]]:
    """What the tasks give, in any order; without those that a helper had when it died, and those that its
    answer does not settle. Raises what ``progress`` raises; no helper is left behind.
    """
    waiting, helpers = deque(tasks), dict[int, _Helper]()
    try:
        _start(helpers, min(jobs, HELPERS, len(tasks)), source.fd, waiting)
        for task, answer in _answers(helpers, waiting):
            source.count(task.unit.length)
            found = task.outcomes(answer)
            yield from found
            if progress and found:
                progress(task.unit.length)
    finally:
        for helper in helpers.values():
            helper.end()


def _start(helpers: dict[int, _Helper], count: int, file: int, waiting: deque[Task]) -> None:
    """Add up to ``count`` helpers, by the pipes of their answers, each with its first requests."""
    kinds = {kind for task in waiting for kind in _NEEDED.get(task.kind, (task.kind,))}
    for _ in range(count):
        helper = _Helper.start(file, kinds, [fd for h in helpers.values() for fd in (h.requests, h.answers)])
        if helper is None:
            return
        helpers[helper.answers] = helper
        for _ in range(_AHEAD):
            helper.ask(waiting)


def _answers(helpers: dict[int, _Helper], waiting: deque[Task]) -> Iterator[tuple[Task, bytes]]:
    """What the helpers answer, each asked for the next unit meanwhile."""
    poll = select.poll()
    for fd in helpers:
        poll.register(fd, select.POLLIN)
    heard = time.monotonic()
    while any(h.asked for h in helpers.values()):
        ready = poll.poll(_LOOK * 1000)
        if not ready and stalls.overdue(heard):
            return  # what they were asked is read by the caller, whose every call is watched
        for fd, _ in ready:
            heard = time.monotonic()
            helper = helpers[fd]
            size = helper.asked[0].answer_size if helper.asked else 1
            answer = os.read(fd, size)
            if len(answer) < size:  # it is dead, and what it was asked stays undone
                poll.unregister(fd)
                helper.asked.clear()
                continue
            task = helper.asked.popleft()
            helper.ask(waiting)
            yield task, answer


class _Helper:
    """One helper process and the two pipes to it."""

    def __init__(self, pid: int, requests: int, answers: int) -> None:
        self.pid, self.requests, self.answers = pid, requests, answers
        self.asked: deque[Task] = deque()

    @classmethod
    def start(cls, file: int, kinds: Collection[int], others: Sequence[int]) -> _Helper | None:
        """None when no process can be started. ``kinds`` is what it will be asked for, ``others`` are the
        pipes of those that run already.
        """
        theirs, requests = os.pipe()
        answers, ours = os.pipe()
        try:
            pid = (
                _forked(theirs, ours, file, kinds, (*others, requests, answers))
                if worker_processes.alone()
                else _spawned(theirs, ours, file, kinds)
            )
        except (OSError, ImportError):
            pid = -1
        os.close(theirs)
        os.close(ours)
        if pid > 0:
            return cls(pid, requests, answers)
        os.close(requests)
        os.close(answers)
        return None

    def ask(self, waiting: deque[Task]) -> None:
        """Hand it the next unit."""
        if waiting:
            try:
                os.write(self.requests, waiting[0].request)
            except BrokenPipeError:  # its other end says so as well
                return
            self.asked.append(waiting.popleft())

    def end(self) -> None:
        os.close(self.requests)
        os.close(self.answers)
        worker_processes.end(self.pid)


def _forked(requests: int, answers: int, file: int, kinds: Collection[int], others: Sequence[int]) -> int:
    """A copy of this process, which takes about a millisecond."""
    if mapped_child.CRC32C in kinds:
        castagnoli()  # faster than a helper finds it
    for kind in kinds:  # imported once, by us
        mapped_child.begun(kind)
    return worker_processes.forked(lambda: mapped_child.serve(requests, answers, file), others)


_FROM = {mapped_child.CRC32: "isal", mapped_child.CRC32C: "crc32c", mapped_child.XXH3: "xxhash"}
"""The package that a kind of digest comes from."""


def _spawned(requests: int, answers: int, file: int, kinds: Collection[int]) -> int:
    """A Python of its own, which takes some 20 ms. -1 where there is none to start."""
    if not sys.executable or min(requests, answers, file) < 3:
        return -1
    from importlib.util import find_spec

    specs = [find_spec(_FROM[kind]) for kind in sorted(kinds)]
    packages = [os.path.dirname(spec.origin) for spec in specs if spec is not None and spec.origin]
    places = dict.fromkeys(
        [*map(os.path.dirname, packages), *packages]
    )  # packages beside each other, and what is in them
    actions = [(os.POSIX_SPAWN_DUP2, fd, to) for to, fd in enumerate((requests, answers, file))]
    command = [sys.executable, "-I", "-S", mapped_child.__file__, *places]
    return os.posix_spawn(
        sys.executable,
        command,
        dict(os.environ),
        file_actions=actions,
        setsigmask=(),
        setsigdef=worker_processes.SIGNALS,
    )
