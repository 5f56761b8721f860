"""The checksums that stores keep of objects, worked out from bytes that are read anyway, from those of parts,
and from the digests that a seal has.

S3 keeps a checksum of the whole object, or of the checksums of the parts that it was uploaded in
(https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity-upload.html). CRCs of parts
combine to that of the whole; other checksums of parts need the bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import accumulate

from msgspec import Struct

from ckpt_tools.checksum.chunks import CHUNK
from ckpt_tools.checksum.combine import CRC32, CRC32C, CRC64NVME, Crc
from ckpt_tools.checksum.compare import mismatches
from ckpt_tools.checksum.crc import Progress
from ckpt_tools.checksum.sums import ASKED, Extent, Hash, Sum
from ckpt_tools.checksum.work import Outcome
from ckpt_tools.model.store_checksum import StoreChecksum, StoreChecksums
from ckpt_tools.storage import Source

CRCS = {"crc32c": CRC32C, "crc32": CRC32, "crc64nvme": CRC64NVME}
_BYTES = {"crc32c": 4, "crc32": 4, "crc64nvme": 8}
CHEAPEST = ("crc32c", "crc32", "crc64nvme", "sha256", "sha1", "sha512", "md5")
"""What is worked out of bytes, where a store keeps several: the first of these."""
STRONGEST = ("sha512", "sha256", "sha1", "md5", "crc64nvme", "crc32c", "crc32")
"""Which is named, where several are equal."""
TILE = 16 << 20
"""Bytes that one thread digests of a whole object, where nothing else says how it is shared out."""


def can_work_out(algorithm: str) -> bool:
    """Whether what it takes is installed: CRC-64/NVME is in a package of its own."""
    return algorithm in CHEAPEST and (algorithm != "crc64nvme" or find_spec("awscrt") is not None)


# ---- without any bytes


def combined(algorithm: str, parts: Iterable[tuple[bytes, int]]) -> bytes:
    """The CRC of joined ranges, from (the CRC, how many bytes) of each."""
    crc, total = CRCS[algorithm], 0
    for value, length in parts:
        total = crc.combine(total, int.from_bytes(value, "big"), length)
    return _as_bytes(algorithm, total)


def composite(algorithm: str, values: Iterable[bytes]) -> bytes:
    """The checksum of the checksums of parts."""
    data = b"".join(values)
    if algorithm in CRCS:
        return _as_bytes(algorithm, CRCS[algorithm].update(data, 0))
    return hashlib.new(algorithm, data, usedforsecurity=False).digest()


def told_of_whole(told: StoreChecksums) -> StoreChecksums:
    """With that of the whole object wherever the CRCs of all its parts are told, and these are what their
    composite says that they are.
    """
    return StoreChecksums(told.url, told.size, (*told.sums, *_wholes(told)))


def _wholes(told: StoreChecksums) -> Iterator[StoreChecksum]:
    have = {s.algorithm for s in told.sums if s.whole}
    for s in told.sums:
        combines = s.algorithm in CRCS and s.algorithm not in have and can_work_out(s.algorithm)
        if not combines or s.whole or len(s.part_values) != len(s.parts) or sum(s.parts) != told.size:
            continue
        if composite(s.algorithm, s.part_values) == s.value:
            value = combined(s.algorithm, zip(s.part_values, s.parts, strict=True))
            yield StoreChecksum(s.algorithm, value)


class Agreement(Struct, frozen=True):
    """Whether the bytes that a store keeps are those that ``known`` digests are of, by which ``checksum``."""

    same: bool
    checksum: StoreChecksum
    known: bytes


def compared(told: StoreChecksums, known: Mapping[str, bytes]) -> Agreement | None:
    """What the checksums of a whole object say beside digests of whole bytes, by algorithm; None where there
    are no two of one kind that prove anything. One that differs wins.
    """
    pairs = [(s, known[s.algorithm]) for s in told.sums if s.whole and s.algorithm in known]
    for s, digest in pairs:
        if s.value != digest and not s.weak:
            return Agreement(False, s, digest)
    equal = [pair for pair in pairs if pair[0].value == pair[1] and not pair[0].claimed]
    if not equal:
        return None
    s, digest = min(equal, key=lambda pair: STRONGEST.index(pair[0].algorithm))
    return Agreement(True, s, digest)


def of_chunks(checksum: StoreChecksum, size: int, chunk_crcs: Sequence[bytes]) -> bytes | None:
    """A composite CRC from those of the chunks of a seal (checksum/chunks.py); None where a part does not end
    with a chunk.
    """
    if checksum.algorithm not in CRCS or checksum.whole or sum(checksum.parts) != size:
        return None
    values, at, first = list[bytes](), 0, 0
    for length in checksum.parts:
        at += length
        if length <= 0 or (at % CHUNK and at != size):
            return None
        last = -(-at // CHUNK)
        chunks = chunk_crcs[first:last]
        lengths = (min(CHUNK, size - k * CHUNK) for k in range(first, last))
        values.append(combined(checksum.algorithm, zip(chunks, lengths, strict=True)))
        first = last
    return composite(checksum.algorithm, values)


def _as_bytes(algorithm: str, value: int) -> bytes:
    return value.to_bytes(_BYTES[algorithm], "big")


# ---- from bytes


class RunningCrc:
    """A CRC that one thread feeds, with what else is worked out of the same bytes riding on it."""

    def __init__(self, algorithm: str) -> None:
        self._crc, self._value = CRCS[algorithm], 0

    def update(self, data: memoryview | bytes, /) -> None:
        self._value = self._crc.update(data, self._value)

    def digest(self) -> int:
        return self._value


class RunningComposite:
    """The checksum of the checksums of parts, fed with the bytes of all, in order."""

    def __init__(self, algorithm: str, parts: tuple[int, ...]) -> None:
        self._algorithm, self._left, self._done = algorithm, list(reversed(parts)), list[bytes]()
        self._part, self._wanted = _running(algorithm), self._left.pop()

    def update(self, data: memoryview | bytes, /) -> None:
        view, at = memoryview(data), 0
        while at < len(view):
            piece = view[at : at + self._wanted] if self._wanted else view[at:]
            self._part.update(piece)
            at += len(piece)
            self._wanted -= len(piece)
            if not self._wanted and self._left:
                self._next()

    def _next(self) -> None:
        self._done.append(_value(self._algorithm, self._part.digest()))
        self._part, self._wanted = _running(self._algorithm), self._left.pop()

    def digest(self) -> bytes:
        last = _value(self._algorithm, self._part.digest())
        return composite(self._algorithm, [*self._done, last])


def _running(algorithm: str) -> Hash:
    if algorithm in CRCS:
        return RunningCrc(algorithm)
    return hashlib.new(algorithm, usedforsecurity=False)


def _value(algorithm: str, came: Outcome) -> bytes:
    """What a range came to, as a store has it."""
    if isinstance(came, int):
        return _as_bytes(algorithm, came)
    assert isinstance(came, bytes)  # noqa: S101 - for the type checker: nothing is inflated here
    return came


class WorkedOut:
    """One checksum of a store, worked out while a file is read: ``sums`` are to be read with those that are
    ``beside``, ``taken`` keeps what they came to. No byte is read again for it (checksum/riding.py):

    * where a digest of the whole file is worked out in one pass, this is fed by the same pass;
    * where digests of long ranges are (a seal's chunks), CRCs ride on them;
    * elsewhere it is cut into ranges itself, and what is beside rides on these.

    ``alone``: nothing is beside; threads share it out as they do any other.
    """

    def __init__(
        self, of: StoreChecksum, size: int, beside: Sequence[Sum] = (), *, alone: bool = False
    ) -> None:
        self.of, self.size = of, size
        crc = CRCS.get(of.algorithm)
        ranges = [s for s in beside if not isinstance(s.hash, Crc)]
        in_pass = any(s.pieces == (Extent(0, size),) for s in ranges)
        self._one_pass = in_pass or (crc is None and (of.whole or bool(ranges)))
        hash_: Crc | Callable[[], Hash] = partial(_running, of.algorithm)
        if self._one_pass:
            extents = [Extent(0, size)]
            if not of.whole:
                hash_ = partial(RunningComposite, of.algorithm, of.parts)
        elif crc is not None and (ranges or alone):
            extents, hash_ = _extents(of, size, size), crc
        else:
            extents = _extents(of, size, TILE)
        self.sums = [Sum(f"{_WHAT} {e.offset}", ASKED, (e,), e.offset, hash=hash_) for e in extents]
        self._extents = extents
        self._came: dict[int, bytes] = {}

    def taken(self, told: Iterable[tuple[Sum, Outcome]]) -> Iterator[tuple[Sum, Outcome]]:
        """Keeps what is its own, and passes on all else."""
        mine = {s: i for i, s in enumerate(self.sums)}
        for s, got in told:
            if (i := mine.get(s)) is None:
                yield s, got
            else:
                self._came[i] = _value(self.of.algorithm, got)

    @property
    def value(self) -> bytes | None:
        """What the bytes come to; None while they were not all read."""
        if len(self._came) != len(self.sums):
            return None
        values = [self._came[i] for i in range(len(self.sums))]
        if self._one_pass:
            return values[0]
        if not self.of.whole:
            return composite(self.of.algorithm, values)
        lengths = (e.length for e in self._extents)
        return combined(self.of.algorithm, zip(values, lengths, strict=True))

    @property
    def first_wrong(self) -> Extent | None:
        """The first part of an upload that differs from what the store says of that part, where it does."""
        if self._one_pass or len(self.of.part_values) != len(self.sums):
            return None
        told = enumerate(self.of.part_values)
        wrong = (i for i, value in told if i in self._came and self._came[i] != value)
        return next((self._extents[i] for i in wrong), None)


_WHAT = "the checksum that the store keeps, from byte"


def _extents(of: StoreChecksum, size: int, tile: int) -> list[Extent]:
    """The parts of an upload, or all of it in tiles."""
    if of.whole:
        return [Extent(at, min(tile, size - at)) for at in range(0, size, max(tile, 1))]
    ends = list(accumulate(of.parts))
    return [Extent(end - length, length) for end, length in zip(ends, of.parts, strict=True)]


def to_work_out(told: StoreChecksums, *, to_prove: bool) -> StoreChecksum | None:
    """The cheapest to compare with bytes: of those whose difference is damage, or, ``to_prove`` that the
    object has these bytes, of those whose equality says so.
    """
    usable = [
        s
        for s in told.sums
        if can_work_out(s.algorithm)
        and not (s.claimed if to_prove else s.weak)
        and told.size > 0
        and (s.whole or _tiles(s.parts, told.size))
    ]
    return min(usable, key=lambda s: (s.weak, not s.whole, CHEAPEST.index(s.algorithm)), default=None)


def _tiles(parts: Sequence[int], size: int) -> bool:
    return sum(parts) == size and min(parts) > 0


def work_out(
    source: Source, of: StoreChecksum, *, jobs: int = 0, progress: Progress | None = None
) -> bytes | None:
    """One checksum of a store from the bytes of a file, read once. Raises as ``mismatches`` does."""
    out = WorkedOut(of, source.size, alone=True)
    for _ in out.taken(mismatches(source, out.sums, jobs=jobs, progress=progress)):
        raise AssertionError("nothing is stored that could differ")
    return out.value
