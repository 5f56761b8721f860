"""Decodes compressed bytes to see whether they decode and into how many bytes, in bounded memory and time;
only ``decompress`` keeps the decoded bytes.

Ratios: RFC 8878 (a zstd block of 4 bytes may stand for 128 KiB), zlib's technical details (deflate ends at
1032:1); bzip2 goes beyond a million to one.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from ckpt_tools.checksum import Extent, Sum
from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Damage
from ckpt_tools.formats.common.zstd import MAX_WINDOW
from ckpt_tools.model.finding import Finding
from ckpt_tools.storage import Source

RATIO, FLOOR = 1100, 4 << 30
"""The most bytes that the data of one file may decode into: RATIO for each byte of the file, which is more
than deflate can make, but FLOOR at least.
"""
_SLOW = {"bz2": 16}
"""How many times slower a codec decodes: each of its bytes counts as so many."""
_GUESS = 64 << 20  # the least bytes that data of unknown size may decode into
_PIECE = 1 << 17
_GOOD = b"decodes"
_Write = Callable[[bytes], int]
_Decoder = tuple[Callable[[Any], object], Callable[[], bool]]
"""A function that takes compressed bytes, and one that returns whether their end was reached."""
_MakeDecoder = Callable[[_Write], _Decoder]


class _TooMuch(Exception):
    """Raised if data decode into more bytes than they should or may, or bytes follow their end."""


class _Counter:
    """Counts decoded bytes up to ``limit``. Apart from _Decoding, to which its decoder must not refer."""

    def __init__(self, limit: int) -> None:
        self.limit, self.count = limit, 0

    def write(self, data: bytes) -> int:
        self.count += len(data)
        if self.count > self.limit:
            raise _TooMuch
        return len(data)


class _Decoding:
    """A Hash whose digest is _GOOD if all data decode, to ``size`` bytes if that is known, else b"". Without
    a size, data that go beyond ``limit`` bytes count as good, and if ``bounded`` as the only bad ones.
    """

    def __init__(self, size: int | None, limit: int, make: _MakeDecoder, bounded: bool = False) -> None:
        self.size, self.limit, self.bounded, self.good = size, limit, bounded, True
        self.out = _Counter(limit)
        self.push, self.ended = make(self.out.write)

    def update(self, data: memoryview | bytes, /) -> None:
        if self.good:
            try:
                self.push(data)
            except (_TooMuch, zlib.error, OSError, ValueError, EOFError):
                self.good = False
            except Exception as e:
                if type(e).__name__ != "ZstdError":
                    raise
                self.good = False

    def digest(self) -> bytes:
        """Return _GOOD for data that decode as they should, b"" for others."""
        open_ended = self.size is None and self.out.count > self.limit
        if self.bounded:
            return b"" if open_ended else _GOOD
        whole = self.good and self.ended() and self.size in (None, self.out.count)
        return _GOOD if open_ended or whole else b""


def decode_pieces(decoder: Any, raw: bytes, piece: int) -> Iterator[bytes]:
    """Yield the decoded bytes of ``raw`` in pieces; zlib hands back the rest of its input, others keep it."""
    more = True
    while more:
        out = decoder.decompress(raw, piece)
        if out:
            yield out
        raw = getattr(decoder, "unconsumed_tail", b"")
        more = not decoder.eof and (bool(raw) or not getattr(decoder, "needs_input", True))


def _make_decoder(codec: str, write: _Write) -> _Decoder:
    """Return a decoder of a codec that writes to ``write`` and refuses bytes behind the end of the data."""
    if codec == "zstd":
        import zstandard

        file: Any = SimpleNamespace(write=write)  # as much of a file as zstandard's stream writer uses
        frame = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW)
        return frame.stream_writer(file, write_size=_PIECE).write, lambda: True  # check_frame() saw its end
    if codec == "bz2":
        import bz2

        decoder: Any = bz2.BZ2Decompressor()
    else:
        decoder = zlib.decompressobj(15 + 32)  # the header says whether it is zlib or gzip

    def push(data: Any) -> None:
        if data and decoder.eof:
            raise _TooMuch
        for out in decode_pieces(decoder, bytes(data), _PIECE):
            write(out)
        if decoder.unused_data:
            raise _TooMuch

    return push, lambda: bool(decoder.eof)


def most(source: Source) -> int:
    """Return how many bytes the compressed data of a file may decode into."""
    return max(RATIO * source.size, FLOOR)


def add_decoding(
    source: Source,
    anatomy: Anatomy,
    codec: str,
    what: str,
    extent: Extent,
    *,
    size: int | None,
    ceiling: int | None = None,
) -> Iterator[Finding]:
    """Add a Sum to ``anatomy``: at the content level, the bytes of ``extent`` must decode, to ``size`` bytes
    or at most ``ceiling`` if known. It covers no bytes; as a Sum it shares their reading. Yield
    ``too-complex`` if a file's data decode into too much.
    """
    offset, length = extent.offset, extent.length
    weight, total = _SLOW.get(codec, 1), most(source)
    if codec in ("zlib", "gzip"):
        ceiling = RATIO * length
    known_limit = min((n for n in (size, ceiling) if n is not None), default=None)
    limit = max(RATIO // weight * length, _GUESS) if known_limit is None else known_limit
    if anatomy.decoded + weight * limit > total:
        if anatomy.decoded <= total:
            why = f"{what}: {codec} data that may decode into {limit} bytes"
            yield finding("too-complex", f"{why}; from here on none in this file is decoded", offset=offset)
        anatomy.decoded = total + 1
        return
    anatomy.decoded += weight * limit
    make = partial(_Decoding, size, limit, partial(_make_decoder, codec))
    goal = f" into {size} bytes" if size is not None else ""
    why = f"{what}: {codec} data that must decode{goal}"
    decodes = Sum(why, _GOOD, (extent,), offset, otherwise=(), hash=make, code="bad-compression")
    anatomy.sums.append(decodes)
    if known_limit is None:  # a second Sum, as each leads to one code only
        why = f"{what}: {codec} data within the {limit} bytes that are decoded of it"
        anatomy.sums.append(replace(decodes, what=why, hash=partial(make, bounded=True), code="too-complex"))


def decompress(data: bytes, limit: int) -> bytes:
    """Return the content of a small zstd frame. Raise Damage if it is broken or exceeds ``limit`` bytes."""
    import zstandard

    decoder = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW)
    try:
        out: bytes = decoder.stream_reader(data, read_across_frames=True).read(limit + 1)
    except zstandard.ZstdError:
        out = bytes(limit + 1)
    if len(out) > limit:
        raise Damage("bad-header", f"zstd data that does not decode, or into more than {limit} bytes")
    return out
