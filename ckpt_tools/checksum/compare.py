"""Compare stored checksums with the bytes they cover: every byte is read once however many sums cover it, by
several threads, in bounded memory.

The bytes are cut into batches. CRCs are cut at the same places and combined again, so that one huge range
keeps all threads busy; any other checksum, and a deflated piece, is fed from first byte to last in one batch.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from operator import attrgetter

from msgspec import Struct, field
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
    ``fixed`` if they must be in one batch.
    """

    start: int
    stop: int
    sum: int = -1
    piece: int = 0
    fixed: bool = False


Outcomes = list[tuple[_Feed, Outcome]]


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
    reader, stopped = _Reader(source, sums, [None] * len(sums), watch or (lambda *_: None), progress), None
    try:
        reader.read(source.size if gaps else 0, jobs)
    except Stopped as e:
        stopped = e
    for s, value in zip(sums, reader.values, strict=True):
        if value in (None, s.expected):
            continue
        second = [replace(s, pieces=s.otherwise, otherwise=None)] if s.otherwise else []
        if not second or next(mismatches(source, second, jobs=jobs), None) is not None:
            yield s, value
    if stopped is not None:
        raise stopped


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
    """Return a sum's first error, or its computed value from the outcomes of its feeds if all are here."""
    total, waiting = 0, deque(sorted(outcomes, key=lambda outcome: (outcome[0].piece, outcome[0].start)))
    error = next((got for _, got in waiting if isinstance(got, InflateError)), None)
    if error is not None or not complete:
        return error
    if not isinstance(s.hash, Crc):
        return outcomes[0][1]
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


def _is_plain(s: Sum) -> bool:
    """Return True if a sum's pieces can be read in any order: those of a CRC, or a single one."""
    first = s.pieces[0] if len(s.pieces) == 1 else b""
    return isinstance(s.hash, Crc) or (isinstance(first, Extent) and first.length > 0)


def _list_feeds(sums: Sequence[Sum], gaps: int) -> list[_Feed]:
    """Return the feeds of plain sums, and of the gaps below byte ``gaps``."""
    feeds = list[_Feed](_list_gaps(sums, gaps))
    for i, s in enumerate(sums):
        for j, p in enumerate(s.pieces if _is_plain(s) else ()):
            fixed = isinstance(p, Deflated) or not isinstance(s.hash, Crc)
            if not isinstance(p, bytes) and (p.length or fixed):
                feeds.append(_Feed(p.offset, p.offset + p.length, i, j, fixed))
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


