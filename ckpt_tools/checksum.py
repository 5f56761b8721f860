"""Checksums of byte ranges of a Source: bounded memory, several threads, big ranges split and their CRCs combined."""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ckpt_tools.storage import Source

try:  # Intel's isa-l: three to ten times zlib's speed, releases the GIL
    from isal.isal_zlib import crc32, crc32_combine
except ImportError:  # pragma: no cover - platforms without an isal wheel
    crc32 = zlib.crc32

    def crc32_combine(a: int, b: int, length: int, /) -> int:
        """CRC of two joined ranges, by feeding zeros: slow, but right."""
        zeros, alone = bytes(1 << 16), 0
        while length:
            n = min(length, len(zeros))
            a, alone = zlib.crc32(zeros[:n], a), zlib.crc32(zeros[:n], alone)
            length -= n
        return a ^ alone ^ b


BUFFER = 512 * 1024
"""Bytes per read: fits the L2 cache, so the CRC reads what preadv has just put there; 256 KiB cost more calls than it saved cache."""
UNIT = 32 * 1024 * 1024
"""Bytes per unit of work handed to a thread."""
INLINE = 2 * 1024 * 1024
"""Below this many bytes threads cost more than they save."""

Progress = Callable[[int], None]
"""Called with the number of bytes just read, from any thread."""


@dataclass(frozen=True, slots=True)
class Extent:
    """``length`` bytes at ``offset`` of the file."""

    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Deflated:
    """A raw-deflate stream of ``length`` bytes at ``offset`` that must inflate to exactly ``size`` bytes."""

    offset: int
    length: int
    size: int


Piece = Extent | Deflated | bytes


@dataclass(frozen=True, slots=True)
class Sum:
    """A stored CRC-32: it covers ``pieces``, joined in this order. ``otherwise`` is a second reading that is right as well."""

    what: str
    expected: int
    pieces: tuple[Piece, ...]
    offset: int
    otherwise: tuple[Piece, ...] | None = None


class InflateError(Exception):
    """A deflated piece is damaged, or inflates to another size than its directory says."""


_local = threading.local()


def _buffer() -> memoryview:
    view: memoryview | None = getattr(_local, "view", None)
    if view is None:
        view = _local.view = memoryview(bytearray(BUFFER))
    return view


def crc_of_extent(source: Source, offset: int, length: int, start: int = 0, progress: Progress | None = None) -> int:
    """CRC-32 of a byte range, read in BUFFER-sized pieces by this thread. Raises ShortRead and OSError."""
    view, crc, end = _buffer(), start, offset + length
    while offset < end:
        n = min(BUFFER, end - offset)
        part = view[:n]
        source.readinto(offset, part)
        crc = crc32(part, crc)
        offset += n
        if progress:
            progress(n)
    return crc


def _crc_of_deflated(source: Source, piece: Deflated, start: int, progress: Progress | None) -> int:
    inflate, crc, out, at, end = zlib.decompressobj(-15), start, 0, piece.offset, piece.offset + piece.length
    try:
        while at < end and not inflate.eof:
            data = source.read(at, min(BUFFER, end - at))
            at += len(data)
            if progress:
                progress(len(data))
            while data and not inflate.eof:  # bounded output: a bomb stops as soon as it exceeds its declared size
                got = inflate.decompress(data, BUFFER)
                out += len(got)
                if out > piece.size:
                    raise InflateError(f"inflates to more than the {piece.size} bytes it declares")
                crc = crc32(got, crc)
                data = inflate.unconsumed_tail
        if not inflate.eof or out != piece.size or at != end or inflate.unused_data:
            raise InflateError(f"inflates to {out} bytes of the {piece.size} it declares")
    except zlib.error as e:
        raise InflateError(str(e)) from e
    return crc


Unit = tuple[int, int, int, int]  # (sum, piece, offset, length)


def _units(sums: Sequence[Sum]) -> Iterator[Unit]:
    for i, s in enumerate(sums):
        for j, piece in enumerate(s.pieces):
            if isinstance(piece, bytes):
                continue
            if isinstance(piece, Deflated):
                yield i, j, piece.offset, piece.length
                continue
            at, left = piece.offset, piece.length
            while left > 0:
                n = min(UNIT, left)
                yield i, j, at, n
                at, left = at + n, left - n


def _batches(units: Iterable[Unit]) -> Iterator[list[Unit]]:
    batch: list[Unit] = []
    size = 0
    for u in units:
        batch.append(u)
        size += u[3]
        if size >= UNIT:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _crcs(source: Source, sums: Sequence[Sum], jobs: int, progress: Progress | None) -> Iterator[tuple[Unit, int | InflateError]]:
    def run(batch: list[Unit]) -> list[tuple[Unit, int | InflateError]]:
        out: list[tuple[Unit, int | InflateError]] = []
        for u in batch:
            piece = sums[u[0]].pieces[u[1]]
            try:
                if isinstance(piece, Deflated):
                    out.append((u, _crc_of_deflated(source, piece, 0, progress)))
                else:
                    out.append((u, crc_of_extent(source, u[2], u[3], 0, progress)))
            except InflateError as e:
                out.append((u, e))
        return out

    total = sum(p.length for s in sums for p in s.pieces if not isinstance(p, bytes))
    if jobs < 2 or total < INLINE:
        for batch in _batches(_units(sums)):
            yield from run(batch)
        return
    from collections import deque
    from concurrent.futures import Future, ThreadPoolExecutor

    pool = ThreadPoolExecutor(jobs)
    waiting: deque[Future[list[tuple[Unit, int | InflateError]]]] = deque()
    try:
        for batch in _batches(_units(sums)):
            waiting.append(pool.submit(run, batch))
            if len(waiting) > 2 * jobs:  # bounded: the queue never holds more than a few units per thread
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)  # also on Ctrl-C: only the units under way are finished


def mismatches(source: Source, sums: Sequence[Sum], *, jobs: int = 0, progress: Progress | None = None) -> Iterator[tuple[Sum, int | InflateError]]:
    """The sums whose bytes do not match, with the CRC computed or the InflateError met. ``jobs`` 0 means one thread per core.

    Every byte is read once, whatever the number of threads. Raises ShortRead and OSError.
    """
    jobs = jobs or os.cpu_count() or 1
    state: dict[int, int] = {}  # sum -> CRC so far
    filled: dict[int, int] = {}  # sum -> pieces whose literal bytes are folded in
    failed: dict[int, InflateError] = {}

    def literals(i: int, upto: int) -> None:
        pieces = sums[i].pieces
        for j in range(filled.get(i, 0), upto):
            piece = pieces[j]
            if isinstance(piece, bytes):
                state[i] = crc32(piece, state.get(i, 0))
        filled[i] = max(upto, filled.get(i, 0))

    for (i, j, _, length), crc in _crcs(source, sums, jobs, progress):
        literals(i, j)
        if isinstance(crc, InflateError):
            failed[i] = crc
            continue
        piece = sums[i].pieces[j]
        n = piece.size if isinstance(piece, Deflated) else length
        state[i] = crc32_combine(state.get(i, 0), crc, n)
    for i, s in enumerate(sums):
        literals(i, len(s.pieces))
        if i in failed:
            yield s, failed[i]
        elif state.get(i, 0) != s.expected:
            if s.otherwise is not None and not any(True for _ in mismatches(source, [Sum(s.what, s.expected, s.otherwise, s.offset)], jobs=jobs)):
                continue
            yield s, state.get(i, 0)
