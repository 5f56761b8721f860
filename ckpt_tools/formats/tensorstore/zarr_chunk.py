"""The bytes of one zarr chunk, wherever they lie: a file of its own, a value in an OCDBT data file, a part of
a shard.

Facts: zarr v3 codecs crc32c (last 4 bytes, little-endian) and sharding_indexed (index of 64-bit offset and
length, all ones for a missing chunk); c-blosc 1.21 README_CHUNK_FORMAT.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from ckpt_tools.checksum import CRC32C, Extent, Sum
from ckpt_tools.formats.common.decode import decoding
from ckpt_tools.formats.common.format import Anatomy, Damage
from ckpt_tools.formats.common.zstd import have_zstd, needs_zstd, walk
from ckpt_tools.formats.tensorstore.zarr_array import MAX_CHUNKS, Coding
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Guard
from ckpt_tools.storage import Source

_NOTHING = (1 << 64) - 1
_DECODED = frozenset({"zlib", "gzip", "bz2"})
_GZIP, _BZ2 = b"\x1f\x8b\x08", b"BZh"


def check_chunk(
    source: Source, anatomy: Anatomy, offset: int, length: int, coding: Coding, *, what: str
) -> Iterator[Finding]:
    """``length`` bytes at ``offset`` as ``coding`` says; reads headers and the index of a shard. Raises
    Damage.
    """
    sums_inside = [c for c in coding.chain if c == "crc32c"]
    for i, codec in enumerate(coding.chain):
        if codec == "crc32c":
            if length < 4:
                raise Damage("truncated", f"{what}: {length} of the 4 bytes of its CRC-32C", offset + length)
            length -= 4
            _summed(source, anatomy, offset, length, what)
            sums_inside.pop()
            continue
        plain = coding.chain[i + 1 :]
        size = coding.size if coding.inner is None and all(c == "crc32c" for c in plain) else None
        yield from _compressed(
            source,
            anatomy,
            offset,
            length,
            codec,
            size=size if size is None else size + 4 * len(sums_inside),
            what=what,
        )
        return
    if coding.inner is not None:
        yield from _shard(source, anatomy, offset, length, coding, what=what)
        return
    if coding.size is not None and length != coding.size:
        code = "truncated" if length < coding.size else "trailing-data"
        raise Damage(
            code,
            f"{what}: {length} bytes, where the shape of the chunk needs {coding.size}",
            offset + min(length, coding.size),
        )
    anatomy.explain(offset, length, f"elements of {what}: no checksum covers them", Guard.UNPROTECTED)


def _summed(source: Source, anatomy: Anatomy, offset: int, length: int, what: str) -> None:
    stored = int.from_bytes(source.read(offset + length, 4), "little")
    anatomy.sums.append(
        Sum(f"CRC-32C of {what}", stored, (Extent(offset, length),), offset + length, hash=CRC32C)
    )
    anatomy.explain(offset + length, 4, f"CRC-32C of {what}")


def _compressed(
    source: Source, anatomy: Anatomy, offset: int, length: int, codec: str, *, size: int | None, what: str
) -> Iterator[Finding]:
    """The framing of compressed bytes now, their decoding at the content level."""
    kind = f"{codec} data of {what}: not checked"
    if codec == "zstd":
        kind = (
            f"zstd data of {what}: no checksum covers it, a changed bit is seen only where it breaks decoding"
        )
        size, most = walk(source, offset, length, size)
        if have_zstd():
            yield from decoding(source, anatomy, codec, what, Extent(offset, length), size=size, ceiling=most)
        else:
            yield needs_zstd(offset, what)
    elif codec == "blosc":
        _blosc(source, offset, length, size, what)
        kind = f"blosc data of {what}: only its header is checked"
    elif codec in _DECODED:
        start = source.read(offset, min(3, length))
        good = {
            "gzip": start == _GZIP,
            "bz2": start == _BZ2,
            "zlib": len(start) > 1 and start[0] & 15 == 8 and not (start[0] * 256 + start[1]) % 31,
        }
        if not good[codec]:
            raise Damage("bad-header", f"{what} does not begin like {codec} data", offset)
        kind = f"{codec} data of {what}, with a checksum over what it decodes into"
        yield from decoding(source, anatomy, codec, what, Extent(offset, length), size=size)
    anatomy.explain(offset, length, kind, Guard.UNPROTECTED)


def _blosc(source: Source, offset: int, length: int, size: int | None, what: str) -> None:
    if length < 16:
        raise Damage("truncated", f"{what}: {length} of the 16 bytes of a blosc header", offset + length)
    version, _, _, item, content, block, whole = struct.unpack("<4B3I", source.read(offset, 16))
    if version not in (1, 2) or not item or (content and not block) or (size is not None and content != size):
        raise Damage(
            "bad-header",
            f"{what}: blosc version {version}, {content} bytes in blocks of {block}, where {size} bytes"
            " belong",
            offset,
        )
    if whole != length:
        code = "truncated" if length < whole else "trailing-data"
        raise Damage(
            code,
            f"{what}: {length} bytes of blosc data, which says it has {whole}",
            offset + min(length, whole),
        )


def _shard(
    source: Source, anatomy: Anatomy, offset: int, length: int, coding: Coding, *, what: str
) -> Iterator[Finding]:
    """The index of a shard, and every chunk it places."""
    size = 16 * coding.parts + 4 * coding.summed
    if length < size:
        raise Damage("truncated", f"{what}: {length} of the {size} bytes of its index", offset + length)
    at = offset if coding.leading else offset + length - size
    if coding.parts > MAX_CHUNKS:
        raise Damage("too-complex", f"{what}: a shard of {coding.parts} chunks", at)
    if coding.summed:
        _summed(source, anatomy, at, size - 4, f"the index of {what}")
    else:
        anatomy.explain(at, size, f"index of {what}", Guard.UNPROTECTED)
    index = struct.unpack(f"<{2 * coding.parts}Q", source.read(at, 16 * coding.parts))
    low, high = (size, length) if coding.leading else (0, length - size)
    used = 0
    for i, (start, n) in enumerate(zip(index[::2], index[1::2], strict=True)):
        if start == n == _NOTHING:
            continue  # every element has the fill value
        used += n
        if start < low or start + n > high or used > length:
            raise Damage(
                "bad-header",
                f"{what}: chunk {i} of the shard lies at {start} to {start + n}, the chunks between {low} and"
                f" {high}",
                at + 16 * i,
            )
        assert coding.inner is not None  # noqa: S101
        yield from check_chunk(source, anatomy, offset + start, n, coding.inner, what=f"{what}, chunk {i}")
