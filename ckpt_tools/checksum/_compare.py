"""Stored checksums against the bytes they cover: several threads, every byte read once, big ranges split and their CRC-32s combined."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ckpt_tools.checksum._crc import BUFFER, UNIT, InflateError, Progress, buffer, crc32, crc32_combine, crc_of_deflated, crc_of_extent
from ckpt_tools.checksum._sums import Deflated, Extent, Hash, Piece, Sum, covered
from ckpt_tools.storage import Source, Stopped

INLINE = 2 * 1024 * 1024
"""Below this many bytes threads cost more than they save."""


class Unit(NamedTuple):
    """What a thread does in one go: ``length`` bytes at ``offset`` for a piece of a sum; a whole sum (``piece`` -1); or bytes of no sum (``sum`` -1)."""

    offset: int
    length: int
    sum: int
    piece: int


Watch = Callable[[int, "memoryview | bytes"], object]
"""Called with (offset, bytes) of what no sum covers, from any thread; the bytes are only valid during the call."""
Outcome = int | bytes | InflateError
GAP = 4096
"""Bytes between sums that are not worth a read of their own: headers, which the structure level has read."""


def _units(sums: Sequence[Sum], size: int, gap: int) -> list[Unit]:
    """The work in file order; every byte below ``size`` is in it, except gaps shorter than ``gap``."""
    units = []
    for i, s in enumerate(sums):
        if s.hash is not None:
            extents = [p for p in s.pieces if not isinstance(p, bytes)]
            units.append(Unit(min((p.offset for p in extents), default=0), sum(p.length for p in extents), i, -1))
            continue
        for j, piece in enumerate(s.pieces):
            if isinstance(piece, Deflated):
                units.append(Unit(piece.offset, piece.length, i, j))
            elif isinstance(piece, Extent):
                units += (
                    Unit(at, min(UNIT, piece.offset + piece.length - at), i, j) for at in range(piece.offset, piece.offset + piece.length, UNIT)
                )
    end = 0
    for start, stop, _ in [*covered(sums, certain=False), (size, size, None)]:
        if start - end >= gap:
            units += (Unit(at, min(UNIT, start - at), -1, 0) for at in range(end, start, UNIT))
        end = stop
    units.sort()
    return units


def _batches(units: Iterable[Unit]) -> Iterator[list[Unit]]:
    batch: list[Unit] = []
    size = 0
    for u in units:
        batch.append(u)
        size += u.length
        if size >= UNIT:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _feed(source: Source, pieces: Iterable[Piece], update: Callable[[memoryview | bytes], object], progress: Progress | None) -> None:
    """All bytes of ``pieces``, in order, to ``update``."""
    view = buffer()
    for piece in pieces:
        if isinstance(piece, bytes):
            update(piece)
            continue
        if isinstance(piece, Deflated):
            raise TypeError("deflated data is only ever covered by a CRC-32")
        at, end = piece.offset, piece.offset + piece.length
        while at < end:
            n = min(BUFFER, end - at)
            source.readinto(at, view[:n])
            update(view[:n])
            at += n
            if progress:
                progress(n)


def _work(source: Source, sums: Sequence[Sum], u: Unit, progress: Progress | None, watch: Watch | None = None) -> Outcome:
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
    if s.hash is not None:
        running = s.hash()
        _feed(source, s.pieces, running.update, progress)
        return running.digest()
    piece = s.pieces[u.piece]
    try:
        if isinstance(piece, Deflated):
            return crc_of_deflated(source, piece, 0, progress)
        return crc_of_extent(source, u.offset, u.length, 0, progress)
    except InflateError as e:
        return e


def _outcomes(
    source: Source, sums: Sequence[Sum], units: Sequence[Unit], jobs: int, progress: Progress | None, watch: Watch | None
) -> Iterator[tuple[Unit, Outcome]]:
    """Raises Stopped when ``progress`` does, after the outcome of every unit that was finished by then."""

    def run(batch: list[Unit]) -> tuple[list[tuple[Unit, Outcome]], Stopped | None]:
        done = list[tuple[Unit, Outcome]]()
        try:
            for u in batch:
                done.append((u, _work(source, sums, u, progress, watch)))
        except Stopped as e:
            return done, e
        return done, None

    if jobs < 2 or sum(u.length for u in units) < INLINE:
        for u in units:
            yield u, _work(source, sums, u, progress, watch)
        return
    from collections import deque
    from concurrent.futures import Future, ThreadPoolExecutor
    from itertools import islice

    pool = ThreadPoolExecutor(jobs)
    waiting: deque[Future[tuple[list[tuple[Unit, Outcome]], Stopped | None]]] = deque()
    batches, stopped = _batches(units), None
    try:
        while stopped is None:
            # bounded: the queue never holds more than a few units per thread
            waiting.extend(pool.submit(run, batch) for batch in islice(batches, 1 if waiting else 2 * jobs))
            if not waiting:
                return
            done, stopped = waiting.popleft().result()
            yield from done
        for other in waiting:  # those under way see the end of time themselves
            if not other.cancel():
                yield from other.result()[0]
        raise stopped
    finally:
        pool.shutdown(wait=True, cancel_futures=True)  # also on Ctrl-C: only the units under way are finished


class _Tee:
    """A Source read from front to back that feeds checksums over the whole file on the way, so that their bytes are not read twice."""

    def __init__(self, source: Source, hashes: Sequence[Hash]) -> None:
        self.source, self.hashes, self.at, self.size, self.path = source, hashes, 0, source.size, source.path

    @property
    def bytes_read(self) -> int:
        return self.source.bytes_read

    def _pass(self, offset: int, data: memoryview | bytes) -> None:
        if offset == self.at:
            self.at += len(data)
            for h in self.hashes:
                h.update(data)
        else:
            self.at = -1  # not in order: the hashes are worth nothing

    def read(self, offset: int, length: int) -> bytes:
        data = self.source.read(offset, length)
        self._pass(offset, data)
        return data

    def readinto(self, offset: int, buffer: memoryview) -> None:
        self.source.readinto(offset, buffer)
        self._pass(offset, buffer)


def _joined(s: Sum, crcs: Mapping[int, list[tuple[Unit, int]]]) -> int:
    """The CRC-32 of a sum from those of its units."""
    total = 0
    for j, piece in enumerate(s.pieces):
        if isinstance(piece, bytes):
            total = crc32(piece, total)
        for u, crc in crcs.get(j, ()):
            total = crc32_combine(total, crc, piece.size if isinstance(piece, Deflated) else u.length)
    return total


def mismatches(
    source: Source, sums: Sequence[Sum], *, jobs: int = 0, progress: Progress | None = None, gaps: bool = False, watch: Watch | None = None
) -> Iterator[tuple[Sum, Outcome]]:
    """The sums whose bytes do not match, with the value computed or the InflateError met. ``jobs`` 0 means one thread per core.

    Every covered byte is read once, whatever the number of threads; with ``gaps`` those between the sums are read as well, so that
    a medium that cannot deliver them shows. Raises ShortRead and OSError, and Stopped when ``progress`` does, after the mismatches
    found until then; no thread is left behind.
    """
    jobs = jobs or os.cpu_count() or 1
    everything = (Extent(0, source.size),)
    over = [s for s in sums if s.hash is not None and s.pieces == everything]
    if over and len(sums) > 1:  # one pass in file order by one thread feeds them all
        hashes = [s.hash() for s in over if s.hash is not None]
        tee, rest = _Tee(source, hashes), [s for s in sums if s not in over]
        yield from _compare(tee, rest, _units(rest, source.size, 1), 1, progress, watch)
        if tee.at == source.size:
            yield from ((s, got) for s, h in zip(over, hashes, strict=True) if (got := h.digest()) != s.expected)
            return
        sums = over
    yield from _compare(source, sums, _units(sums, source.size if gaps else 0, GAP if gaps else 1 << 63), jobs, progress, watch)


def _compare(
    source: Source,
    sums: Sequence[Sum],
    units: Sequence[Unit],
    jobs: int,
    progress: Progress | None,
    watch: Watch | None,
    given: Iterable[tuple[Unit, Outcome]] | None = None,
) -> Iterator[tuple[Sum, Outcome]]:
    crcs: dict[int, dict[int, list[tuple[Unit, int]]]] = {}  # sum -> piece -> its units in order
    done: dict[int, Outcome] = {}
    left, stopped = Counter(u.sum for u in units), None
    try:
        for u, got in _outcomes(source, sums, units, jobs, progress, watch) if given is None else given:
            left[u.sum] -= 1
            if u.sum < 0:
                continue
            if u.piece < 0 or isinstance(got, InflateError):
                done[u.sum] = got
            elif isinstance(got, int):
                crcs.setdefault(u.sum, {}).setdefault(u.piece, []).append((u, got))
    except Stopped as e:
        stopped = e
    for i, s in enumerate(sums):
        if left[i] and i not in done:  # stopped before its end: nothing is known about it
            continue
        value = done[i] if i in done else _joined(s, crcs.get(i, {}))
        if value == s.expected:
            continue
        if s.otherwise is not None and not any(True for _ in mismatches(source, [replace(s, pieces=s.otherwise, otherwise=None)], jobs=jobs)):
            continue
        yield s, value
    if stopped is not None:
        raise stopped
