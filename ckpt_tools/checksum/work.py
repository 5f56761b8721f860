"""Units of work, done: by this thread, by several, or by helpers that have the file mapped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from ckpt_tools.checksum.combine import Crc
from ckpt_tools.checksum.crc import InflateError, Progress, buffer, crc_of_deflated, crc_of_extent, step
from ckpt_tools.checksum.sums import MAPPED, Deflated, Extent, Piece, Sum, Unit
from ckpt_tools.storage import LocalSource, Source, Stopped

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
    view = buffer()
    for piece in pieces:
        if isinstance(piece, bytes):
            update(piece)
            continue
        if isinstance(piece, Deflated):
            raise TypeError("deflated data is only ever covered by a CRC")
        at, end = piece.offset, piece.offset + piece.length
        while at < end:
            n = step(at, end)
            source.readinto(at, view[:n])
            update(view[:n])
            at += n
            if progress:
                progress(n)


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
) -> Iterator[tuple[Unit, Outcome]]:
    """What the units give, their work done by ``jobs`` threads, about ``most`` bytes at a time. Raises
    Stopped when ``progress`` does, after the outcome of every unit that was finished by then.
    """
    if isinstance(source, LocalSource) and any(u.length >= MAPPED for u in units):
        from ckpt_tools.checksum.mapped import digests_of_mapped, mappable  # not for small files

        read = set[Unit]()
        for u, got in digests_of_mapped(source, sums, mappable(source, sums, units), jobs, progress):
            read.add(u)
            yield u, got
        # small ones, those of other kinds, and what a helper that died has left
        units = [u for u in units if u not in read]
    if jobs >= 2 and sum(u.length for u in units) >= INLINE:
        yield from _by_threads(source, sums, units, jobs, most, progress=progress, watch=watch)
        return
    for u in units:
        yield u, work(source, sums, u, progress, watch)


def _by_threads(
    source: Source,
    sums: Sequence[Sum],
    units: Sequence[Unit],
    jobs: int,
    most: int,
    *,
    progress: Progress | None,
    watch: Watch | None,
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

    def run(batch: list[Unit]) -> tuple[list[tuple[Unit, Outcome]], Stopped | None]:
        done = list[tuple[Unit, Outcome]]()
        try:
            for u in batch:
                done.append((u, work(source, sums, u, passed, watch)))
        except Stopped as e:
            return done, e
        return done, None

    pool, wait = Threads(jobs), True
    waiting: deque[Future[tuple[list[tuple[Unit, Outcome]], Stopped | None]]] = deque()
    batches, stopped = _batches(units, most), None
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
    except BaseException as e:
        wait = isinstance(
            e, (Exception, GeneratorExit)
        )  # not on Ctrl-C: one of the reads under way may be the one that hangs
        raise
    finally:
        ended = True
        pool.close(wait=wait)
