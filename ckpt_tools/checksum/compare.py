"""Compare stored checksums with the bytes they cover: every byte is read once however many sums cover it, by
several threads, in bounded memory.

The bytes are cut into batches. CRCs are cut at the same places and combined again, so that one huge range
keeps all threads busy; any other checksum, and a deflated piece, is fed from first byte to last in one batch.
"""

from __future__ import annotations

import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from ckpt_tools.checksum.combine import Crc
from ckpt_tools.checksum.sums import (
    ASKED,
    Deflated,
    Extent,
    Hash,
    RunningCrc,
    Sum,
    find_covered,
    hash_pieces,
    xxh3,
)
from ckpt_tools.storage import Source, Stopped
from ckpt_tools.storage.local import ALIGNED, BUFFER, HeldSource, own_buffer
from ckpt_tools.storage.stalls import Threads, default_jobs

MIB = 1 << 20
UNIT = 64 * MIB
"""Bytes of a batch at most, where it can be cut."""
GAP = 4096
"""Shorter gaps between sums are not read: they are headers, which the structure level has read."""
INLINE = 2 * MIB
"""Below this many bytes threads cost more than they save."""
STEP = 1 << 18
"""Bytes that go to every sum that covers them while they are in the CPU's cache."""

Progress = Callable[[int], None]
"""Called with the number of bytes just read, from any thread."""
Watch = Callable[[int, "memoryview | bytes"], object]
"""Called from any thread with (offset, bytes) that no sum covers; the bytes are valid until it returns."""


class InflateError(Exception):
    """A deflated piece that is damaged, or inflates to another size than its directory says."""


Outcome = int | bytes | InflateError


class _Inflating:
    """A running CRC of the inflated bytes of a deflated piece; inflates no more than the declared size."""

    def __init__(self, crc: Crc, piece: Deflated) -> None:
        self._crc, self._size = RunningCrc(crc), piece.size
        self._inflate, self._out, self._trailing = zlib.decompressobj(-15), 0, False

    def update(self, data: memoryview | bytes, /) -> None:
        """Inflate the next bytes. Raises InflateError if they are damaged, or more than was declared."""
        self._trailing = self._inflate.eof
        more = not self._trailing
        while more:
            try:
                got = self._inflate.decompress(data, BUFFER)
            except zlib.error as e:
                raise InflateError(str(e)) from e
            self._out += len(got)
            if self._out > self._size:
                raise InflateError(f"inflates to more than the {self._size} bytes it declares")
            self._crc.update(got)
            data = self._inflate.unconsumed_tail
            # all input may be taken while output is still to come
            more = not self._inflate.eof and (bool(data) or len(got) == BUFFER)

    def digest(self) -> int:
        """Return the CRC. Raises InflateError unless the data ended at the declared size."""
        ended = self._inflate.eof and not self._inflate.unused_data and not self._trailing
        if not ended or self._out != self._size:
            raise InflateError(f"inflates to {self._out} bytes of the {self._size} it declares")
        return self._crc.digest()


class _Feed(Struct, frozen=True):
    """Bytes from ``start`` to ``stop`` for piece number ``piece`` of sum number ``sum`` (-1: the watcher),
    ``fixed`` if they must be in one batch. With ``piece`` -1 the feed stands for all pieces of the sum, which
    are read one after the other; its offsets lie behind the file's end.
    """

    start: int
    stop: int
    sum: int = -1
    piece: int = 0
    fixed: bool = False


Outcomes = list[tuple[_Feed, Outcome]]
_Values = tuple[Sequence[Outcome | None], int, Stopped | None]
"""The value of each sum, None if it was stopped before its end; the count of bytes that were read and not yet
given to ``progress``; the Stopped that ended the pass, if any.
"""


def mismatches(
    source: Source,
    sums: Sequence[Sum],
    *,
    jobs: int = 0,
    progress: Progress | None = None,
    gaps: bool = False,
    watch: Watch | None = None,
) -> Iterator[tuple[Sum, Outcome]]:
    """Yield the sums that do not match, each with the computed value or an InflateError. ``jobs`` 0 means one
    thread per core.

    Every covered byte is read once, whatever the number of threads. With ``gaps`` the bytes between the sums
    are read as well, to detect a medium that cannot deliver them. Raises ShortRead and OSError; Stopped if
    ``progress`` does, after the mismatches found until then. No thread is left behind.
    """
    share = getattr(source, "share", None)  # a store has other limits than this machine
    jobs = int(share(jobs)) if share is not None else jobs or default_jobs()
    reader, size = _Reader(source, sums, watch or (lambda *_: None)), source.size if gaps else 0
    values, read, stopped = reader.compute_held(size) or reader.compute(size, jobs, progress)
    for s, value in zip(sums, values, strict=True):
        if value in (None, s.expected):
            continue
        second = [replace(s, pieces=s.otherwise, otherwise=None)] if s.otherwise else []
        if not second or next(mismatches(source, second, jobs=jobs), None) is not None:
            yield s, value
    if stopped is not None:
        raise stopped
    if progress and read:
        progress(read)


