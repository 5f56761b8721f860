"""Zstandard frames: walked block by block without decoding them, and decoded where the optional ``zstandard`` package is at hand.

Facts: RFC 8878 (frame header, block headers, content checksum). One frame is one value; tensorstore and numcodecs never write two.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from io import BytesIO
from typing import Any

from ckpt_tools.checksum import Extent, Sum
from ckpt_tools.codes import finding
from ckpt_tools.formats._base import Damage
from ckpt_tools.model import Finding
from ckpt_tools.storage import Source

MAGIC = b"\x28\xb5\x2f\xfd"
MAX_WINDOW = 1 << 27
"""Bytes of history; zstd's own decoder refuses more unless told otherwise (ZSTD_WINDOWLOG_LIMIT_DEFAULT)."""
MAX_BLOCKS = 100_000
_BLOCK = 1 << 17
_PIECE = 1 << 17
_GOOD = b"decodes"
_Write = Callable[[bytes], int]
_Decoder = tuple[Callable[[Any], object], Callable[[], bool]]
"""Takes compressed bytes; says whether they have come to their end."""
_Feed = Callable[[_Write], _Decoder]


def have_zstd() -> bool:
    return find_spec("zstandard") is not None


def needs_zstd(offset: int, what: str) -> Finding:
    return finding("needs-extra", f"{what} cannot be decoded without zstandard: pip install zstandard", offset=offset)


def _header(source: Source, offset: int, length: int) -> tuple[int, int | None, int, bool]:
    """(length of the frame header, size of the content if it says, window size, whether a checksum follows the last block)."""
    head = source.read(offset, min(18, length))
    if head[:4] != MAGIC[: len(head)]:
        raise Damage("bad-header", f"a zstd frame begins with 28b52ffd, this one with {head[:4].hex()}", offset)
    if len(head) < 6:
        raise Damage("truncated", f"a zstd frame of {length} bytes", offset + length)
    flags = head[4]
    single = flags >> 5 & 1
    if flags & 0b1000:
        raise Damage("bad-header", "a reserved bit of the zstd frame header is set", offset + 4)
    width = (single, 2, 4, 8)[flags >> 6]
    named = (0, 1, 2, 4)[flags & 3]
    end = 5 + (not single) + named + width
    if len(head) < end:
        raise Damage("truncated", f"a zstd frame of {length} bytes, shorter than its header", offset + length)
    if any(head[end - width - named : end - width]):
        raise Damage("bad-header", "a zstd frame that needs a dictionary", offset + 5)
    size = int.from_bytes(head[end - width : end], "little") + (256 if width == 2 else 0) if width else None
    base = 1 << 10 + (head[5] >> 3)
    return end, size, (size or 0) if single else base + (base >> 3) * (head[5] & 7), bool(flags & 4)


def walk(source: Source, offset: int, length: int, size: int | None) -> None:
    """Raise Damage unless the ``length`` bytes at ``offset`` are one frame whose content has ``size`` bytes. Reads 3 bytes per block of up to 128 KiB."""
    at, said, window, summed = _header(source, offset, length)
    if said is not None and size is not None and said != size:
        raise Damage("bad-header", f"zstd data of {said} bytes, where {size} belong", offset + 4)
    if window > MAX_WINDOW:
        raise Damage("too-complex", f"a zstd window of {window} bytes", offset + 5)
    for _ in range(MAX_BLOCKS):
        if at + 3 > length:
            raise Damage("truncated", f"the zstd data ends at byte {length} of it, in the middle of a block header", offset + length)
        block = int.from_bytes(source.read(offset + at, 3), "little")
        kind, n = block >> 1 & 3, block >> 3
        if kind == 3 or n > _BLOCK:
            raise Damage("bad-header", f"a zstd block of kind {kind} and {n} bytes", offset + at)
        at += 3 + (1 if kind == 1 else n)
        if at > length:
            raise Damage("truncated", f"a zstd block ends at byte {at} of the data, which has {length}", offset + length)
        if block & 1:
            break
    else:
        return  # more blocks than are worth reading one by one: decoding will tell
    at += 4 * summed
    if at > length:
        raise Damage("truncated", "the checksum of the zstd frame is cut", offset + length)
    if at < length:
        raise Damage("trailing-data", f"{length - at} bytes follow the zstd frame", offset + at)


