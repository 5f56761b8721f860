"""Stored checksums: the bytes that each covers, and its algorithm.

Chunks of 64 MiB of a file, so that every thread has one to work on and damage has a place; and the digest of
the file that follows from the digests of its chunks.

An empty file has no chunk; the last chunk of any other may be shorter. The digest of a file is XXH3-128 over
a text: a line with its size and the size of a chunk in decimal digits, one blank between them, then a line
with the XXH3-128 of each chunk in 32 lower-case hexadecimal digits; each line ends with a line feed. The
command to compute it:

    { stat -c '%s 67108864' FILE; split -b 64M --filter='xxhsum -H2 - | cut -c -32' FILE; } | xxhsum -H2 -
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from ckpt_tools.checksum.combine import CRC32, CRC32C, Crc, crc32, crc32c


class Extent(Struct, frozen=True):
    """``length`` bytes at ``offset`` of the file."""

    offset: int
    length: int


class Deflated(Struct, frozen=True):
    """A raw-deflate stream of ``length`` bytes at ``offset`` that must inflate to exactly ``size`` bytes."""

    offset: int
    length: int
    size: int


Piece = Extent | Deflated | bytes


class Hash(Protocol):
    """A running checksum like those of hashlib, fed in order by one thread."""

    def update(self, data: memoryview | bytes, /) -> object: ...
    def digest(self) -> int | bytes: ...


class RunningCrc:
    """A running CRC, fed in order by one thread."""

    def __init__(self, crc: Crc) -> None:
        self._crc, self._value = crc, 0

    def update(self, data: memoryview | bytes, /) -> None:
        self._value = self._crc.update(data, self._value)

    def digest(self) -> int:
        return self._value


class Crc32c(RunningCrc):
    """A running CRC-32C, for formats whose checksum covers other bytes than the file has."""

    def __init__(self) -> None:
        super().__init__(CRC32C)


def hash_pieces(hash: Crc | Callable[[], Hash], pieces: Iterable[memoryview | bytes]) -> int | bytes:
    """Return the checksum of ``pieces``, joined in this order."""
    if isinstance(hash, Crc):
        value = 0
        for piece in pieces:
            value = hash.update(piece, value)
        return value
    running = hash()
    for piece in pieces:
        running.update(piece)
    return running.digest()


def xxh3() -> Hash:
    """Return a running XXH3-128, whose digest has 16 bytes."""
    from xxhash import xxh3_128

    return xxh3_128()


ASKED = b""
"""The expected value of a sum without a stored one: no checksum is equal to it."""


class Sum(Struct, frozen=True):
    """One stored checksum: it covers ``pieces``, joined in this order, and lies at ``offset``. It is right as
    well if it matches the pieces in ``otherwise``.

    ``hash`` computes it: a Crc, whose pieces are split over threads and combined again, or a function that
    makes a Hash, which one thread feeds.
    ``code`` is the finding of a mismatch. If ``expected`` is ASKED, no checksum is stored: the computed value
    is reported as a mismatch, because a caller wants to know it.
    """

    what: str
    expected: int | bytes
    pieces: tuple[Piece, ...]
    offset: int
    otherwise: tuple[Piece, ...] | None = None
    hash: Crc | Callable[[], Hash] = CRC32
    code: str = "crc-mismatch"


def shift_sum(s: Sum, by: int) -> Sum:
    """Return the same sum for a file in which all bytes lie ``by`` bytes further on."""

    def shift(pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
        return tuple(p if isinstance(p, bytes) else replace(p, offset=p.offset + by) for p in pieces)

    otherwise = s.otherwise and shift(s.otherwise)
    return replace(s, pieces=shift(s.pieces), offset=s.offset + by, otherwise=otherwise)


def find_covered(sums: Iterable[Sum], *, certain: bool = True) -> list[tuple[int, int, Sum]]:
    """Return (start, stop, sum) of every byte range that a sum covers, in file order and without overlap.

    With ``certain``, bytes that only ``pieces`` cover, and not ``otherwise``, do not count.
    """
    ranges = [
        (p.offset, p.offset + p.length, s)
        for s in sums
        for p in (s.otherwise if certain and s.otherwise is not None else s.pieces)
        if not isinstance(p, bytes) and p.length
    ]
    ranges.sort(key=itemgetter(0, 1))
    out: list[tuple[int, int, Sum]] = []
    end = 0
    for start, stop, s in ranges:
        if stop > end:
            out.append((max(start, end), stop, s))
            end = stop
    return out


CHUNK = 64 << 20
"""Bytes of a chunk; this never changes, as the digests of all files depend on it."""
DIGITS = 32
"""Hexadecimal digits of an XXH3-128."""


class ChunkDigests:
    """The running digests of a chunk for a seal: XXH3-128, CRC-32 and CRC-32C, joined to 24 bytes."""

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
    """Yield the chunks of a file of ``size`` bytes."""
    return (Extent(at, min(CHUNK, size - at)) for at in range(0, size, CHUNK))


def count(size: int) -> int:
    """Return the number of chunks of a file of ``size`` bytes."""
    return -(-size // CHUNK)


def join_digests(size: int, digests: Sequence[str]) -> str:
    """Return the digest of a file of ``size`` bytes, from the hexadecimal digests of its chunks."""
    import xxhash

    lines = (f"{size} {CHUNK}", *digests)
    return xxhash.xxh3_128_hexdigest("".join(f"{line}\n" for line in lines).encode())