def digests(
    source: Source,
    wanted: Sequence[Sequence[tuple[int, int]]],
    *,
    jobs: int = 0,
    progress: Progress | None = None,
) -> list[bytes]:
    """Return an XXH3-128 for each list of (offset, length), joined in order. Raises as ``mismatches``."""
    sums = [Sum("", ASKED, tuple(Extent(*at) for at in ranges), 0, hash=xxh3) for ranges in wanted]
    found = mismatches(source, sums, jobs=jobs, progress=progress)
    return [got for _, got in found if isinstance(got, bytes)]


class Computed:
    """Checksums that are computed while a file is read: read ``sums`` (with ASKED in place of a stored value)
    with all others, then ``collect`` keeps their values.
    """

    def __init__(self, sums: Iterable[Sum]) -> None:
        self.sums, self._got = list(sums), dict[Sum, int | bytes]()

    def collect(self, differing: Iterable[tuple[Sum, Outcome]]) -> Iterator[tuple[Sum, Outcome]]:
        """Keep the values of ``sums``; yield all other sums with their values."""
        mine = set(self.sums)
        for s, got in differing:
            if s in mine and not isinstance(got, InflateError):
                self._got[s] = got
            else:
                yield s, got

    def read(self, source: Source, *, jobs: int = 0, progress: Progress | None = None) -> None:
        """Read a file for these sums alone. Raises as ``mismatches`` does."""
        for _ in self.collect(mismatches(source, self.sums, jobs=jobs, progress=progress)):
            raise AssertionError("nothing is stored that could differ")

    @property
    def values(self) -> list[int | bytes] | None:
        """The values of ``sums``, in order; None if they did not all come: the reading was stopped."""
        return [self._got[s] for s in self.sums] if len(self._got) == len(set(self.sums)) else None


def _combine_feeds(s: Sum, outcomes: Outcomes, *, complete: bool) -> Outcome | None:
    """Return a sum's computed value from the outcomes of its feeds (ranges); None unless ``complete``."""
    error = next((got for _, got in outcomes if isinstance(got, InflateError)), None)
    if error is not None or not complete:
        return error
    if not isinstance(s.hash, Crc):
        return outcomes[0][1]
    total, waiting = 0, deque(sorted(outcomes, key=lambda outcome: (outcome[0].piece, outcome[0].start)))
    for j, piece in enumerate(s.pieces):
        if isinstance(piece, bytes):
            total = s.hash.update(piece, total)
        while waiting and waiting[0][0].piece == j:
            feed, value = waiting.popleft()
            length = piece.size if isinstance(piece, Deflated) else feed.stop - feed.start
            if isinstance(value, int):
                total = s.hash.combine(total, value, length) if total else value
    return total


# ---- feeds and batches: which bytes are read together


def _list_feeds(sums: Sequence[Sum], size: int, gaps: int) -> list[_Feed]:
    """Return the feeds of a file of ``size`` bytes: the pieces of all sums, and gaps below byte ``gaps``."""
    feeds, next_at = list[_Feed](_list_gaps(sums, gaps)), size
    for i, s in enumerate(sums):
        pieces = [(j, p) for j, p in enumerate(s.pieces) if not isinstance(p, bytes)]
        if isinstance(s.hash, Crc) or (len(s.pieces) == len(pieces) == 1 and pieces[0][1].length):
            for j, p in pieces:
                fixed = isinstance(p, Deflated) or not isinstance(s.hash, Crc)
                if p.length or fixed:
                    feeds.append(_Feed(p.offset, p.offset + p.length, i, j, fixed))
        else:
            feeds.append(_Feed(next_at, next_at + sum(p.length for _, p in pieces), i, -1, fixed=True))
            next_at = feeds[-1].stop
    return feeds


