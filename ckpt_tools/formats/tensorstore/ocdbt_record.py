"""OCDBT's building blocks: the framing of a record, and a bounded reader for what it decodes into.

Facts: tensorstore 0.1.86, kvstore/ocdbt/format (codec_util.cc, config_codec.h, data_file_id_codec.cc,
version_tree_codec.h, btree_codec.h, btree.cc).
All integers are varints unless a comment says otherwise; arrays are stored column by column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ckpt_tools.formats.common.decode import decompress
from ckpt_tools.formats.common.format import Damage
from ckpt_tools.storage import Source

MANIFEST, BTREE, VERSIONS = b"\x0c\xdb\x3a\x2a", b"\x0c\xdb\x20\xde", b"\x0c\xdb\x12\x34"
MAX_ENCODED = 64 << 20
MAX_DECODED = 104_857_600
"""Bytes; Orbax keeps B+tree nodes below 100,000,000."""
MAX_PATH = MAX_KEY = 65535
MAX_ENTRIES = 1 << 20
"""Keys of one node (kMaxNodeArity)."""
MAX_FILES = 100_000
FEW_ENTRIES = 1 << 16
_MAX_NAMES = 64 << 20
_MISSING = (1 << 64) - 1


class Header(NamedTuple):
    """``kind`` is the magic; ``body`` begins at byte 14 and ends 4 bytes before the end, where the CRC-32C
    is.
    """

    kind: bytes
    compression: int


class File(NamedTuple):
    """A data file: ``base`` applies to everything that is reached through it, ``path`` includes it; both
    relative to the database.
    """

    base: str
    path: str


class Place(NamedTuple):
    """``length`` bytes at ``offset`` of a data file."""

    file: File
    offset: int
    length: int


class Reader:
    """A cursor over decoded bytes; ``at`` counts from their beginning. Every read is bounded. Raises Damage,
    without an offset in the file.
    """

    def __init__(self, data: bytes, what: str) -> None:
        self.data, self.at, self.what = data, 0, what

    def bad(self, text: str) -> Damage:
        return Damage("bad-header", f"{self.what}: {text} (byte {self.at} of what it decodes into)")

    def take(self, n: int) -> bytes:
        if n > len(self.data) - self.at:
            raise self.bad(f"{n} bytes are wanted where {len(self.data) - self.at} are left")
        self.at += n
        return self.data[self.at - n : self.at]

    def fixed(self, n: int) -> int:
        return int.from_bytes(self.take(n), "little")

    def varint(self, most: int = (1 << 64) - 1) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise self.bad("a varint of more than ten bytes")
        if value > most:
            raise self.bad(f"{value} is more than {most}")
        return value

    def varints(self, n: int, most: int = (1 << 64) - 1) -> list[int]:
        """``n`` varints; those of one byte each, as most columns have them, at once."""
        short = self.data[self.at : self.at + n]
        if len(short) < n:
            raise self.bad(f"{n} numbers are wanted where {len(short)} bytes are left")
        if not short.isascii():
            return [self.varint(most) for _ in range(n)]
        self.at += n
        if n and max(short) > most:
            raise self.bad(f"{max(short)} is more than {most}")
        return list(short)

    def count(self, most: int, least: int = 0) -> int:
        n = self.varint()
        if not least <= n <= min(most, len(self.data) - self.at):
            raise self.bad(f"{n} entries, where {least} to {most} may be")
        return n


def read_record(source: Source, offset: int, length: int, what: str) -> Header:
    """The header of the record of ``length`` bytes at ``offset``. Raises Damage."""
    if length < 18:
        raise Damage("truncated", f"{what}: {length} bytes, at least 18 belong there", offset + length)
    head = source.read(offset, 14)
    if head[:4] not in (MANIFEST, BTREE, VERSIONS):
        raise Damage("bad-header", f"{what} begins with {head[:4].hex()}, which is no OCDBT record", offset)
    said = int.from_bytes(head[4:12], "little")
    if said != length:
        code = "truncated" if said > length else "trailing-data"
        raise Damage(code, f"{what} says it has {said} bytes, there are {length}", offset + min(said, length))
    if head[12] or head[13] > 1:
        raise Damage("bad-header", f"{what}: version {head[12]}, compression {head[13]}", offset + 12)
    if length > MAX_ENCODED:
        raise Damage("too-complex", f"{what}: a record of {length} bytes", offset)
    return Header(head[:4], head[13])


def body_of(source: Source, offset: int, length: int, compression: int) -> bytes:
    """The decoded body of a record. Raises Damage."""
    data = source.read(offset + 14, length - 18)
    try:
        return decompress(data, MAX_DECODED) if compression else data
    except Damage as e:
        raise Damage(e.finding.code, e.finding.message, offset + 14) from None


def bound(prefixes: Sequence[int], suffixes: Sequence[int], more: int) -> None:
    """Names that share prefixes may be far longer together than the node that holds them."""
    if (total := sum(prefixes) + sum(suffixes) + more) > _MAX_NAMES:
        raise Damage("too-complex", f"{len(suffixes)} names of {total} bytes together")


def files(r: Reader, base: str) -> list[File]:
    """The table of data files; ``base`` is that of the node, and goes before every path."""
    n = r.count(MAX_FILES)
    prefixes = [0, *r.varints(max(0, n - 1), MAX_PATH)]
    suffixes, bases = r.varints(n, MAX_PATH), r.varints(n, MAX_PATH)
    bound(prefixes, suffixes, 2 * n * len(base))
    out: list[File] = []
    before = b""
    for prefix, suffix, cut in zip(prefixes, suffixes, bases, strict=False):
        if prefix > len(before) or not cut <= prefix + suffix <= MAX_PATH:
            raise r.bad(
                f"a path of {prefix} and {suffix} bytes, {cut} of them its base, after one of {len(before)}"
            )
        before = before[:prefix] + r.take(suffix)
        try:
            path = before.decode()
            out.append(File(base + before[:cut].decode(), base + path))
        except UnicodeDecodeError:
            raise r.bad("a path that is not UTF-8") from None
        if len(out[-1].path) > MAX_PATH:
            raise r.bad("a path of more than 65535 bytes")
    return out


def places(r: Reader, known: Sequence[File], n: int, missing: bool = False) -> list[Place | None]:
    which = r.varints(n)
    offsets, lengths = r.varints(n), r.varints(n)
    out: list[Place | None] = []
    for f, offset, length in zip(which, offsets, lengths, strict=True):
        if f >= len(known):
            raise r.bad(f"file {f} of {len(known)}")
        if missing and offset == length == _MISSING:
            out.append(None)
        elif offset + length > _MISSING:
            raise r.bad(f"{length} bytes at {offset}")
        else:
            out.append(Place(known[f], offset, length))
    return out


def statistics(r: Reader, n: int) -> None:
    """Keys, bytes of nodes, bytes of values below each node: sums over a subtree, of which nothing depends
    on.
    """
    for _ in range(3):
        r.varints(n)


def end(r: Reader) -> None:
    """Everything must have been read."""
    if r.at != len(r.data):
        raise r.bad(f"{len(r.data) - r.at} bytes are left over")
