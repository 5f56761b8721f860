"""Units of work, done: by this thread, or by several."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import NamedTuple

from ckpt_tools.checksum.chunks import ChunkDigests
from ckpt_tools.checksum.combine import CRC32, Crc, crc32, crc32_combine, crc32c
from ckpt_tools.checksum.crc import InflateError, Progress, crc_of_deflated, crc_of_extent, read_parts
from ckpt_tools.checksum.riding import seated
from ckpt_tools.checksum.sums import Deflated, Extent, Piece, Riders, Sum, Unit, xxh3
from ckpt_tools.storage import Source, Stopped

# ---- A chunk and the CRCs that ride on it: the chunk's own digest, and the CRC-32 of the pieces between
# all the borders in it, which give every other one.


STEP = 1 << 18
"""Bytes that are digested in each way while the CPU has them at hand."""


class Segments:
    """A chunk, ``host``, and what rides on it; fed with the chunk's bytes, in order.

    ``lengths`` are those of the pieces between the borders, ``sealed`` says that CRCs are part of the digest.
    """

    def __init__(self, host: Unit, riders: Sequence[Unit], lengths: Sequence[int], *, sealed: bool) -> None:
        self.host, self.riders, self.lengths, self.sealed = host, riders, lengths, sealed
        self._left, self._crcs, self._first = list(lengths), [0] * len(lengths), 0
        self._xxh3, self._crc32c = xxh3(), 0

    def update(self, data: memoryview | bytes) -> None:
        for at in range(0, len(data), STEP):
            part = data[at : at + STEP]
            self._cut(part)  # first: of all digests it waits least for memory
            if self.sealed:
                self._crc32c = crc32c(part, self._crc32c)
            self._xxh3.update(part)

    def _cut(self, data: memoryview | bytes) -> None:
        """Add ``data`` to the CRC-32 of the pieces that it belongs to."""
        while len(data):
            i = self._first
            n = min(self._left[i], len(data))
            self._crcs[i] = crc32(data[:n], self._crcs[i])
            self._left[i] -= n
            self._first += not self._left[i]
            data = data[n:]

    def outcomes(self) -> list[tuple[Unit, int | bytes]]:
        """Return the digest of the chunk, and the CRC of each rider that has a sum."""
        starts = list(accumulate(self.lengths, initial=self.host.offset))

        def joined(u: Unit) -> int:
            """Return the CRC-32 of the pieces that a unit consists of."""
            value = 0
            for i in range(bisect_left(starts, u.offset), bisect_left(starts, u.offset + u.length)):
                value = crc32_combine(value, self._crcs[i], self.lengths[i])
            return value

        digest = self._xxh3.digest()
        if self.sealed and isinstance(digest, bytes):
            digest += joined(self.host).to_bytes(4, "big") + self._crc32c.to_bytes(4, "big")
        return [(self.host, digest), *((u, joined(u)) for u in self.riders if u.sum >= 0)]


def segments(sums: Sequence[Sum], host: Unit, riders: Sequence[Unit]) -> Segments | None:
    """Return None for other digests than those of chunks, or other CRCs."""
    make = sums[host.sum].hash
    if make not in (xxh3, ChunkDigests) or any(u.sum >= 0 and sums[u.sum].hash is not CRC32 for u in riders):
        return None
    borders = {host.offset, host.offset + host.length}
    for u in riders:
        if u.sum >= 0:
            borders |= {u.offset, u.offset + u.length}
    lengths = [b - a for a, b in pairwise(sorted(borders))]
    return Segments(host, riders, lengths, sealed=make is ChunkDigests)


INLINE = 2 * 1024 * 1024
"""Below this many bytes threads cost more than they save."""


Watch = Callable[[int, "memoryview | bytes"], object]
"""Called with (offset, bytes) of what no sum covers, from any thread; the bytes are only valid during the
call.
"""
Outcome = int | bytes | InflateError


def _batches(units: Iterable[Unit], most: int) -> Iterator[list[Unit]]:
    batch: list[Unit] = []
    size = 0
    for u in units:
        batch.append(u)
        size += u.length
        if size >= most:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _feed(
    source: Source,
    pieces: Iterable[Piece],
    update: Callable[[memoryview | bytes], object],
    progress: Progress | None,
) -> None:
    """All bytes of ``pieces``, in order, to ``update``."""
    for piece in pieces:
        if isinstance(piece, Deflated):
            raise TypeError("deflated data is only ever covered by a CRC")
        if isinstance(piece, bytes):
            update(piece)
            continue
        for part in read_parts(source, piece.offset, piece.length, progress):
            update(part)


def work(
    source: Source, sums: Sequence[Sum], u: Unit, progress: Progress | None, watch: Watch | None = None
) -> Outcome:
    if u.sum < 0:  # nothing to compare with, but a medium that cannot deliver the bytes shows
        at = u.offset

        def passed(data: memoryview | bytes) -> None:
            nonlocal at
            if watch is not None:
                watch(at, data)
            at += len(data)

        _feed(source, [Extent(u.offset, u.length)], passed, progress)
        return 0
    s = sums[u.sum]
    crc = s.hash
    if not isinstance(crc, Crc):
        running = crc()
        _feed(source, s.pieces, running.update, progress)
        return running.digest()
    piece = s.pieces[u.piece]
    try:
        if isinstance(piece, Deflated):
            return crc_of_deflated(crc, source, piece, progress)
        return crc_of_extent(crc, source, u.offset, u.length, progress)
    except InflateError as e:
        return e


def outcomes(
    source: Source,
    sums: Sequence[Sum],
    units: Sequence[Unit],
    jobs: int,
    most: int,
    *,
    progress: Progress | None,
    watch: Watch | None,
    riders: Riders = MappingProxyType({}),
) -> Iterator[tuple[Unit, Outcome]]:
    """What the units give, their work done by ``jobs`` threads, about ``most`` bytes at a time. Raises
    Stopped when ``progress`` does, after the outcome of every unit that was finished by then.

    What ``riders`` has for a unit is worked out with it.
    """
    if riders:
        riding = seated(riders)
        units = [u for u in units if u not in riding]
    task = _Task(source, sums, riders, watch)
    if jobs >= 2 and sum(u.length for u in units) >= INLINE:
        yield from _by_threads(task, units, jobs, most, progress)
        return
    for u in units:
        yield from task.do(u, progress)


class _Task(NamedTuple):
    """The work of a unit, wherever it is done."""

    source: Source
    sums: Sequence[Sum]
    riders: Riders
    watch: Watch | None

    def do(self, u: Unit, progress: Progress | None) -> list[tuple[Unit, Outcome]]:
        """What a unit gives, and what rides on it."""
        if u not in self.riders:
            return [(u, work(self.source, self.sums, u, progress, self.watch))]
        return ridden(self.source, self.sums, u, self.riders[u], progress=progress, watch=self.watch)


class _Batch(NamedTuple):
    """What came of some units, and what ended them early."""

    outcomes: list[tuple[Unit, Outcome]]
    stopped: Stopped | None


def _done(task: _Task, batch: Sequence[Unit], progress: Progress) -> _Batch:
    outcomes = list[tuple[Unit, Outcome]]()
    try:
        for u in batch:
            outcomes += task.do(u, progress)
    except Stopped as e:
        return _Batch(outcomes, e)
    return _Batch(outcomes, None)


def _by_threads(
    task: _Task, units: Sequence[Unit], jobs: int, most: int, progress: Progress | None
) -> Iterator[tuple[Unit, Outcome]]:
    from collections import deque
    from concurrent.futures import Future
    from itertools import islice

    from ckpt_tools.storage.threads import Threads

    ended = False

    def passed(n: int) -> None:
        if ended:  # nobody waits for this any more, after Ctrl-C for one
            raise Stopped
        if progress:
            progress(n)

    pool, wait = Threads(jobs), True
    waiting: deque[Future[_Batch]] = deque()
    batches, stopped = _batches(units, most), None
    try:
        while stopped is None:
            # bounded: the queue never holds more than a few units per thread
            waiting.extend(
                pool.submit(_done, task, batch, passed)
                for batch in islice(batches, 1 if waiting else 2 * jobs)
            )
            if not waiting:
                return
            done, stopped = waiting.popleft().result()
            yield from done
        for other in waiting:  # those under way see the end of time themselves
            if not other.cancel():
                yield from other.result().outcomes
        raise stopped
    except BaseException as e:
        # not on Ctrl-C: one of the reads under way may be the one that hangs
        wait = isinstance(e, (Exception, GeneratorExit))
        raise
    finally:
        ended = True
        pool.close(wait=wait)


def ridden(
    source: Source,
    sums: Sequence[Sum],
    host: Unit,
    riders: Sequence[Unit],
    *,
    progress: Progress | None,
    watch: Watch | None,
) -> list[tuple[Unit, Outcome]]:
    """What a unit gives, and those that ride on it; each byte is read once, and its CRC-32 worked out once
    however many ask for it.
    """
    make = sums[host.sum].hash
    if isinstance(make, Crc):
        raise TypeError("a CRC needs nobody to ride on")
    if (joined := segments(sums, host, riders)) is None:
        running, seats = make(), _Seats(sums, riders, watch)
        _feed_both(source, host, running.update, seats, progress)
        return [(host, running.digest()), *seats.outcomes()]
    seats = _Seats(sums, [u for u in riders if u.sum < 0], watch)
    _feed_both(source, host, joined.update, seats, progress)
    return [*joined.outcomes(), *seats.outcomes()]


def _feed_both(
    source: Source,
    host: Unit,
    update: Callable[[memoryview | bytes], object],
    seats: _Seats,
    progress: Progress | None,
) -> None:
    """The bytes of a unit to its digest, and to what rides on it."""
    at = host.offset
    for part in read_parts(source, at, host.length, progress):
        update(part)
        seats.update(at, part)
        at += len(part)


class _Seats:
    """Units that ride, fed with what is read, in order."""

    def __init__(self, sums: Sequence[Sum], riders: Sequence[Unit], watch: Watch | None) -> None:
        self._riders, self._values, self._watch, self._first = riders, [0] * len(riders), watch, 0
        self._crcs = [sums[u.sum].hash if u.sum >= 0 else None for u in riders]

    def update(self, at: int, data: memoryview | bytes) -> None:
        """``data`` lies at ``at`` of the file."""
        stop, i = at + len(data), self._first
        while i < len(self._riders) and self._riders[i].offset < stop:
            u, crc = self._riders[i], self._crcs[i]
            start, end = max(u.offset, at), min(u.offset + u.length, stop)
            if start < end:
                part = data[start - at : end - at]
                if isinstance(crc, Crc):
                    self._values[i] = crc.update(part, self._values[i])
                elif self._watch:
                    self._watch(start, part)
            if i == self._first and u.offset + u.length <= stop:
                self._first += 1
            i += 1

    def outcomes(self) -> Iterator[tuple[Unit, Outcome]]:
        return zip(self._riders, self._values, strict=True)