def _list_batches(feeds: Iterable[_Feed], most: int) -> list[list[_Feed]]:
    """Return batches of about ``most`` bytes, in file order: feeds are cut at pages unless they are fixed."""
    waiting, batches, page = deque(sorted(feeds, key=attrgetter("start"))), [], min(ALIGNED, most)
    while waiting:
        batch, end = list[_Feed](), -(-(waiting[0].start + most) // page) * page
        while waiting and waiting[0].start < end:
            batch.append(waiting.popleft())
            end = max(end, batch[-1].stop) if batch[-1].fixed else end
        waiting.extendleft([replace(f, start=end) for f in batch if f.stop > end])
        batches.append([replace(f, stop=end) if f.stop > end else f for f in batch])
    return batches


def _list_gaps(sums: Sequence[Sum], size: int) -> Iterator[_Feed]:
    """Yield a feed for each range of at least GAP bytes below ``size`` that no stored checksum covers."""
    end, stored = 0, [s for s in sums if s.expected != ASKED]
    for start, stop, _ in [*find_covered(stored, certain=False), (size, size, None)] if size else ():
        if start - end >= GAP:
            yield _Feed(end, start)
        end = stop


def read_parts(
    source: Source, offset: int, length: int, progress: Progress | None
) -> Iterator[memoryview | bytes]:
    """Yield ``length`` bytes from ``offset`` on, in parts, each valid until the next one is asked for. All
    reads but the first begin at a page of the file. Raises ShortRead and OSError.
    """
    end, views = offset + length, getattr(source, "views", None)
    if views is not None:  # the source has the bytes in memory
        for part in views(offset, length):
            yield part
            if progress:
                progress(len(part))
        return
    view = own_buffer()
    while offset < end:
        n = min(BUFFER - offset % BUFFER, end - offset)
        source.readinto(offset, view[:n])
        yield view[:n]
        offset += n
        if progress:
            progress(n)


class _Reader(NamedTuple):
    """The pass over one file: reads the bytes that ``sums`` cover, and gives those of gaps to ``watch``."""

    source: Source
    sums: Sequence[Sum]
    watch: Watch

    def compute_held(self, gaps: int) -> _Values | None:
        """Return the values for a file in memory; None for any other, a cut one, or a deflated piece."""
        source, values = self.source, list[Outcome]()
        if not isinstance(source, HeldSource) or not (whole := memoryview(source.whole())):
            return None
        uncovered = [Extent(feed.start, feed.stop - feed.start) for feed in _list_gaps(self.sums, gaps)]
        ranges = find_covered([*self.sums, Sum("", ASKED, tuple(uncovered), 0)], certain=False)
        if max([stop for _, stop, _ in ranges], default=0) > len(whole):
            return None
        for s in self.sums:
            if Deflated in map(type, s.pieces):
                return None
            pieces = [p if isinstance(p, bytes) else whole[p.offset : p.offset + p.length] for p in s.pieces]
            values.append(hash_pieces(s.hash, pieces))
        for e in uncovered:
            self.watch(e.offset, whole[e.offset : e.offset + e.length])
        source.count(read := sum([stop - start for start, stop, _ in ranges]))
        return values, read, None

    def compute(self, gaps: int, jobs: int, progress: Progress | None) -> _Values:
        """Return the values of all sums, by one thread or several; read also the gaps below byte ``gaps``."""
        size = self.source.size
        # small batches, so that all threads end at about the same time
        most = min(UNIT, max(MIB, size // (8 * jobs)))
        batches = _list_batches(_list_feeds(self.sums, size, gaps), most)
        left, by_sum = Counter(feed.sum for batch in batches for feed in batch), dict[int, Outcomes]()
        stopped = None
        for outcomes, stopped in self.read_all(batches, jobs, progress):  # noqa: B007 - the last one's
            for feed, got in outcomes:
                left[feed.sum] -= 1
                by_sum.setdefault(feed.sum, []).append((feed, got))
        values = [_combine_feeds(s, by_sum.get(i, []), complete=not left[i]) for i, s in enumerate(self.sums)]
        return values, 0, stopped

    def read_all(
        self, batches: Sequence[Sequence[_Feed]], jobs: int, progress: Progress | None
    ) -> Iterator[tuple[Outcomes, Stopped | None]]:
        """Yield the outcomes of each batch, and the Stopped that ended it, if any."""
        if jobs < 2 or sum(batch[-1].stop - batch[0].start for batch in batches) < INLINE:
            for batch in batches:
                yield (done := self.read_batch(batch, progress))
                if done[1] is not None:
                    return
            return
        ended = False

        def count(n: int) -> None:
            if ended:  # nobody waits for this any more, after Ctrl-C for one
                raise Stopped
            if progress:
                progress(n)

        pool, wait, stopped, left = Threads(jobs), True, None, iter(batches)
        waiting = deque[Future[tuple[Outcomes, Stopped | None]]]()
        try:
            while True:
                # bounded: the queue never holds more than a few batches per thread
                for batch in islice(left, 0 if stopped else 1 if waiting else 2 * jobs):
                    waiting.append(pool.submit(self.read_batch, batch, count))
                if not waiting:
                    return
                future = waiting.popleft()
                if stopped is None or not future.cancel():  # a batch that is being read stops by itself
                    outcomes, stopped_here = future.result()
                    stopped = stopped or stopped_here
                    yield outcomes, stopped
        except BaseException as e:
            # on Ctrl-C do not wait: a read may hang
            wait = isinstance(e, (Exception, GeneratorExit))
            raise
        finally:
            ended = True
            pool.close(wait=wait)

    def read_batch(
        self, feeds: Sequence[_Feed], progress: Progress | None
    ) -> tuple[Outcomes, Stopped | None]:
        """Return the outcomes of the feeds of a batch, and the Stopped that ended it early, if any."""
        out, plain = Outcomes(), [f for f in feeds if f.piece >= 0 and f.start < f.stop]
        try:
            for feed in feeds if len(plain) < len(feeds) else ():
                if feed.piece < 0 or feed.start == feed.stop:
                    self._read_pieces(feed, progress, out)
            self._read_plain(plain, progress, out)
        except Stopped as e:
            return out, e
        return out, None

    def _read_plain(self, feeds: Sequence[_Feed], progress: Progress | None, out: Outcomes) -> None:
        """Read the ranges of the feeds once, and feed each part to all; adds to ``out``."""
        ranges = list[tuple[int, int]]()  # (start, stop), joined if feeds overlap or touch
        for f in feeds:
            if ranges and f.start <= ranges[-1][1]:
                ranges[-1] = ranges[-1][0], max(ranges[-1][1], f.stop)
            else:
                ranges.append((f.start, f.stop))
        waiting, fed = deque(feeds), list[tuple[_Feed, Hash | None]]()
        for start, stop in ranges:
            at = start
            for part in read_parts(self.source, start, stop - start, progress):
                done = 0
                while done < len(part):
                    data = part[done : done + STEP - at % STEP]
                    while waiting and waiting[0].start < at + len(data):
                        feed = waiting.popleft()
                        fed.append((feed, None if feed.sum < 0 else self._make_hash(feed)))
                    fed = [pair for pair in fed if self._feed(*pair, at, data, out)]
                    done, at = done + len(data), at + len(data)

    def _read_pieces(self, feed: _Feed, progress: Progress | None, out: Outcomes) -> None:
        """Read the pieces of one sum one after the other, each in a read of its own; adds to ``out``."""
        running = self._make_hash(feed)
        for piece in self.sums[feed.sum].pieces if feed.piece < 0 else ():
            if isinstance(piece, Deflated):
                raise TypeError("deflated data is only ever covered by a CRC")
            if isinstance(piece, bytes):
                running.update(piece)
            else:
                for part in read_parts(self.source, piece.offset, piece.length, progress):
                    running.update(part)
        self._feed(feed, running, feed.stop, b"", out)

    def _make_hash(self, feed: _Feed) -> Hash:
        """Return a running checksum for a feed, of the kind that its sum and piece need."""
        s = self.sums[feed.sum]
        if not isinstance(s.hash, Crc):
            return s.hash()
        piece = s.pieces[feed.piece]
        return _Inflating(s.hash, piece) if isinstance(piece, Deflated) else RunningCrc(s.hash)

    def _feed(
        self, feed: _Feed, running: Hash | None, at: int, data: memoryview | bytes, out: Outcomes
    ) -> bool:
        """Feed ``data``, which lies at byte ``at``, to ``running``, or to the watcher if that is None. Return
        True if the feed needs more data; else add its outcome to ``out``.
        """
        part, more = data[max(0, feed.start - at) : feed.stop - at], feed.stop > at + len(data)
        if running is None:
            self.watch(max(at, feed.start), part)
            return more
        try:
            running.update(part)
            if more:
                return True
            out.append((feed, running.digest()))
        except InflateError as e:
            out.append((feed, e))
        return False
