"""Compute the checksums that stores keep of objects: from bytes that are read anyway, from the checksums of
parts, or from the digests in a seal; and compare them.

S3 keeps a checksum of the whole object, or of the checksums of the parts that it was uploaded in
(https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity-upload.html). CRCs of parts
combine to the CRC of the whole object; any other checksum of the whole needs the bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import accumulate
from typing import NamedTuple

from ckpt_tools.checksum.combine import CRC32, CRC32C, CRC64NVME, Crc
from ckpt_tools.checksum.compare import Computed, Progress
from ckpt_tools.checksum.sums import ASKED, CHUNK, Extent, Hash, Sum
from ckpt_tools.model.seal import NAMES, StoreChecksum, StoreChecksums
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


def combine_crcs(algorithm: str, parts: Iterable[tuple[bytes, int]]) -> bytes:
    """Return the CRC of joined ranges, from (CRC, length in bytes) of each; ``algorithm`` is in CRCS."""
    crc, total = CRCS[algorithm], 0
    for value, length in parts:
        total = crc.combine(total, int.from_bytes(value, "big"), length)
    return _as_bytes(algorithm, total)


def compute_composite(algorithm: str, values: Iterable[bytes]) -> bytes:
    """Return S3's composite checksum of a multipart upload: the checksum of the parts' joined checksums."""
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
        if compute_composite(s.algorithm, s.part_values) == s.value:
            value = combine_crcs(s.algorithm, zip(s.part_values, s.parts, strict=True))
            of_whole.append(StoreChecksum(s.algorithm, value))
    return StoreChecksums(stored.url, stored.size, (*stored.sums, *of_whole))


class Agreement(NamedTuple):
    """One comparison with a checksum that a store keeps, by ``algorithm``: whether the object is the expected
    one (``same``), and the difference in words.
    """

    same: bool
    algorithm: str
    what: str = ""


def agree(checksum: StoreChecksum, value: bytes) -> Agreement:
    """Compare a store's checksum with the expected value."""
    what = f"the store says {NAMES[checksum.algorithm]} {checksum.value.hex()}, {value.hex()} was expected"
    return Agreement(value == checksum.value, checksum.algorithm, what)


def compare_sums(stored: StoreChecksums, expected: Mapping[str, bytes]) -> Agreement | None:
    """Compare a store's checksums with expected ones by algorithm: a difference wins, None if none proves."""
    pairs = [(s, agree(s, expected[s.algorithm])) for s in stored.sums if s.whole and s.algorithm in expected]
    if (different := next((a for s, a in pairs if not a.same and not s.weak), None)) is not None:
        return different
    equal = (a for s, a in pairs if a.same and not s.claimed)
    return min(equal, key=lambda a: STRONGEST.index(a.algorithm), default=None)


def sum_chunks(checksum: StoreChecksum, size: int, chunk_crcs: Sequence[bytes]) -> bytes | None:
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
        values.append(combine_crcs(checksum.algorithm, zip(chunks, lengths, strict=True)))
        first = last
    return compute_composite(checksum.algorithm, values)


def _as_bytes(algorithm: str, value: int) -> bytes:
    """Return a CRC as the bytes that a store keeps, the highest first."""
    return value.to_bytes(_BYTES[algorithm], "big")


# ---- from bytes


class WorkedOut(Computed):
    """One checksum of a store (``of``), computed while a file of ``size`` bytes is read; a composite checksum
    has one sum for each part.
    """

    def __init__(self, of: StoreChecksum, size: int) -> None:
        self.of = of
        crc = CRCS.get(of.algorithm)
        make: Crc | Callable[[], Hash] = crc or partial(hashlib.new, of.algorithm, usedforsecurity=False)
        parts = of.parts or (size,)
        what = "the checksum that the store keeps, from byte"
        ends = zip(accumulate(parts, initial=0), parts)  # noqa: B905 - the last is the end
        super().__init__(Sum(f"{what} {at}", ASKED, (Extent(at, n),), at, hash=make) for at, n in ends)

    @property
    def value(self) -> bytes | None:
        """The checksum of the bytes; None if they were not all read."""
        if (found := self.values) is None:
            return None
        values = [_as_bytes(self.of.algorithm, v) if isinstance(v, int) else v for v in found]
        return values[0] if self.of.whole else compute_composite(self.of.algorithm, values)


def choose_sum(stored: StoreChecksums, *, to_prove: bool) -> StoreChecksum | None:
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
    out.read(source, jobs=jobs, progress=progress)
    return out.value