class _TooLong(Exception):
    """More came out than belongs there."""


class _Decoding:
    """Counts what comes out of a decoder; as a Hash its digest says whether everything decoded, to ``size`` bytes if that is known."""

    def __init__(self, size: int | None, feed: _Feed) -> None:
        self.size, self.limit, self.count, self.good = size, size, 0, True
        self._push, self._ended = feed(self.write)

    def write(self, data: bytes) -> int:
        self.count += len(data)
        if self.limit is not None and self.count > self.limit:
            raise _TooLong
        return len(data)

    def update(self, data: memoryview | bytes, /) -> None:
        if self.good:
            try:
                self._push(data)
            except (_TooLong, zlib.error, OSError, ValueError, EOFError):
                self.good = False
            except Exception as e:
                if type(e).__name__ != "ZstdError":
                    raise
                self.good = False

    def digest(self) -> bytes:
        return _GOOD if self.good and self._ended() and self.size in (None, self.count) else b""


class _Sink:
    """What zstandard's stream writer writes into."""

    def __init__(self, write: _Write) -> None:
        self.write = write


def _zstd(write: _Write) -> _Decoder:
    import zstandard

    sink: Any = _Sink(write)
    return zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW).stream_writer(
        sink, write_size=_PIECE
    ).write, lambda: True  # the walk has seen the end of the frame


def _zlib(write: _Write) -> _Decoder:
    inflate = zlib.decompressobj(15 + 32)  # the header says whether it is zlib or gzip

    def push(data: Any) -> None:
        rest = bytes(data)
        while rest and not inflate.eof:
            write(inflate.decompress(rest, _PIECE))
            rest = inflate.unconsumed_tail
        if rest or inflate.unused_data:
            raise _TooLong

    return push, lambda: inflate.eof


def _bz2(write: _Write) -> _Decoder:
    import bz2

    decoder = bz2.BZ2Decompressor()

    def push(data: Any) -> None:
        write(decoder.decompress(bytes(data), _PIECE))
        while not decoder.eof and not decoder.needs_input:
            write(decoder.decompress(b"", _PIECE))
        if decoder.unused_data:
            raise _TooLong

    return push, lambda: decoder.eof


_FEEDS = {"zstd": _zstd, "zlib": _zlib, "gzip": _zlib, "bz2": _bz2}


def decoding(codec: str, what: str, offset: int, length: int, size: int | None) -> Sum:
    """The content level's part: ``length`` bytes at ``offset`` must decode, to ``size`` bytes if that is known.

    It is a Sum so that every byte is read once and in bounded memory, but no checksum: its second reading covers nothing, so it counts for no coverage.
    """
    goal = f" into {size} bytes" if size is not None else ""
    what = f"{what}: {codec} data that must decode{goal}"
    return Sum(what, _GOOD, (Extent(offset, length),), offset, otherwise=(), hash=partial(_Decoding, size, _FEEDS[codec]), code="bad-compression")


def decompress(data: bytes, limit: int) -> bytes:
    """The content of a small frame. Raises Damage when it is broken or longer than ``limit``."""
    out = BytesIO()  # its value is its buffer, not a copy

    def feed(count: _Write) -> _Decoder:
        def keep(piece: bytes) -> int:
            out.write(piece)
            return count(piece)

        return _zstd(keep)

    running = _Decoding(None, feed)
    running.limit = limit
    running.update(data)
    if not running.good:
        raise Damage("bad-header", f"zstd data that does not decode, or into more than {limit} bytes")
    return out.getvalue()
