"""zarr arrays: ``.zarray`` (v2) and ``zarr.json`` (v3) describe an array's chunks, which lie in files beside
the metadata (Orbax without OCDBT, tensorstore), in an OCDBT data file, or in a shard.

Facts: zarr storage specification v2 and v3 (core; codecs zstd, gzip, blosc, crc32c: last 4 bytes,
little-endian; sharding_indexed: index of 64-bit offset and length, all ones for a missing chunk); c-blosc
1.21 README_CHUNK_FORMAT; tensorstore 0.1.86 (driver/zarr/metadata.cc, driver/zarr3/metadata.cc): a chunk that
only holds the fill value is not written unless ``store_data_equal_to_fill_value`` is set, so a missing chunk
alone is no damage.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from math import prod
from typing import NamedTuple

from ckpt_tools.checksum import CRC32C, Extent, Sum
from ckpt_tools.findings import finding
from ckpt_tools.formats.common.decode import add_decoding
from ckpt_tools.formats.common.format import Anatomy, Claim, Damage, check_nothing, make_format
from ckpt_tools.formats.common.json_text import mapping, read_integers, read_json, sequence
from ckpt_tools.formats.common.zstd import check_frame
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Guard, Tensor
from ckpt_tools.storage import Source

MAX_CHUNKS = 100_000
MAX_CODECS = 16
"""Most codecs in a chain: each may be a checksum over the whole chunk, and so cost a pass over it."""
_KEYS = (
    "chunks|compressor|dimension_separator|dtype|fill_value|filters|order|shape|zarr_format|"
    "attributes|chunk_grid|chunk_key_encoding|codecs|consolidated_metadata|data_type|dimension_names|"
    "node_type|storage_transformers"
)
_FIRST = re.compile(rb'\s?\{\s*"(?:%s)"\s*:' % _KEYS.encode())
_NUMPY = {"f": "float", "i": "int", "u": "uint", "c": "complex", "b": "bool"}
_TYPED = re.compile(r"[<>|]([fiucb])(\d{1,2})")
_NAMED = re.compile(r"(bool|u?int|b?float|complex)(\d{0,3})(?:_e\d+m\d+\w*)?")
_SMALL = re.compile(r"u?int[124]|float[4-8]_e\w+")
_NOTHING = (1 << 64) - 1

# ---- The metadata: the grid of chunks, their names, and the coding of every chunk's bytes.


class Coding(NamedTuple):
    """One way to make the bytes of a chunk: ``chain`` has the codecs, the last applied first, ``size`` is the
    number of bytes before encoding, or None if unknown.
    With ``inner``, a chunk is a shard of ``parts`` chunks with the coding ``inner``, followed (or, with
    ``leading``, preceded) by an index, which ends in a CRC-32C if ``summed``.
    """

    size: int | None
    chain: tuple[str, ...]
    inner: Coding | None = None
    parts: int = 0
    summed: bool = False
    leading: bool = False


class Array(NamedTuple):
    """One array: type, shape and coding of its chunks, and how their names are made."""

    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    item: int | None
    coding: Coding
    prefix: str
    separator: str

    def tensor(self, name: str) -> Tensor:
        """Return the array as a tensor of that name, which lies in chunks."""
        return Tensor(name, self.dtype, self.shape, prod(self.shape) * (self.item or 0), None, "chunks")

    def grid(self) -> list[int]:
        """Return the number of chunks along each axis."""
        return [-(-s // c) if c else 0 for s, c in zip(self.shape, self.chunks, strict=True)]

    def names(self) -> Iterator[str]:
        """Yield the names that chunks may have, relative to the directory of the metadata."""
        if not self.shape:
            yield self.prefix or "0"
            return
        lead = self.prefix + self.separator if self.prefix else ""
        for index in product(*map(range, self.grid())):
            yield lead + self.separator.join(map(str, index))


def _bad(what: str) -> Damage:
    return Damage("bad-header", f"zarr: {what}", 0)


def _read_type(dtype: object) -> tuple[str, int | None]:
    """Return (name, bytes per element) of zarr's data type; the bytes are None if the type is unknown."""
    if not isinstance(dtype, str):
        return ("structured" if isinstance(dtype, list) else "unknown"), None
    if m := _TYPED.fullmatch(dtype):
        size = int(m[2])
        return _NUMPY[m[1]] + (str(8 * size) if m[1] != "b" else ""), size
    if _SMALL.fullmatch(dtype):
        return dtype, 1  # tensorstore stores each int4 or float8 in a whole byte
    if m := _NAMED.fullmatch(dtype):
        return dtype, max(1, int(m[2] or 8) // 8)
    return dtype[:64], None


def _read_shapes(shape: object, chunks: object) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of an array and of its chunks. Raise Damage unless they fit each other."""
    s, c = read_integers(shape), read_integers(chunks)
    if s is None or c is None or len(s) != len(c):
        raise _bad(f"shape {str(shape)[:80]} and chunks {str(chunks)[:80]} do not belong together")
    if any(size and not part for size, part in zip(s, c, strict=True)):
        raise _bad("a chunk without elements")
    return s, c


def _require_keys(doc: Mapping[str, object], needed: str) -> None:
    """Raise Damage unless zarr metadata have all keys in ``needed``, which blanks separate."""
    if absent := [k for k in needed.split() if k not in doc]:
        raise _bad(f"there is no {' and no '.join(absent)}")


def _read_v2(doc: Mapping[str, object]) -> Array:
    """Return the array that the JSON of a ``.zarray`` (zarr version 2) describes. Raise Damage."""
    _require_keys(doc, "zarr_format shape chunks dtype compressor fill_value order filters")
    shape, chunks = _read_shapes(doc["shape"], doc["chunks"])
    name, item = _read_type(doc["dtype"])
    compressor, separator = doc["compressor"], doc.get("dimension_separator", ".")
    if separator not in (".", "/") or doc["order"] not in ("C", "F"):
        raise _bad(f"dimension_separator {str(separator)[:20]!r}, order {str(doc['order'])[:20]!r}")
    if compressor is not None and not isinstance(mapping(compressor).get("id"), str):
        raise _bad("a compressor without an id")
    chain = () if compressor is None else (str(mapping(compressor)["id"])[:32],)
    size = prod(chunks) * item if item is not None and not doc["filters"] else None
    return Array(name, shape, chunks, item, Coding(size, chain), "", str(separator))


def _read_codecs(codecs: object, shape: tuple[int, ...], item: int | None, depth: int = 0) -> Coding:
    """Return the coding of a chunk of that ``shape`` by zarr's version 3 ``codecs``; an element has ``item``
    bytes, None if unknown. ``depth`` counts the shards around the chunk. Raise Damage.
    """
    size = prod(shape) * item if item is not None else None
    chain: list[str] = []
    shards = Coding(None, ())
    if len(sequence(codecs)) > MAX_CODECS:
        raise Damage("too-complex", f"zarr: a chain of {len(sequence(codecs))} codecs", 0)
    for codec in sequence(codecs):
        name = mapping(codec).get("name")
        if not isinstance(name, str):
            raise _bad("a codec without a name")
        if name == "sharding_indexed" and depth < 3:
            configuration = mapping(mapping(codec).get("configuration"))
            shards, size = _read_sharding(configuration, shape, item, depth + 1), None
        elif name not in ("transpose", "bytes"):
            chain.insert(0, name[:32])
            if name in ("vlen-utf8", "vlen-bytes", "cast_value", "scale_offset") or "." in name:
                size = None
    return shards._replace(size=size, chain=tuple(chain))


def _read_sharding(
    configuration: Mapping[str, object], shape: tuple[int, ...], item: int | None, depth: int
) -> Coding:
    """Return the coding of a shard: a chunk cut into inner chunks, which an index locates. Raise Damage."""
    part = read_integers(configuration.get("chunk_shape"))
    pairs = list(zip(shape, part or (), strict=False))
    if part is None or len(part) != len(shape) or any(not p or s % p for s, p in pairs):
        raise _bad("a shard that its chunks do not divide")
    index = [mapping(c).get("name") for c in sequence(configuration.get("index_codecs"))]
    parts = prod(s // p for s, p in pairs)
    inner = _read_codecs(configuration.get("codecs"), part, item, depth)
    known = index in (["bytes"], ["bytes", "crc32c"])
    leading = configuration.get("index_location") == "start"
    return Coding(None, (), inner if known else None, parts, index == ["bytes", "crc32c"], leading)


def read_array(doc: Mapping[str, object]) -> Array | None:
    """Return the array in zarr metadata; None for a group, or a grid of an extension. Raise Damage."""
    if doc.get("zarr_format") == 2:
        return _read_v2(doc)
    _require_keys(doc, "zarr_format node_type")
    if doc["zarr_format"] != 3 or doc["node_type"] not in ("array", "group"):
        raise _bad(f"zarr_format {str(doc['zarr_format'])[:20]}, node_type {str(doc['node_type'])[:20]}")
    if doc["node_type"] == "group":
        return None
    _require_keys(doc, "shape data_type chunk_grid chunk_key_encoding fill_value codecs")
    grid, keys = mapping(doc["chunk_grid"]), mapping(doc["chunk_key_encoding"])
    if not isinstance(grid.get("name"), str) or not isinstance(keys.get("name"), str):
        raise _bad("a chunk_grid or chunk_key_encoding without a name")
    if grid["name"] != "regular" or keys["name"] not in ("default", "v2"):
        return None  # an extension, unknown here
    shape, chunks = _read_shapes(doc["shape"], mapping(grid.get("configuration")).get("chunk_shape"))
    name, item = _read_type(doc["data_type"])
    prefix, usual = ("c", "/") if keys["name"] == "default" else ("", ".")
    separator = mapping(keys.get("configuration")).get("separator", usual)
    if separator not in (".", "/") or not sequence(doc["codecs"]):
        raise _bad(f"separator {str(separator)[:20]!r}, codecs {str(doc['codecs'])[:80]}")
    coding = _read_codecs(doc["codecs"], chunks, item)
    return Array(name, shape, chunks, item, coding, prefix, str(separator))


# ---- The bytes of one chunk, wherever they lie.


def check_chunk(
    source: Source, anatomy: Anatomy, offset: int, length: int, coding: Coding, *, what: str
) -> Iterator[Finding]:
    """Check a zarr chunk of ``length`` bytes: headers of compressed data, a shard's index. Raise Damage."""
    sums = sum(c == "crc32c" for c in coding.chain)  # that are still inside the ``length`` bytes
    for i, codec in enumerate(coding.chain):
        if codec != "crc32c":
            plain = coding.inner is None and all(c == "crc32c" for c in coding.chain[i + 1 :])
            size = coding.size + 4 * sums if plain and coding.size is not None else None
            yield from _check_compressed(source, anatomy, offset, length, codec, size=size, what=what)
            return
        if length < 4:
            raise Damage("truncated", f"{what}: {length} of the 4 bytes of its CRC-32C", offset + length)
        length -= 4
        add_sum(source, anatomy, offset, length, what)
        sums -= 1
    if coding.inner is not None:
        yield from _check_shard(source, anatomy, offset, length, coding, inner=coding.inner, what=what)
        return
    if coding.size is not None:
        why = f"{what}: {length} bytes, where the shape of the chunk needs {coding.size}"
        require_length(why, offset, length, coding.size)
    anatomy.explain(offset, length, f"elements of {what}: no checksum covers them", Guard.UNPROTECTED)


def require_length(why: str, offset: int, length: int, wanted: int) -> None:
    """Raise Damage, with the message ``why``, unless the ``length`` bytes at ``offset`` are ``wanted``."""
    if length != wanted:
        code = "truncated" if length < wanted else "trailing-data"
        raise Damage(code, why, offset + min(length, wanted))


def read_sum(source: Source, offset: int, length: int, what: str) -> Sum:
    """Return the CRC-32C that lies behind the ``length`` bytes that it covers."""
    at = offset + length
    stored = int.from_bytes(source.read(at, 4), "little")
    return Sum(f"CRC-32C of {what}", stored, (Extent(offset, length),), at, hash=CRC32C)


def add_sum(source: Source, anatomy: Anatomy, offset: int, length: int, what: str) -> None:
    """Add the CRC-32C behind ``length`` bytes to ``anatomy.sums``; its own 4 bytes need no other check."""
    anatomy.sums.append(read_sum(source, offset, length, what))
    anatomy.explain(offset + length, 4, f"CRC-32C of {what}")


def _check_compressed(
    source: Source, anatomy: Anatomy, offset: int, length: int, codec: str, *, size: int | None, what: str
) -> Iterator[Finding]:
    """Check the framing of a compressed chunk; the content level decodes it, into ``size`` bytes if known."""
    text = f"{codec} data of {what}: not checked"
    if codec == "zstd":
        limit = "no checksum covers it, a changed bit is seen only where it breaks decoding"
        text = f"zstd data of {what}: {limit}"
        size, most = check_frame(source, offset, length, size)
        yield from add_decoding(source, anatomy, codec, what, Extent(offset, length), size=size, ceiling=most)
    elif codec == "blosc":
        if length < 16:
            raise Damage("truncated", f"{what}: {length} of the 16 bytes of a blosc header", offset + length)
        version, _, _, item, content, block, total = struct.unpack("<4B3I", source.read(offset, 16))
        fits = size is None or content == size
        if version not in (1, 2) or not item or (content and not block) or not fits:
            why = f"blosc version {version}, {content} bytes in blocks of {block}, where {size} bytes belong"
            raise Damage("bad-header", f"{what}: {why}", offset)
        why = f"{what}: {length} bytes of blosc data, which says it has {total}"
        require_length(why, offset, length, total)
        text = f"blosc data of {what}: only its header is checked"
    elif codec in ("zlib", "gzip", "bz2"):
        start = source.read(offset, min(3, length))
        good = {
            "gzip": start == b"\x1f\x8b\x08",
            "bz2": start == b"BZh",
            "zlib": len(start) > 1 and start[0] & 15 == 8 and not (start[0] * 256 + start[1]) % 31,
        }
        if not good[codec]:
            raise Damage("bad-header", f"{what} does not begin like {codec} data", offset)
        text = f"{codec} data of {what}, with a checksum over what it decodes into"
        yield from add_decoding(source, anatomy, codec, what, Extent(offset, length), size=size)
    anatomy.explain(offset, length, text, Guard.UNPROTECTED)


def _check_shard(
    source: Source, anatomy: Anatomy, offset: int, length: int, coding: Coding, *, inner: Coding, what: str
) -> Iterator[Finding]:
    """Check the index of a shard, and every chunk in the index. Raise Damage."""
    size = 16 * coding.parts + 4 * coding.summed
    if length < size:
        raise Damage("truncated", f"{what}: {length} of the {size} bytes of its index", offset + length)
    at = offset if coding.leading else offset + length - size
    if coding.parts > MAX_CHUNKS:
        raise Damage("too-complex", f"{what}: a shard of {coding.parts} chunks", at)
    if coding.summed:
        add_sum(source, anatomy, at, size - 4, f"the index of {what}")
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
            where = f"{start} to {start + n}, the chunks between {low} and {high}"
            raise Damage("bad-header", f"{what}: chunk {i} of the shard lies at {where}", at + 16 * i)
        yield from check_chunk(source, anatomy, offset + start, n, inner, what=f"{what}, chunk {i}")


# ---- Arrays in files.


def _check_chunk_file(source: Source, anatomy: Anatomy, coding: Coding) -> Iterator[Finding]:
    """Check a file that as a whole is one chunk with this coding."""
    if not source.size and coding.size != 0:
        raise Damage("empty-file", "the chunk has no bytes", 0)
    yield from check_chunk(source, anatomy, 0, source.size, coding, what="the chunk")


def claim_chunks(source: Source, anatomy: Anatomy, *, name: str, of: str) -> Iterator[Finding]:
    """Add claims on the files of all chunks of the array in the directory ``name``, whose metadata ``source``
    has: the index of format ``of`` needs each of them. The format zarr checks the chunks.
    """
    try:
        array = read_array(mapping(read_json(source).value))
    except Damage:
        return
    if array is not None and prod(array.grid()) <= MAX_CHUNKS:
        claim = Claim(of, check_nothing)
        anatomy.members.update((f"{name}/{chunk}", claim) for chunk in array.names())
    yield from ()


def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check zarr metadata; add claims on the files of all chunks of the grid."""
    text = read_json(source)
    doc = mapping(text.value)
    if not doc:
        raise Damage("bad-header", "zarr metadata that is not a JSON object", 0)
    what = "zarr metadata: its form is checked, and that the chunks fit it"
    anatomy.explain(0, source.size, what, Guard.UNPROTECTED)
    array = read_array(doc)
    yield from text.odd
    if array is None:
        return
    anatomy.tensors.append(array.tensor("array"))
    if array.item is None:
        what = f"elements of type {array.dtype!r} are not known: the size of the chunks is not checked"
        yield finding("unknown-dtype", what, offset=0, severity=Severity.NOTE)
    if (count := prod(array.grid())) > MAX_CHUNKS:
        why = f"{count} chunks: their files are not checked"
        yield finding("too-complex", why, offset=0, severity=Severity.NOTE)
        return
    claim = Claim("zarr", partial(_check_chunk_file, coding=array.coding), whole=True, optional=True)
    anatomy.members.update(dict.fromkeys(array.names(), claim))


FORMAT = make_format("zarr", lambda head: bool(_FIRST.match(head)), _structure, distinct=False, loader=None)
