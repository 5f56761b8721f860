"""Stored checksums against the bytes they cover: several threads, every byte read once, big ranges split and
their CRCs combined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from ckpt_tools.checksum.combine import Crc
from ckpt_tools.checksum.crc import UNIT, InflateError, Progress, crc_of_deflated
from ckpt_tools.checksum.riding import shared
from ckpt_tools.checksum.sums import ASKED, Deflated, Extent, Hash, Piece, Sum, Unit, covered
from ckpt_tools.checksum.work import Outcome, Watch, outcomes
from ckpt_tools.storage import HeldSource, Source, Stopped
from ckpt_tools.storage.cpus import default_jobs

MIB = 1 << 20
GAP = 4096
"""Bytes between sums that are not worth a read of their own: headers, which the structure level has read."""


def readers(source: Source, jobs: int) -> int:
    """Threads that work on what is read of a source, which may have other limits than this machine."""
    share = getattr(source, "share", None)
    return int(share(jobs)) if share is not None else jobs or default_jobs()


def _share(size: int, jobs: int) -> int:
    """Bytes per unit: little enough for all threads to end at about the same time."""
    return min(UNIT, max(MIB, size // (8 * jobs)))


def _units(sums: Sequence[Sum], size: int, gap: int, most: int) -> list[Unit]:
    """The work in file order; every byte below ``size`` is in it, except gaps shorter than ``gap``; no unit
    is longer than ``most`` if it can be split.
    """
    units = []
    for i, s in enumerate(sums):
        if not isinstance(s.hash, Crc):
            extents = [p for p in s.pieces if not isinstance(p, bytes)]
            units.append(
                Unit(min((p.offset for p in extents), default=0), sum(p.length for p in extents), i, -1)
            )
            continue
        for j, piece in enumerate(s.pieces):
            if isinstance(piece, Deflated):
                units.append(Unit(piece.offset, piece.length, i, j))
            elif isinstance(piece, Extent):
                units += (
                    Unit(at, min(most, piece.offset + piece.length - at), i, j)
                    for at in range(piece.offset, piece.offset + piece.length, most)
                )
    units += _gaps(sums, size, gap, most)
    units.sort()
    return units


def _gaps(sums: Sequence[Sum], size: int, gap: int, most: int) -> Iterator[Unit]:
    """The bytes below ``size`` that no stored checksum covers, where there are ``gap`` or more."""
    end, stored = 0, [s for s in sums if s.expected != ASKED]
    for start, stop, _ in [*covered(stored, certain=False), (size, size, None)]:
        if start - end >= gap:
            yield from (Unit(at, min(most, start - at), -1, 0) for at in range(end, start, most))
        end = stop


class _Tee:
    """A Source read from front to back that feeds checksums over the whole file on the way, so that their
    bytes are not read twice.
    """

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


def apart(sums: Sequence[Sum], size: int) -> tuple[list[tuple[Sum, Callable[[], Hash]]], list[Sum]]:
    """(sums over the whole file that one thread feeds with the bytes that it reads for the rest, and their
    makers; the rest).
    """
    over = (
        [(s, s.hash) for s in sums if not isinstance(s.hash, Crc) and s.pieces == (Extent(0, size),)]
        if len(sums) > 1
        else []
    )
    return over, [s for s in sums if not any(s is other for other, _ in over)] if over else list(sums)


def _joined(crc: Crc, s: Sum, crcs: Mapping[int, list[tuple[Unit, int]]]) -> int:
    """The CRC of a sum from those of its units, in whatever order they came."""
    total = 0
    for j, piece in enumerate(s.pieces):
        if isinstance(piece, bytes):
            total = crc.update(piece, total)
        for u, value in sorted(crcs.get(j, ())):
            total = crc.combine(total, value, piece.size if isinstance(piece, Deflated) else u.length)
    return total


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
    if isinstance(source, HeldSource) and source.held and _crcs_alone(sums, source.size):
        yield from _in_memory(source, sums, gaps, progress, watch)
        return
    jobs = readers(source, jobs)
    over, rest = apart(sums, source.size)
    if over:  # one pass in file order by one thread feeds them all
        hashes = [make() for _, make in over]
        tee = _Tee(source, hashes)
        yield from _compare(tee, rest, _units(rest, source.size, 1, UNIT), 1, progress, watch=watch)
        if tee.at == source.size:
            yield from (
                (s, got) for (s, _), h in zip(over, hashes, strict=True) if (got := h.digest()) != s.expected
            )
            return
        sums = [s for s, _ in over]
    units = _units(sums, source.size if gaps else 0, GAP if gaps else 1 << 63, _share(source.size, jobs))
    yield from _compare(source, sums, units, jobs, progress, watch=watch)


def _crcs_alone(sums: Sequence[Sum], size: int) -> bool:
    """Whether every sum is a CRC, with one reading, of bytes that a file of this size has."""
    if not all(isinstance(s.hash, Crc) and s.otherwise is None for s in sums):
        return False
    return all(isinstance(p, bytes) or p.offset + p.length <= size for s in sums for p in s.pieces)


def _in_memory(
    source: HeldSource, sums: Sequence[Sum], gaps: bool, progress: Progress | None, watch: Watch | None
) -> Iterator[tuple[Sum, Outcome]]:
    """``mismatches`` of CRCs in a file that is in memory: there is nothing to split, to share or to join. So
    little is told at its end, and all at once.
    """
    read = 0
    for s in sums:
        read += sum(piece.length for piece in s.pieces if isinstance(piece, Extent))
        if isinstance(s.hash, Crc) and (value := _crc(s.hash, source, s.pieces, progress)) != s.expected:
            yield s, value
    if progress:
        progress(read)
    end = 0
    for start, stop, _ in [*covered(sums), (source.size, source.size, None)] if gaps else ():
        if start - end >= GAP:
            if watch:
                watch(end, source.view(end, start - end))
            if progress:
                progress(start - end)
        end = stop


def _crc(crc: Crc, source: HeldSource, pieces: Sequence[Piece], progress: Progress | None) -> Outcome:
    """The CRC of some pieces, joined."""
    value = 0
    for piece in pieces:
        if isinstance(piece, Extent):
            value = crc.update(source.view(piece.offset, piece.length), value)
        elif isinstance(piece, bytes):
            value = crc.update(piece, value)
        else:
            try:
                value = crc.combine(value, crc_of_deflated(crc, source, piece, progress), piece.size)
            except InflateError as e:
                return e
    return value


class _Found:
    """What the units of some sums gave so far: CRCs by piece, other checksums whole."""

    def __init__(self, units: Iterable[Unit]) -> None:
        self._left = Counter(u.sum for u in units)
        self._whole: dict[int, Outcome] = {}
        self._crcs: dict[int, dict[int, list[tuple[Unit, int]]]] = {}  # sum -> piece -> its units

    def add(self, u: Unit, got: Outcome) -> None:
        self._left[u.sum] -= 1
        if u.sum < 0:
            return
        if u.piece < 0 or isinstance(got, InflateError):
            self._whole[u.sum] = got
        elif isinstance(got, int):
            self._crcs.setdefault(u.sum, {}).setdefault(u.piece, []).append((u, got))

    def value(self, i: int, s: Sum) -> Outcome | None:
        """What the i-th sum came to; None where it was stopped before its end: nothing is known about it."""
        if i in self._whole:
            return self._whole[i]
        if self._left[i]:
            return None
        if isinstance(s.hash, Crc):
            return _joined(s.hash, s, self._crcs.get(i, {}))
        raise AssertionError(f"{s.what}: nobody has fed it")


def _compare(
    source: Source,
    sums: Sequence[Sum],
    units: Sequence[Unit],
    jobs: int,
    progress: Progress | None,
    *,
    watch: Watch | None,
) -> Iterator[tuple[Sum, Outcome]]:
    """The sums that do not match, from what their units give. Raises Stopped after them."""
    units, riders = shared(sums, units)
    found, stopped = _Found(units), None
    most = _share(source.size, jobs)
    try:
        for u, got in outcomes(
            source, sums, units, jobs, most, riders=riders, progress=progress, watch=watch
        ):
            found.add(u, got)
    except Stopped as e:
        stopped = e
    for i, s in enumerate(sums):
        value = found.value(i, s)
        if value is None or value == s.expected or _reads_otherwise(source, s, jobs):
            continue
        yield s, value
    if stopped is not None:
        raise stopped


def _reads_otherwise(source: Source, s: Sum, jobs: int) -> bool:
    """Whether a sum matches by its second reading."""
    if s.otherwise is None:
        return False
    second = replace(s, pieces=s.otherwise, otherwise=None)
    return next(iter(mismatches(source, [second], jobs=jobs)), None) is None
