"""Stored checksums against the bytes they cover: every byte is read once however many sums it is in, by
several threads, in bounded memory.

What is to be read is cut into runs. CRCs are cut with them and joined again, so that one huge range keeps all
threads busy; any other checksum, and what is deflated, is fed from its first byte to its last within one run.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from ckpt_tools.checksum.combine import Crc
from ckpt_tools.checksum.sums import ASKED, Deflated, Extent, Hash, RunningCrc, Sum, covered, xxh3
from ckpt_tools.storage import Source, Stopped
from ckpt_tools.storage.local import BUFFER, own_buffer
from ckpt_tools.storage.threads import Threads, default_jobs

MIB = 1 << 20
UNIT = 64 * MIB
"""Bytes of a run at most, where it can be cut."""
GAP = 4096
"""Bytes between sums that are not worth a read of their own: headers, which the structure level has read."""
INLINE = 2 * MIB
"""Below this many bytes threads cost more than they save."""
STEP = 1 << 18
"""Bytes that are digested in each way while the CPU has them at hand."""

Progress = Callable[[int], None]
"""Called with the number of bytes just read, from any thread."""
Watch = Callable[[int, "memoryview | bytes"], object]
"""Called with (offset, bytes) of what no sum covers, from any thread; the bytes are only valid during the
call.
"""


class InflateError(Exception):
    """A deflated piece is damaged, or inflates to another size than its directory says."""


Outcome = int | bytes | InflateError


class _Inflating:
    """A running CRC of what a deflated piece inflates to; a bomb stops at the size that it declares."""

    def __init__(self, crc: Crc, piece: Deflated) -> None:
        self._crc, self._size = RunningCrc(crc), piece.size
        self._inflate, self._out, self._trailing = zlib.decompressobj(-15), 0, False

    def update(self, data: memoryview | bytes, /) -> None:
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
        ended = self._inflate.eof and not self._inflate.unused_data and not self._trailing
        if not ended or self._out != self._size:
            raise InflateError(f"inflates to {self._out} bytes of the {self._size} it declares")
        return self._crc.digest()


class _Watching:
    """Shows who watches what comes, as if it were a Hash."""

    def __init__(self, watch: Watch | None, at: int) -> None:
        self._watch, self._at = watch, at

    def update(self, data: memoryview | bytes, /) -> None:
        if self._watch is not None:
            self._watch(self._at, data)
        self._at += len(data)

    def digest(self) -> int:
        return 0


class _Feed(Struct, frozen=True):
    """Who wants bytes: a piece of a sum, or who watches (``sum`` -1). ``fixed``: all of them in one run."""

    start: int
    stop: int
    sum: int = -1
    piece: int = 0
    fixed: bool = False


class _Run(NamedTuple):
    """Bytes that one thread reads in order, and who is fed with them. A feed of no bytes stands for a sum
    whose pieces are read for it, one after the other.
    """

    start: int
    stop: int
    feeds: list[_Feed]


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
    """The sums whose bytes do not match, with the value computed or the InflateError met. ``jobs`` 0 means
    one thread per core.

    Every covered byte is read once, whatever the number of threads; with ``gaps`` those between the sums are
    read as well, so that a medium that cannot deliver them shows. Raises ShortRead and OSError, and Stopped
    when ``progress`` does, after the mismatches found until then; no thread is left behind.
    """
    share = getattr(source, "share", None)  # a store has other limits than this machine
    jobs = int(share(jobs)) if share is not None else jobs or default_jobs()
    # little enough for all threads to end at about the same time
    most = min(UNIT, max(MIB, source.size // (8 * jobs)))
    runs = _list_runs(sums, source.size if gaps else 0, most)
    left, came = Counter(feed.sum for run in runs for feed in run.feeds), dict[int, Outcomes]()
    reader, stopped = _Reader(source, sums, watch), None
    for outcomes, stopped in reader.read_all(runs, jobs, most, progress):  # noqa: B007 - the last one's
        for feed, got in outcomes:
            left[feed.sum] -= 1
            came.setdefault(feed.sum, []).append((feed, got))
    for i, s in enumerate(sums):
        value = _join(s, came.get(i, []), whole=not left[i])
        if value not in (None, s.expected) and not _reads_otherwise(source, s, jobs):
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
    """The XXH3-128 of each list of (offset, length), joined in this order. Raises as ``mismatches``."""
    sums = [Sum("", ASKED, tuple(Extent(*at) for at in ranges), 0, hash=xxh3) for ranges in wanted]
    found = mismatches(source, sums, jobs=jobs, progress=progress)
    return [got for _, got in found if isinstance(got, bytes)]


def _reads_otherwise(source: Source, s: Sum, jobs: int) -> bool:
    """Whether a sum matches by its second reading; by one of nothing none does."""
    if not s.otherwise:
        return False
    second = replace(s, pieces=s.otherwise, otherwise=None)
    return next(iter(mismatches(source, [second], jobs=jobs)), None) is None


def _join(s: Sum, came: Outcomes, *, whole: bool) -> Outcome | None:
    """What a sum comes to from its feeds, in any order; None where one was stopped before its end."""
    wrong = next((got for _, got in came if isinstance(got, InflateError)), None)
    if wrong is not None or not whole:
        return wrong
    if not isinstance(s.hash, Crc):
        return came[0][1]
    total, rest = 0, deque(sorted(came, key=lambda one: (one[0].piece, one[0].start)))
    for j, piece in enumerate(s.pieces):
        if isinstance(piece, bytes):
            total = s.hash.update(piece, total)
        while rest and rest[0][0].piece == j:
            feed, value = rest.popleft()
            length = piece.size if isinstance(piece, Deflated) else feed.stop - feed.start
            if isinstance(value, int):
                total = s.hash.combine(total, value, length) if total else value
    return total


# ---- what is read in one go


def _list_runs(sums: Sequence[Sum], size: int, most: int) -> list[_Run]:
    """All that is to be read: what the sums cover, and the gaps below ``size``."""
    feeds, runs = list[_Feed](), list[_Run]()
    for i, s in enumerate(sums):
        pieces = [(j, p) for j, p in enumerate(s.pieces) if not isinstance(p, bytes)]
        if isinstance(s.hash, Crc) or (len(s.pieces) == len(pieces) == 1 and pieces[0][1].length):
            for j, p in pieces:
                fixed = isinstance(p, Deflated) or not isinstance(s.hash, Crc)
                if p.length:
                    feeds.append(_Feed(p.offset, p.offset + p.length, i, j, fixed))
                elif fixed:
                    runs.append(_Run(0, 0, [_Feed(0, 0, i, j)]))
        else:
            runs.append(_Run(0, sum(p.length for _, p in pieces), [_Feed(0, 0, i, -1)]))
    feeds = sorted([*feeds, *_list_gaps(sums, size)], key=attrgetter("start"))
    return runs + _cut_runs(feeds, most)


def _list_gaps(sums: Sequence[Sum], size: int) -> Iterator[_Feed]:
    end, stored = 0, [s for s in sums if s.expected != ASKED]
    for start, stop, _ in [*covered(stored, certain=False), (size, size, None)] if size else ():
        if start - end >= GAP:
            yield _Feed(end, start)
        end = stop


def _cut_runs(feeds: Sequence[_Feed], most: int) -> list[_Run]:
    """The bytes that feeds want, in file order, cut into runs of ``most`` where nothing is fixed."""
    runs, fixed = list[_Run](), _unite((f for f in feeds if f.fixed), touching=False)
    for start, stop in _unite(feeds, touching=True):
        at = start
        while at < stop:
            end = min(stop, at + most)
            k = bisect_left(fixed, (end, 0)) - 1  # the last one that begins before
            if k >= 0 and fixed[k][1] > end:
                end = fixed[k][0] if fixed[k][0] > at else fixed[k][1]
            runs.append(_Run(at, end, []))
            at = end
    first = 0
    for f in feeds:
        while runs[first].stop <= f.start:
            first += 1
        at, k = f.start, first
        while at < f.stop:
            end = min(f.stop, runs[k].stop)
            runs[k].feeds.append(f if end - at == f.stop - f.start else replace(f, start=at, stop=end))
            at, k = end, k + 1
    return runs


def _unite(feeds: Iterable[_Feed], *, touching: bool) -> list[tuple[int, int]]:
    """(start, stop) of the bytes of feeds that overlap, or touch."""
    out = list[tuple[int, int]]()
    for f in feeds:
        if out and f.start < out[-1][1] + touching:
            out[-1] = out[-1][0], max(out[-1][1], f.stop)
        else:
            out.append((f.start, f.stop))
    return out


def read_parts(
    source: Source, offset: int, length: int, progress: Progress | None
) -> Iterator[memoryview | bytes]:
    """Yield ``length`` bytes from ``offset`` on, each part valid until the next one is asked for. All reads
    but the first begin with a page of the file. Raises ShortRead and OSError.
    """
    end, views = offset + length, getattr(source, "views", None)
    if views is not None:  # what has come is in memory
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
    """Reads runs of a file, by this thread or by several."""

    source: Source
    sums: Sequence[Sum]
    watch: Watch | None

    def read_all(
        self, runs: Sequence[_Run], jobs: int, most: int, progress: Progress | None
    ) -> Iterator[tuple[Outcomes, Stopped | None]]:
        """Yield what comes of the runs, about ``most`` bytes at a time, until one was stopped."""
        batches = _batch(runs, most)
        if jobs < 2 or sum(run.stop - run.start for run in runs) < INLINE:
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

        pool, wait, stopped = Threads(jobs), True, None
        waiting = deque[Future[tuple[Outcomes, Stopped | None]]]()
        try:
            while True:
                # bounded: the queue never holds more than a few batches per thread
                for batch in islice(batches, 0 if stopped else 1 if waiting else 2 * jobs):
                    waiting.append(pool.submit(self.read_batch, batch, count))
                if not waiting:
                    return
                future = waiting.popleft()
                if stopped is None or not future.cancel():  # those under way see the end of time themselves
                    outcomes, one = future.result()
                    stopped = stopped or one
                    yield outcomes, stopped
        except BaseException as e:
            # not on Ctrl-C: one of the reads under way may be the one that hangs
            wait = isinstance(e, (Exception, GeneratorExit))
            raise
        finally:
            ended = True
            pool.close(wait=wait)

    def read_batch(self, runs: Sequence[_Run], progress: Progress | None) -> tuple[Outcomes, Stopped | None]:
        """What comes of some runs, and what ended them early."""
        out = Outcomes()
        try:
            for run in runs:
                if run.feeds[0].start == run.feeds[0].stop:
                    self._read_pieces(run.feeds[0], progress, out)
                else:
                    self._read_run(run, progress, out)
        except Stopped as e:
            return out, e
        return out, None

    def _read_run(self, run: _Run, progress: Progress | None, out: Outcomes) -> None:
        waiting, fed, at = deque(run.feeds), list[tuple[_Feed, Hash]](), run.start
        for part in read_parts(self.source, run.start, run.stop - run.start, progress):
            done = 0
            while done < len(part):
                data = part[done : done + STEP - at % STEP]
                while waiting and waiting[0].start < at + len(data):
                    fed.append((waiting[0], self._begin(waiting.popleft())))
                fed = [one for one in fed if self._feed(*one, at, data, out)]
                done, at = done + len(data), at + len(data)

    def _read_pieces(self, feed: _Feed, progress: Progress | None, out: Outcomes) -> None:
        running = self._begin(feed)
        for piece in self.sums[feed.sum].pieces if feed.piece < 0 else ():
            if isinstance(piece, Deflated):
                raise TypeError("deflated data is only ever covered by a CRC")
            if isinstance(piece, bytes):
                running.update(piece)
            else:
                for part in read_parts(self.source, piece.offset, piece.length, progress):
                    running.update(part)
        self._feed(feed, running, 0, b"", out)

    def _begin(self, feed: _Feed) -> Hash:
        if feed.sum < 0:
            return _Watching(self.watch, feed.start)
        s = self.sums[feed.sum]
        if not isinstance(s.hash, Crc):
            return s.hash()
        piece = s.pieces[feed.piece]
        return _Inflating(s.hash, piece) if isinstance(piece, Deflated) else RunningCrc(s.hash)

    @staticmethod
    def _feed(feed: _Feed, running: Hash, at: int, data: memoryview | bytes, out: Outcomes) -> bool:
        """Whether more is wanted than ``data``, which lies at ``at``; else what came of it is in ``out``."""
        got: Outcome
        try:
            running.update(data[max(0, feed.start - at) : feed.stop - at])
            if feed.stop > at + len(data):
                return True
            got = running.digest()
        except InflateError as e:
            got = e
        out.append((feed, got))
        return False


def _batch(runs: Iterable[_Run], most: int) -> Iterator[list[_Run]]:
    """The runs, in lists of about ``most`` bytes."""
    batch, size = list[_Run](), 0
    for run in runs:
        batch.append(run)
        size += run.stop - run.start
        if size >= most:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
