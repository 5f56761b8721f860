"""A chunk and the CRCs that ride on it: the chunk's own digest, and the CRC-32 of the pieces between all the
borders in it, which give every other one.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from ckpt_tools.checksum import mapped_child
from ckpt_tools.checksum.chunks import ChunkDigests
from ckpt_tools.checksum.combine import CRC32, castagnoli, crc32_combine
from ckpt_tools.checksum.sums import Sum, Unit, xxh3

_CRC = 4
_KINDS: dict[object, int] = {xxh3: mapped_child.CHUNK, ChunkDigests: mapped_child.SEALED}


class Segments(NamedTuple):
    """``lengths`` are those of the pieces of ``host``, in order."""

    host: Unit
    riders: Sequence[Unit]
    kind: int
    lengths: tuple[int, ...]

    @property
    def watched(self) -> bool:
        """Whether a page of zeros would have to be looked at: one in bytes of no sum."""
        return any(u.sum < 0 for u in self.riders)

    @property
    def answer_size(self) -> int:
        """Bytes of what the helper says."""
        return struct.calcsize(self._answer)

    @property
    def _answer(self) -> str:
        return f"=q16sII{len(self.lengths)}I"

    def begun(self) -> mapped_child.Chunk:
        """What is fed with the chunk, in this process; its digest is an answer without the offset."""
        castagnoli()
        return mapped_child.Chunk(self.lengths, self.kind == mapped_child.SEALED, watched=False)

    def of(self, chunk: mapped_child.Chunk) -> list[tuple[Unit, int | bytes]]:
        """What a chunk that was fed here means for itself and each rider that is a CRC."""
        crc32c = chunk.sealed.digest() if chunk.sealed is not None else b""
        return self._outcomes(chunk.xxh3.digest(), crc32c[-_CRC:], chunk.crcs)

    def outcomes(self, answer: bytes) -> list[tuple[Unit, int | bytes]] | None:
        """What the helper's answer means for the chunk and each rider; None where a page of zeros has to be
        looked at.
        """
        _, strong, crc32c, zero, *crcs = struct.unpack(self._answer, answer)
        if zero and self.watched:
            return None
        unsummed = [u for u in self.riders if u.sum < 0]
        return [*self._outcomes(strong, crc32c.to_bytes(_CRC, "big"), crcs), *((u, 0) for u in unsummed)]

    def _outcomes(self, strong: bytes, crc32c: bytes, crcs: Sequence[int]) -> list[tuple[Unit, int | bytes]]:
        starts = list(accumulate(self.lengths, initial=self.host.offset))

        def joined(u: Unit) -> int:
            """The CRC-32 of the pieces that a unit consists of."""
            value = 0
            for i in range(bisect_left(starts, u.offset), bisect_left(starts, u.offset + u.length)):
                value = crc32_combine(value, crcs[i], self.lengths[i])
            return value

        digest = strong
        if self.kind == mapped_child.SEALED:
            digest += joined(self.host).to_bytes(_CRC, "big") + crc32c
        return [(self.host, digest), *((u, joined(u)) for u in self.riders if u.sum >= 0)]


def segments(sums: Sequence[Sum], host: Unit, riders: Sequence[Unit]) -> Segments | None:
    """None for other digests than those of chunks, or other CRCs."""
    kind = _KINDS.get(sums[host.sum].hash)
    if kind is None or any(u.sum >= 0 and sums[u.sum].hash is not CRC32 for u in riders):
        return None
    start, end = host.offset, host.offset + host.length
    borders = {start, end}
    for u in riders:
        if u.sum >= 0:
            borders |= {u.offset, u.offset + u.length}
    at = sorted(borders)
    return Segments(host, riders, kind, tuple(b - a for a, b in pairwise(at)))
