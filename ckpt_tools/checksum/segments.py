"""A chunk and the CRCs that ride on it: the chunk's own digest, and the CRC-32 of the pieces between all the
borders in it, which give every other one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise

from ckpt_tools.checksum.chunks import ChunkDigests
from ckpt_tools.checksum.combine import CRC32, crc32, crc32_combine, crc32c
from ckpt_tools.checksum.sums import Sum, Unit, xxh3

STEP = 1 << 18
"""Bytes that are digested in each way while the CPU has them at hand."""


class Segments:
    """A chunk, ``host``, and what rides on it; fed with the chunk's bytes, in order.

    ``lengths`` are those of the pieces between the borders, ``sealed`` says that CRCs are part of the digest.
    """

    def __init__(self, host: Unit, riders: Sequence[Unit], lengths: Sequence[int], *, sealed: bool) -> None:
        self.host, self.riders, self.lengths, self.sealed = host, riders, lengths, sealed
        self._left, self._crcs, self._first = list(lengths), [0] * len(lengths), 0
        self._xxh3, self._crc32c = xxh3(), 0

    def update(self, data: memoryview) -> None:
        for at in range(0, len(data), STEP):
            part = data[at : at + STEP]
            self._cut(part)  # first: of all digests it waits least for memory
            if self.sealed:
                self._crc32c = crc32c(part, self._crc32c)
            self._xxh3.update(part)

    def _cut(self, data: memoryview) -> None:
        """Add ``data`` to the CRC-32 of the pieces that it belongs to."""
        while len(data):
            i = self._first
            n = min(self._left[i], len(data))
            self._crcs[i] = crc32(data[:n], self._crcs[i])
            self._left[i] -= n
            self._first += not self._left[i]
            data = data[n:]

    def outcomes(self) -> list[tuple[Unit, int | bytes]]:
        """Return the digest of the chunk, and the CRC of each rider that has a sum."""
        starts = list(accumulate(self.lengths, initial=self.host.offset))

        def joined(u: Unit) -> int:
            """Return the CRC-32 of the pieces that a unit consists of."""
            value = 0
            for i in range(bisect_left(starts, u.offset), bisect_left(starts, u.offset + u.length)):
                value = crc32_combine(value, self._crcs[i], self.lengths[i])
            return value

        digest = self._xxh3.digest()
        if self.sealed and isinstance(digest, bytes):
            digest += joined(self.host).to_bytes(4, "big") + self._crc32c.to_bytes(4, "big")
        return [(self.host, digest), *((u, joined(u)) for u in self.riders if u.sum >= 0)]


def segments(sums: Sequence[Sum], host: Unit, riders: Sequence[Unit]) -> Segments | None:
    """Return None for other digests than those of chunks, or other CRCs."""
    make = sums[host.sum].hash
    if make not in (xxh3, ChunkDigests) or any(u.sum >= 0 and sums[u.sum].hash is not CRC32 for u in riders):
        return None
    borders = {host.offset, host.offset + host.length}
    for u in riders:
        if u.sum >= 0:
            borders |= {u.offset, u.offset + u.length}
    lengths = [b - a for a, b in pairwise(sorted(borders))]
    return Segments(host, riders, lengths, sealed=make is ChunkDigests)
