"""When each block of a file was last checked, kept between runs in the cache of verdicts."""

from __future__ import annotations

import time
import zlib
from array import array

from ckpt_tools.cache.verdicts import Cache, Entry
from ckpt_tools.checksum import Blocks
from ckpt_tools.model.report import Level
from ckpt_tools.storage import Identity

_QUESTION = b"when its blocks were checked"
_DIGEST, _DEPTH = 8, int(Level.CONTENT)

DAMAGED = -1
"""Instead of a time: the block did not match, so it comes first. 0 is never checked; any other negative
number is a time at which a run ended before the block did.
"""


def turn(value: int) -> int:
    """By what a block's turn comes, the smallest first."""
    return value if value >= DAMAGED else -value


class Times:
    """Of this run (``now_ns``) and earlier ones, as far as there is a cache."""

    def __init__(self, cache: Cache | None) -> None:
        self.cache, self.now_ns = cache, time.time_ns()

    def of(self, path: str, identity: Identity | None, blocks: Blocks, question: bytes | None) -> array[int]:
        """One for each block. ``question`` is that of verdicts on the whole content, which count for all
        blocks.
        """
        times = array("q", bytes(8 * len(blocks)))
        if self.cache is None or identity is None or not blocks:
            return times
        own = self.cache.get(path, _QUESTION, _DEPTH, identity, ever=True)
        if own is not None and own.data[:_DIGEST] == _digest(blocks):
            known = _decompressed(own.data[_DIGEST:], 8 * len(blocks))
            times = array("q", known) if len(known) == 8 * len(blocks) else times
        whole = None if question is None else self.cache.get(path, question, _DEPTH, identity, ever=True)
        if whole is not None and not whole.bad:
            times = array("q", (max(t, whole.seen_ns) for t in times))
        return times

    def put(self, path: str, identity: Identity, blocks: Blocks, times: array[int]) -> None:
        """Keep them."""
        if self.cache is not None:
            data = _digest(blocks) + zlib.compress(times.tobytes(), 1)
            self.cache.put(path, _QUESTION, identity, Entry(data, _DEPTH, self.now_ns, False))

    def forget(self, path: str) -> None:
        """What is known of a file is wrong."""
        if self.cache is not None:
            self.cache.forget(path)


def _decompressed(data: bytes, most: int) -> bytes:
    """At most so many bytes; none where it is not what was compressed."""
    try:
        return zlib.decompressobj().decompress(data, most)
    except zlib.error:
        return b""


def _digest(blocks: Blocks) -> bytes:
    """Of the grid: another version of ckpt may draw another."""
    import xxhash

    return xxhash.xxh3_64_digest(blocks.starts.tobytes() + blocks.lengths.tobytes())
