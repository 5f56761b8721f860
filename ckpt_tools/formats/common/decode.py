"""Compressed bytes decoded to see whether that works and how much comes out, in bounded memory and time;
nothing that comes out is kept.

Ratios: RFC 8878 (a zstd block of 4 bytes may stand for 128 KiB), zlib's technical details (deflate ends at
1032:1); bzip2 goes beyond a million to one.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import partial
from io import BytesIO
from typing import Any

from msgspec.structs import replace

from ckpt_tools.checksum import Extent, Sum
from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Damage
from ckpt_tools.formats.common.zstd import stream
from ckpt_tools.model.finding import Finding
from ckpt_tools.storage import Source

RATIO, FLOOR = 1100, 4 << 30
"""Bytes that the data of one file may decode into: so many for each of its own, which is more than deflate
can make, or so many if that is more.
"""
_SLOW = {"bz2": 16}
"""What a byte counts for where decoding is so many times slower."""
_GUESS = 64 << 20
_PIECE = 1 << 17
_GOOD = b"decodes"
_Write = Callable[[bytes], int]
_Decoder = tuple[Callable[[Any], object], Callable[[], bool]]
"""Takes compressed bytes; says whether they have come to their end."""
_Feed = Callable[[_Write], _Decoder]


class _TooLong(Exception):
    """More came out than belongs there, or than is decoded."""


class _Count:
    """Counts decoded bytes up to ``limit``; apart from the decoder's owner, to make no cycle with it."""

    def __init__(self, limit: int) -> None:
        self.limit, self.count = limit, 0

    def write(self, data: bytes) -> int:
        self.count += len(data)
        if self.count > self.limit:
            raise _TooLong
        return len(data)


class _Decoding:
    """As a Hash its digest says whether everything decoded, to ``size`` bytes if that is known.

    Of what goes beyond ``limit`` nothing is known unless there is a size; with ``short``, that there is no
    such thing is all that the digest says.
    """

    def __init__(self, size: int | None, limit: int, feed: _Feed, short: bool = False) -> None:
        self.size, self.limit, self.short, self.good = size, limit, short, True
        self.out = _Count(limit)
        self.push, self.ended = feed(self.out.write)

    def update(self, data: memoryview | bytes, /) -> None:
        if self.good:
            try:
                self.push(data)
            except (_TooLong, zlib.error, OSError, ValueError, EOFError):
                self.good = False
            except Exception as e:
                if type(e).__name__ != "ZstdError":
                    raise
                self.good = False

    def digest(self) -> bytes:
        open_ended = self.size is None and self.out.count > self.limit
        if self.short:
            return b"" if open_ended else _GOOD
        whole = self.good and self.ended() and self.size in (None, self.out.count)
        return _GOOD if open_ended or whole else b""


def decode(decoder: Any, raw: bytes, piece: int) -> Iterator[bytes]:
    """What some bytes decode into, piece by piece; zlib hands back what it has not taken, others keep it."""
    more = True
    while more:
        out = decoder.decompress(raw, piece)
        if out:
            yield out
        raw = getattr(decoder, "unconsumed_tail", b"")
        more = not decoder.eof and (bool(raw) or not getattr(decoder, "needs_input", True))


class _Sink:
    """What zstandard's stream writer writes into."""

    def __init__(self, write: _Write) -> None:
        self.write = write


def _feed_zstd(write: _Write) -> _Decoder:
    return stream(_Sink(write), _PIECE), lambda: True  # the walk has seen the end of the frame


def _feed_zlib(write: _Write) -> _Decoder:
    return _feed(zlib.decompressobj(15 + 32), write)  # the header says whether it is zlib or gzip


def _feed_bz2(write: _Write) -> _Decoder:
    import bz2

    return _feed(bz2.BZ2Decompressor(), write)


def _feed(decoder: Any, write: _Write) -> _Decoder:
    def push(data: Any) -> None:
        if data and decoder.eof:
            raise _TooLong
        for out in decode(decoder, bytes(data), _PIECE):
            write(out)
        if decoder.unused_data:
            raise _TooLong

    return push, lambda: bool(decoder.eof)


_FEEDS = {"zstd": _feed_zstd, "zlib": _feed_zlib, "gzip": _feed_zlib, "bz2": _feed_bz2}


def most(source: Source) -> int:
    """Bytes that the compressed data of a file may decode into."""
    return max(RATIO * source.size, FLOOR)


def decoding(
    source: Source,
    anatomy: Anatomy,
    codec: str,
    what: str,
    extent: Extent,
    *,
    size: int | None,
    ceiling: int | None = None,
) -> Iterator[Finding]:
    """The bytes of ``extent`` must decode at the content level, to ``size`` bytes or at most ``ceiling`` if
    known. That is a Sum, so that bytes are read once, but covers nothing. Yields ``too-complex`` for too
    much.
    """
    offset, length = extent.offset, extent.length
    weight, total = _SLOW.get(codec, 1), most(source)
    if codec in ("zlib", "gzip"):
        ceiling = RATIO * length
    sure = min((n for n in (size, ceiling) if n is not None), default=None)
    limit = max(RATIO // weight * length, _GUESS) if sure is None else sure
    if anatomy.decoded + weight * limit > total:
        if anatomy.decoded <= total:
            why = f"{what}: {codec} data that may decode into {limit} bytes"
            yield finding("too-complex", f"{why}; from here on none in this file is decoded", offset=offset)
        anatomy.decoded = total + 1
        return
    anatomy.decoded += weight * limit
    made = partial(_Decoding, size, limit, _FEEDS[codec])
    goal = f" into {size} bytes" if size is not None else ""
    why = f"{what}: {codec} data that must decode{goal}"
    one = Sum(why, _GOOD, (extent,), offset, otherwise=(), hash=made, code="bad-compression")
    anatomy.sums.append(one)
    if sure is None:  # decoded once more, as a Sum leads to one code only
        why = f"{what}: {codec} data within the {limit} bytes that are decoded of it"
        anatomy.sums.append(replace(one, what=why, hash=partial(made, short=True), code="too-complex"))


def decompress(data: bytes, limit: int) -> bytes:
    """The content of a small frame. Raises Damage when it is broken or longer than ``limit``."""
    out = BytesIO()  # its value is its buffer, not a copy

    def feed(count: _Write) -> _Decoder:
        def keep(piece: bytes) -> int:
            out.write(piece)
            return count(piece)

        return _feed_zstd(keep)

    running = _Decoding(None, limit, feed)
    running.update(data)
    if not running.good:
        raise Damage("bad-header", f"zstd data that does not decode, or into more than {limit} bytes")
    return out.getvalue()
