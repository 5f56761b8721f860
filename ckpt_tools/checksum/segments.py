"""A chunk and the CRCs that ride on it, as a helper works them out: the chunk's own digest, and the CRC-32 of
the pieces between all the borders in it, which give every other one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from ckpt_tools.checksum import mapped_child
from ckpt_tools.checksum.chunks import ChunkDigests
from ckpt_tools.checksum.combine import CRC32, crc32_combine
from ckpt_tools.checksum.sums import Sum, Unit, xxh3

_KINDS: dict[object, int] = {xxh3: mapped_child.CHUNK, ChunkDigests: mapped_child.SEALED}


class Segments(NamedTuple):
    """``lengths`` are those of the pieces of ``host``, in order."""

    host: Unit
    riders: Sequence[Unit]
    kind: int
    lengths: tuple[int, ...]

    @property
    def answer_size(self) -> int:
        """Bytes of what the helper says."""
        return struct.calcsize(self._answer)

    @property
    def _answer(self) -> str:
        return f"=q16sII{len(self.lengths)}I"

    def outcomes(self, answer: bytes) -> list[tuple[Unit, int | bytes]] | None:
        """What the helper's answer means for the chunk and each rider; None where a page of zeros has to be
        looked at.
        """
        _, strong, crc32c, zero, *crcs = struct.unpack(self._answer, answer)
        if zero and any(u.sum < 0 for u in self.riders):
            return None
        digest = strong
        if self.kind == mapped_child.SEALED:
            whole = self._joined(crcs, self.host)
            digest = strong + whole.to_bytes(4, "big") + crc32c.to_bytes(4, "big")
        return [(self.host, digest), *((u, self._joined(crcs, u) if u.sum >= 0 else 0) for u in self.riders)]

    def _joined(self, crcs: Sequence[int], u: Unit) -> int:
        """The CRC-32 of the pieces that a unit consists of."""
        value, at, end = 0, self.host.offset, u.offset + u.length
        for n, crc in zip(self.lengths, crcs, strict=True):
            if at >= u.offset and at + n <= end:
                value = crc32_combine(value, crc, n)
            at += n
        return value


def segments(sums: Sequence[Sum], host: Unit, riders: Sequence[Unit]) -> Segments | None:
    """None where a helper cannot do it: other digests, or too many pieces."""
    kind = _KINDS.get(sums[host.sum].hash)
    if kind is None or any(u.sum >= 0 and sums[u.sum].hash is not CRC32 for u in riders):
        return None
    start, end = host.offset, host.offset + host.length
    borders = {start, end}
    for u in riders:
        if u.sum >= 0:
            borders |= {u.offset, u.offset + u.length}
    at = sorted(borders)
    lengths = tuple(b - a for a, b in pairwise(at))
    if len(lengths) > mapped_child.PIECES:
        return None
    return Segments(host, riders, kind, lengths)
