"""What a stored checksum is: which bytes it covers, and how it is worked out.

A file in chunks of 64 MiB, so that every thread has one to work on and damage has a place; and the digest
of the file that follows from theirs.

An empty file has no chunk, the last chunk of any other is what is left. The digest of a file is XXH3-128 over
a text: a line with its size and the size of a chunk in decimal digits, one blank between them, then a line
for the XXH3-128 of each chunk in 32 lower-case hexadecimal digits; each line ends with a line feed. Anybody
can make it:

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
    """A running checksum, as hashlib has them, fed in order by one thread."""

    def update(self, data: memoryview | bytes, /) -> object: ...
    def digest(self) -> int | bytes: ...


class RunningCrc:
    """A CRC that one thread feeds."""

    def __init__(self, crc: Crc) -> None:
        self._crc, self._value = crc, 0

    def update(self, data: memoryview | bytes, /) -> None:
        self._value = self._crc.update(data, self._value)

    def digest(self) -> int:
        return self._value


class Crc32c(RunningCrc):
    """A running CRC-32C, for formats that feed it other bytes than the file has."""

    def __init__(self) -> None:
        super().__init__(CRC32C)


def xxh3() -> Hash:
    """XXH3-128, whose digest is 16 bytes."""
    from xxhash import xxh3_128

    return xxh3_128()


ASKED = b""
"""What no checksum is equal to."""


class Sum(Struct, frozen=True):
    """A stored checksum: it covers ``pieces``, joined in this order, and lies at ``offset``. ``otherwise`` is
    a second reading that is right as well.

    ``hash`` is what it is worked out with: a Crc, whose pieces are split over threads and joined again, or
    what makes a Hash, which one thread feeds.
    ``code`` is the finding that a difference leads to. Where ``expected`` is ASKED nothing is stored: what
    the bytes give is what somebody wants to know.
    """

    what: str
    expected: int | bytes
    pieces: tuple[Piece, ...]
    offset: int
    otherwise: tuple[Piece, ...] | None = None
    hash: Crc | Callable[[], Hash] = CRC32
    code: str = "crc-mismatch"


def shifted(s: Sum, by: int) -> Sum:
    """The same sum in a file where everything lies ``by`` bytes further on."""

    def moved(pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
        return tuple(p if isinstance(p, bytes) else replace(p, offset=p.offset + by) for p in pieces)

    return replace(
        s, pieces=moved(s.pieces), offset=s.offset + by, otherwise=s.otherwise and moved(s.otherwise)
    )


def covered(sums: Iterable[Sum], *, certain: bool = True) -> list[tuple[int, int, Sum]]:
    """(start, stop, sum) of every byte range that a sum covers, in file order and without overlap.

    With ``certain``, bytes that only one of a sum's two readings covers do not count.
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


def join_digests(size: int, digests: Sequence[str]) -> str:
    """The digest of a file of ``size`` bytes, from those of its chunks."""
    import xxhash

    lines = (f"{size} {CHUNK}", *digests)
    return xxhash.xxh3_128_hexdigest("".join(f"{line}\n" for line in lines).encode())
