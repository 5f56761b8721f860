"""A file in chunks of 64 MiB, so that every thread has one to work on and damage has a place; and the digest
of the file that follows from theirs.

An empty file has no chunk, the last chunk of any other is what is left. The digest of a file is XXH3-128 over
a text: a line with its size and the size of a chunk in decimal digits, one blank between them, then a line
for the XXH3-128 of each chunk in 32 lower-case hexadecimal digits; each line ends with a line feed. Anybody
can make it:

    { stat -c '%s 67108864' FILE; split -b 64M --filter='xxhsum -H2 - | cut -c -32' FILE; } | xxhsum -H2 -
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpt_tools.checksum.combine import crc32, crc32c
from ckpt_tools.checksum.sums import Extent, xxh3

CHUNK = 64 << 20
"""Bytes of a chunk of a file; its digest depends on it, so this never changes."""
DIGITS = 32
"""Hexadecimal digits of an XXH3-128."""


class ChunkDigests:
    """The digests of a chunk that is sealed: XXH3-128, CRC-32 and CRC-32C, joined to 24 bytes."""

    def __init__(self) -> None:
        self._xxh3, self._crc32, self._crc32c = xxh3(), 0, 0

    def update(self, data: memoryview | bytes, /) -> None:
        self._crc32 = crc32(data, self._crc32)
        self._crc32c = crc32c(data, self._crc32c)
        self._xxh3.update(data)

    def digest(self) -> bytes:
        strong = self._xxh3.digest()
        assert isinstance(strong, bytes)  # noqa: S101 - for the type checker: it is XXH3-128
        return strong + self._crc32.to_bytes(4, "big") + self._crc32c.to_bytes(4, "big")


def chunks(size: int) -> Iterator[Extent]:
    """The chunks of a file of ``size`` bytes."""
    return (Extent(at, min(CHUNK, size - at)) for at in range(0, size, CHUNK))


def count(size: int) -> int:
    """How many chunks a file of ``size`` bytes has."""
    return -(-size // CHUNK)


def whole(size: int, digests: Sequence[str]) -> str:
    """The digest of a file of ``size`` bytes, from those of its chunks."""
    import xxhash

    lines = (f"{size} {CHUNK}", *digests)
    return xxhash.xxh3_128_hexdigest("".join(f"{line}\n" for line in lines).encode())
