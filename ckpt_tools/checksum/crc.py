"""CRCs of byte ranges of a Source, in one thread and bounded memory."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

from ckpt_tools.checksum.combine import Crc
from ckpt_tools.checksum.sums import Deflated
from ckpt_tools.storage import Source
from ckpt_tools.storage.local import BUFFER, buffer

__all__ = ["BUFFER", "UNIT", "InflateError", "Progress", "crc_of_deflated", "crc_of_extent", "read_parts"]

UNIT = 64 * 1024 * 1024
"""Bytes per unit of work handed to a thread."""

Progress = Callable[[int], None]
"""Called with the number of bytes just read, from any thread."""


class InflateError(Exception):
    """A deflated piece is damaged, or inflates to another size than its directory says."""


def read_parts(
    source: Source, offset: int, length: int, progress: Progress | None
) -> Iterator[memoryview | bytes]:
    """Yield ``length`` bytes from ``offset`` on, each part valid until the next one is asked for. All reads
    but the first begin with a page of the file. Raises ShortRead and OSError.
    """
    end, views = offset + length, getattr(source, "views", None)
    if views is not None:  # what has come is in memory
        for part in views(offset, length):
            yield part
            if progress:
                progress(len(part))
        return
    view = buffer()
    while offset < end:
        n = min(BUFFER - offset % BUFFER, end - offset)
        source.readinto(offset, view[:n])
        yield view[:n]
        offset += n
        if progress:
            progress(n)


def crc_of_extent(
    crc: Crc, source: Source, offset: int, length: int, progress: Progress | None = None
) -> int:
    """The CRC of a byte range. Raises ShortRead and OSError."""
    value = 0
    for part in read_parts(source, offset, length, progress):
        value = crc.update(part, value)
    return value


def crc_of_deflated(crc: Crc, source: Source, piece: Deflated, progress: Progress | None) -> int:
    inflate, value, out, at, end = zlib.decompressobj(-15), 0, 0, piece.offset, piece.offset + piece.length
    try:
        while at < end and not inflate.eof:
            data = source.read(at, min(BUFFER, end - at))
            at += len(data)
            if progress:
                progress(len(data))
            more = True
            while (
                more and not inflate.eof
            ):  # bounded output: a bomb stops as soon as it exceeds its declared size
                got = inflate.decompress(data, BUFFER)
                out += len(got)
                if out > piece.size:
                    raise InflateError(f"inflates to more than the {piece.size} bytes it declares")
                value = crc.update(got, value)
                data = inflate.unconsumed_tail
                more = (
                    bool(data) or len(got) == BUFFER
                )  # all input may be taken while output is still to come
        if not inflate.eof or out != piece.size or at != end or inflate.unused_data:
            raise InflateError(f"inflates to {out} bytes of the {piece.size} it declares")
    except zlib.error as e:
        raise InflateError(str(e)) from e
    return value