class _Reader(Struct):
    """The pass over one file: reads the bytes that ``sums`` cover, and gives those of gaps to ``watch``.
    ``values`` gets the value of each sum; None stays if the pass was stopped before.
    """

    source: Source
    sums: Sequence[Sum]
    values: list[Outcome | None]
    watch: Watch
    progress: Progress | None
    _outcomes: Outcomes = field(default_factory=list)  # of feeds, in any order: threads add to it
    _ended: bool = False

    def read(self, gaps: int, jobs: int) -> None:
        """Compute the values; read also the gaps below byte ``gaps``. Raises Stopped if ``progress`` does."""
        if self._read_held(gaps):
            return
        # small batches, so that all threads end at about the same time
        most = min(UNIT, max(MIB, self.source.size // (8 * jobs)))
        batches = _list_batches(_list_feeds(self.sums, gaps), most)
        tasks: list[Callable[[], None]] = [partial(self._read_batch, batch) for batch in batches]
        length = sum(batch[-1].stop - batch[0].start for batch in batches)
        for i, s in enumerate(self.sums):
            if not _is_plain(s):
                tasks.append(partial(self._read_pieces, i))
                length += sum(p.length for p in s.pieces if not isinstance(p, bytes))
        try:
            self._run(tasks, jobs if length >= INLINE else 1)
        finally:
            self._combine(Counter(feed.sum for batch in batches for feed in batch))

    def _combine(self, feeds: Counter[int]) -> None:
        """Set the values of plain sums, each of which has so many ``feeds``."""
        by_sum = defaultdict[int, Outcomes](list)
        for feed, got in self._outcomes:
            by_sum[feed.sum].append((feed, got))
        for i, s in enumerate(self.sums):
            if _is_plain(s):
                self.values[i] = _combine_feeds(s, by_sum[i], complete=len(by_sum[i]) == feeds[i])

    def _read_held(self, gaps: int) -> bool:
        """Compute the values of a file in memory; return False for any other, a cut one, a deflated piece."""
        source = self.source
        if not isinstance(source, HeldSource) or not (whole := memoryview(source.whole())):
            return False
        uncovered = [Extent(feed.start, feed.stop - feed.start) for feed in _list_gaps(self.sums, gaps)]
        ranges = find_covered([*self.sums, Sum("", ASKED, tuple(uncovered), 0)], certain=False)
        if max([stop for _, stop, _ in ranges], default=0) > len(whole):
            return False
        for i, s in enumerate(self.sums):
            if Deflated in map(type, s.pieces):
                return False
            pieces = [p if isinstance(p, bytes) else whole[p.offset : p.offset + p.length] for p in s.pieces]
            self.values[i] = hash_pieces(s.hash, pieces)
        for e in uncovered:
            self.watch(e.offset, whole[e.offset : e.offset + e.length])
        source.count(read := sum([stop - start for start, stop, _ in ranges]))
        if read and self.progress:
            self.progress(read)
        return True

    def _read_parts(self, offset: int, length: int) -> Iterator[memoryview | bytes]:
        """Yield ``length`` bytes from ``offset`` on, in parts, each valid until the next one is asked for.
        Reads but the first begin at a page of the file. Raises ShortRead and OSError.
        """
        end, views = offset + length, getattr(self.source, "views", None)
        if views is not None:  # the source has the bytes in memory
            for part in views(offset, length):
                yield part
                self._advance(len(part))
            return
        view = own_buffer()
        while offset < end:
            n = min(BUFFER - offset % BUFFER, end - offset)
            self.source.readinto(offset, view[:n])
            yield view[:n]
            offset += n
            self._advance(n)

    def _advance(self, n: int) -> None:
        if self._ended:  # nobody waits for this any more, after Ctrl-C for one
            raise Stopped
        if self.progress:
            self.progress(n)

    def _run(self, tasks: Iterable[Callable[[], None]], jobs: int) -> None:
        """Do the tasks with so many threads. Raises the first error; no other thread goes on then."""
        if jobs < 2:
            for task in tasks:
                task()
            return
        pool, wait, waiting = Threads(jobs), True, deque[Future[None]]()
        try:
            for task in tasks:
                if len(waiting) >= 2 * jobs:
                    waiting.popleft().result()
                waiting.append(pool.submit(task))
            while waiting:
                waiting.popleft().result()
        except BaseException as e:
            wait = isinstance(e, Exception)  # on Ctrl-C do not wait: a read may hang
            raise
        finally:
            self._ended = True
            pool.close(wait=wait)

    def _read_batch(self, feeds: Sequence[_Feed]) -> None:
        """Read the ranges of the feeds once, and give each part to all of them."""
        ranges = list[tuple[int, int]]()  # (start, stop), joined if feeds overlap or touch
        for f in feeds:
            if ranges and f.start <= ranges[-1][1]:
                ranges[-1] = ranges[-1][0], max(ranges[-1][1], f.stop)
            else:
                ranges.append((f.start, f.stop))
        waiting, fed = deque(feeds), list[tuple[_Feed, Hash | None]]()
        for start, stop in ranges:
            at = start
            for part in self._read_parts(start, stop - start):
                done = 0
                while done < len(part):
                    data = part[done : done + STEP - at % STEP]
                    while waiting and waiting[0].start < at + len(data):
                        feed = waiting.popleft()
                        fed.append((feed, None if feed.sum < 0 else self._make_hash(feed)))
                    fed = [pair for pair in fed if self._feed(*pair, at, data)]
                    done, at = done + len(data), at + len(data)
        for feed in waiting:  # of no bytes
            self._feed(feed, self._make_hash(feed), feed.stop, b"")

    def _read_pieces(self, i: int) -> None:
        """Compute a sum whose pieces must be read one after the other."""
        s = self.sums[i]
        assert not isinstance(s.hash, Crc)  # noqa: S101 - for the type checker: such a sum is plain
        running = s.hash()
        for piece in s.pieces:
            if isinstance(piece, Deflated):
                raise TypeError("deflated data is only ever covered by a CRC")
            if isinstance(piece, bytes):
                running.update(piece)
            else:
                for part in self._read_parts(piece.offset, piece.length):
                    running.update(part)
        self.values[i] = running.digest()

    def _make_hash(self, feed: _Feed) -> Hash:
        """Return a running checksum for a feed, of the kind that its sum and piece need."""
        s = self.sums[feed.sum]
        if not isinstance(s.hash, Crc):
            return s.hash()
        piece = s.pieces[feed.piece]
        return _Inflating(s.hash, piece) if isinstance(piece, Deflated) else RunningCrc(s.hash)

    def _feed(self, feed: _Feed, running: Hash | None, at: int, data: memoryview | bytes) -> bool:
        """Feed ``data``, which lies at byte ``at``, to ``running``, or to the watcher if that is None. Return
        True if the feed needs more data; else keep its outcome.
        """
        part, more = data[max(0, feed.start - at) : max(0, feed.stop - at)], feed.stop > at + len(data)
        if running is None:
            self.watch(max(at, feed.start), part)
            return more
        try:
            running.update(part)
            if more:
                return True
            self._outcomes.append((feed, running.digest()))
        except InflateError as e:
            self._outcomes.append((feed, e))
        return False
