"""Compute the checksums that stores keep of objects: from bytes that are read anyway, from the checksums of
parts, or from the digests in a seal; and compare them.

S3 keeps a checksum of the whole object, or of the checksums of the parts that it was uploaded in
(https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity-upload.html). CRCs of parts
combine to the CRC of the whole object; any other checksum of the whole needs the bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import accumulate

from msgspec import Struct

from ckpt_tools.checksum.combine import CRC32, CRC32C, CRC64NVME, Crc
from ckpt_tools.checksum.compare import Outcome, Progress, mismatches
from ckpt_tools.checksum.sums import ASKED, CHUNK, Extent, Hash, Sum
from ckpt_tools.model.seal import StoreChecksum, StoreChecksums
from ckpt_tools.storage import Source

CRCS = {"crc32c": CRC32C, "crc32": CRC32, "crc64nvme": CRC64NVME}
_BYTES = {"crc32c": 4, "crc32": 4, "crc64nvme": 8}  # of a CRC
CHEAPEST = ("crc32c", "crc32", "crc64nvme", "sha256", "sha1", "sha512", "md5")
"""If a store keeps several checksums, the first of these is computed from the bytes."""
STRONGEST = ("sha512", "sha256", "sha1", "md5", "crc64nvme", "crc32c", "crc32")
"""If several checksums are equal, the first of these is named."""


def can_work_out(algorithm: str) -> bool:
    """Return True if the algorithm is installed: CRC-64/NVME needs the package awscrt."""
    return algorithm in CHEAPEST and (algorithm != "crc64nvme" or find_spec("awscrt") is not None)


# ---- without any bytes


def combined(algorithm: str, parts: Iterable[tuple[bytes, int]]) -> bytes:
    """Return the CRC of joined ranges, from (CRC, length in bytes) of each."""
    crc, total = CRCS[algorithm], 0
    for value, length in parts:
        total = crc.combine(total, int.from_bytes(value, "big"), length)
    return _as_bytes(algorithm, total)


def composite(algorithm: str, values: Iterable[bytes]) -> bytes:
    """Return the composite checksum: the checksum of the joined checksums of the parts."""
    data = b"".join(values)
    if algorithm in CRCS:
        return _as_bytes(algorithm, CRCS[algorithm].update(data, 0))
    return hashlib.new(algorithm, data, usedforsecurity=False).digest()


def add_whole_checksums(stored: StoreChecksums) -> StoreChecksums:
    """Return the checksums and the CRC of the whole object, if the CRCs of all parts fit their composite."""
    algorithms, of_whole = {s.algorithm for s in stored.sums if s.whole}, list[StoreChecksum]()
    for s in stored.sums:
        combines = s.algorithm in CRCS and s.algorithm not in algorithms and can_work_out(s.algorithm)
        if not combines or s.whole or len(s.part_values) != len(s.parts) or sum(s.parts) != stored.size:
            continue
        if composite(s.algorithm, s.part_values) == s.value:
            value = combined(s.algorithm, zip(s.part_values, s.parts, strict=True))
            of_whole.append(StoreChecksum(s.algorithm, value))
    return StoreChecksums(stored.url, stored.size, (*stored.sums, *of_whole))


class Agreement(Struct, frozen=True):
    """One comparison of a store's ``checksum`` with a ``known`` digest, and whether they are the ``same``."""

    same: bool
    checksum: StoreChecksum
    known: bytes


def compared(stored: StoreChecksums, known: Mapping[str, bytes]) -> Agreement | None:
    """Compare checksums of a whole object with known digests: a difference wins, None if none proves."""
    pairs = [(s, known[s.algorithm]) for s in stored.sums if s.whole and s.algorithm in known]
    for s, digest in pairs:
        if s.value != digest and not s.weak:
            return Agreement(False, s, digest)
    equal = [pair for pair in pairs if pair[0].value == pair[1] and not pair[0].claimed]
    if not equal:
        return None
    s, digest = min(equal, key=lambda pair: STRONGEST.index(pair[0].algorithm))
    return Agreement(True, s, digest)


def of_chunks(checksum: StoreChecksum, size: int, chunk_crcs: Sequence[bytes]) -> bytes | None:
    """Return a composite CRC from the CRCs of a seal's chunks; None if a part does not end with a chunk."""
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


class WorkedOut:
    """One checksum of a store (``of``), computed while a file is read: read ``sums`` with all other sums,
    then ``collect`` keeps their values. A composite checksum has one sum for each part.
    """

    def __init__(self, of: StoreChecksum, size: int) -> None:
        self.of = of
        crc = CRCS.get(of.algorithm)
        make: Crc | Callable[[], Hash] = crc or partial(hashlib.new, of.algorithm, usedforsecurity=False)
        starts = accumulate(of.parts, initial=0)
        extents = [Extent(0, size)] if of.whole else [Extent(*at) for at in zip(starts, of.parts)]  # noqa: B905
        self.sums = [Sum(f"{_WHAT} {e.offset}", ASKED, (e,), e.offset, hash=make) for e in extents]
        self._extents, self._values = extents, dict[int, bytes]()

    def collect(self, differing: Iterable[tuple[Sum, Outcome]]) -> Iterator[tuple[Sum, Outcome]]:
        """Keep the values of ``sums``; yield all other sums with their values."""
        mine = {s: i for i, s in enumerate(self.sums)}
        for s, got in differing:
            if (i := mine.get(s)) is None:
                yield s, got
            elif isinstance(got, int):
                self._values[i] = _as_bytes(self.of.algorithm, got)
            elif isinstance(got, bytes):
                self._values[i] = got

    @property
    def value(self) -> bytes | None:
        """Return the checksum of the bytes; None if they were not all read."""
        if len(self._values) != len(self.sums):
            return None
        values = [self._values[i] for i in range(len(self.sums))]
        return values[0] if self.of.whole else composite(self.of.algorithm, values)

    @property
    def first_wrong(self) -> Extent | None:
        """Return the first part of an upload with another checksum than the store keeps, None if none."""
        parts = enumerate(self.of.part_values if len(self.of.part_values) == len(self.sums) else ())
        wrong = (i for i, value in parts if i in self._values and self._values[i] != value)
        return next((self._extents[i] for i in wrong), None)


_WHAT = "the checksum that the store keeps, from byte"


def to_work_out(stored: StoreChecksums, *, to_prove: bool) -> StoreChecksum | None:
    """Return the cheapest checksum whose difference is damage (``to_prove``: whose equality is proof)."""
    usable = [
        s
        for s in stored.sums
        if can_work_out(s.algorithm)
        and not (s.claimed if to_prove else s.weak)
        and stored.size > 0
        and (s.whole or (sum(s.parts) == stored.size and min(s.parts) > 0))
    ]
    return min(usable, key=lambda s: (s.weak, not s.whole, CHEAPEST.index(s.algorithm)), default=None)


def work_out(
    source: Source, of: StoreChecksum, *, jobs: int = 0, progress: Progress | None = None
) -> bytes | None:
    """Return a store's checksum as computed from the bytes of a file, read once. Raises as ``mismatches``."""
    out = WorkedOut(of, source.size)
    for _ in out.collect(mismatches(source, out.sums, jobs=jobs, progress=progress)):
        raise AssertionError("nothing is stored that could differ")
    return out.value
