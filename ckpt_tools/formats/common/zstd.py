"""Zstandard frames, checked block by block without decoding them: decode.py decodes.

Facts: RFC 8878 (frame header, block headers, content checksum). One frame is one value; tensorstore and
numcodecs never write two.
"""

from __future__ import annotations

from ckpt_tools.formats.common.format import Damage
from ckpt_tools.storage import Source

MAGIC = b"\x28\xb5\x2f\xfd"
MAX_WINDOW = 1 << 27
"""The most bytes of history; zstd's own decoder has the same default limit (ZSTD_WINDOWLOG_LIMIT_DEFAULT)."""
MAX_BLOCKS = 100_000
_BLOCK = 1 << 17


def _read_header(source: Source, offset: int, length: int) -> tuple[int, int | None, int, bool]:
    """Return the bytes of a frame header, the decoded size or None, the bytes of history (window) that a
    decoder needs, and whether the frame ends in a checksum. Raise Damage.
    """
    head = source.read(offset, min(18, length))
    if head[:4] != MAGIC[: len(head)]:
        why = f"a zstd frame begins with 28b52ffd, this one with {head[:4].hex()}"
        raise Damage("bad-header", why, offset)
    if len(head) < 6:
        raise Damage("truncated", f"a zstd frame of {length} bytes", offset + length)
    flags = head[4]
    single_segment = flags >> 5 & 1
    if flags & 0b1000:
        raise Damage("bad-header", "a reserved bit of the zstd frame header is set", offset + 4)
    width = (single_segment, 2, 4, 8)[flags >> 6]
    dictionary_bytes = (0, 1, 2, 4)[flags & 3]
    end = 5 + (not single_segment) + dictionary_bytes + width
    if len(head) < end:
        raise Damage("truncated", f"a zstd frame of {length} bytes, shorter than its header", offset + length)
    if any(head[end - width - dictionary_bytes : end - width]):
        raise Damage("bad-header", "a zstd frame that needs a dictionary", offset + 5)
    size = int.from_bytes(head[end - width : end], "little") + (256 if width == 2 else 0) if width else None
    base = 1 << 10 + (head[5] >> 3)
    window = (size or 0) if single_segment else base + (base >> 3) * (head[5] & 7)
    return end, size, window, bool(flags & 4)


def check_frame(source: Source, offset: int, length: int, size: int | None) -> tuple[int | None, int | None]:
    """Raise Damage unless these bytes are one frame of ``size`` decoded bytes; read 3 bytes for each block.
    Return the decoded size, and the most bytes that its blocks decode into; each None if unknown.
    """
    at, stated, window, has_checksum = _read_header(source, offset, length)
    if stated is not None and size is not None and stated != size:
        raise Damage("bad-header", f"zstd data of {stated} bytes, where {size} belong", offset + 4)
    if window > MAX_WINDOW:
        raise Damage("too-complex", f"a zstd window of {window} bytes", offset + 5)
    size = stated if size is None else size
    counted = _count_blocks(source, offset, length, at)
    if counted is None:
        return size, None
    at, most = counted
    at += 4 * has_checksum
    if at > length:
        raise Damage("truncated", "the checksum of the zstd frame is cut", offset + length)
    if at < length:
        raise Damage("trailing-data", f"{length - at} bytes follow the zstd frame", offset + at)
    return size, most


def _count_blocks(source: Source, offset: int, length: int, at: int) -> tuple[int, int] | None:
    """Return where a frame's blocks end, and their most decoded bytes; None if too many. Raise Damage."""
    most = 0
    for _ in range(MAX_BLOCKS):
        if at + 3 > length:
            why = f"the zstd data ends at byte {length} of it, in the middle of a block header"
            raise Damage("truncated", why, offset + length)
        block = int.from_bytes(source.read(offset + at, 3), "little")
        kind, n = block >> 1 & 3, block >> 3
        if kind == 3 or n > _BLOCK:
            raise Damage("bad-header", f"a zstd block of kind {kind} and {n} bytes", offset + at)
        at += 3 + (1 if kind == 1 else n)
        most += _BLOCK if kind == 2 else n
        if at > length:
            why = f"a zstd block ends at byte {at} of the data, which has {length}"
            raise Damage("truncated", why, offset + length)
        if block & 1:
            return at, most
    return None
