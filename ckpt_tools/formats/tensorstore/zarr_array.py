"""What zarr's array metadata says: the grid of chunks, their names, and what every chunk's bytes must be.

Facts: zarr storage specification v2 and v3 (core, codecs zstd, gzip, blosc, crc32c, sharding_indexed),
tensorstore 0.1.86 (driver/zarr, driver/zarr3).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import product
from math import prod
from typing import NamedTuple

from ckpt_tools.formats.common.format import Damage
from ckpt_tools.formats.common.json_text import integers, mapping, sequence
from ckpt_tools.model.tensor import Tensor

MAX_CHUNKS = 100_000
MAX_CODECS = 16
"""Codecs in a chain; each may be a checksum over the whole chunk."""
_NUMPY = {"f": "float", "i": "int", "u": "uint", "c": "complex", "b": "bool"}
_TYPED = re.compile(r"[<>|]([fiucb])(\d{1,2})")
_NAMED = re.compile(r"(bool|u?int|b?float|complex)(\d{0,3})(?:_e\d+m\d+\w*)?")
_SMALL = re.compile(r"u?int[124]|float[4-8]_e\w+")


class Coding(NamedTuple):
    """How the bytes of a chunk come about: ``chain`` of codecs, the last applied first; ``size`` in bytes
    before them, None when not known.

    With ``inner``, a chunk is a shard of ``parts`` chunks of that coding, followed (or, with ``leading``,
    preceded) by an index, which ends in a CRC-32C when ``summed``.
    """

    size: int | None
    chain: tuple[str, ...]
    inner: Coding | None = None
    parts: int = 0
    summed: bool = False
    leading: bool = False


class Array(NamedTuple):
    """One array: what its chunks hold and are called."""

    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    item: int | None
    coding: Coding
    prefix: str
    separator: str

    def tensor(self, name: str) -> Tensor:
        return Tensor(name, self.dtype, self.shape, prod(self.shape) * (self.item or 0), None, "chunks")

    def chunk_count(self) -> int:
        return prod(-(-s // c) if c else 0 for s, c in zip(self.shape, self.chunks, strict=True))

    def names(self) -> Iterator[str]:
        """The names that chunks may have, as paths beside the metadata."""
        if not self.shape:
            yield self.prefix or "0"
            return
        lead = self.prefix + self.separator if self.prefix else ""
        for index in product(
            *(range(-(-s // c) if c else 0) for s, c in zip(self.shape, self.chunks, strict=True))
        ):
            yield lead + self.separator.join(map(str, index))


def _bad(what: str) -> Damage:
    return Damage("bad-header", f"zarr: {what}", 0)


def _item(dtype: object) -> tuple[str, int | None]:
    """(name, bytes per element); None for types that are not known."""
    if not isinstance(dtype, str):
        return ("structured" if isinstance(dtype, list) else "unknown"), None
    if m := _TYPED.fullmatch(dtype):
        size = int(m[2])
        return _NUMPY[m[1]] + (str(8 * size) if m[1] != "b" else ""), size
    if _SMALL.fullmatch(dtype):
        return dtype, 1  # tensorstore keeps an int4 or a float8 in a byte of its own
    if m := _NAMED.fullmatch(dtype):
        return dtype, max(1, int(m[2] or 8) // 8)
    return dtype[:64], None


def _shapes(shape: object, chunks: object) -> tuple[tuple[int, ...], tuple[int, ...]]:
    s, c = integers(shape), integers(chunks)
    if s is None or c is None or len(s) != len(c):
        raise _bad(f"shape {str(shape)[:80]} and chunks {str(chunks)[:80]} do not belong together")
    if any(size and not part for size, part in zip(s, c, strict=True)):
        raise _bad("a chunk without elements")
    return s, c


def _missing(doc: Mapping[str, object], needed: str) -> None:
    if absent := [k for k in needed.split() if k not in doc]:
        raise _bad(f"there is no {' and no '.join(absent)}")


def v2(doc: Mapping[str, object]) -> Array:
    """``.zarray``. Raises Damage."""
    _missing(doc, "zarr_format shape chunks dtype compressor fill_value order filters")
    if doc["zarr_format"] != 2:
        raise _bad(f"zarr_format is {str(doc['zarr_format'])[:20]}, not 2")
    shape, chunks = _shapes(doc["shape"], doc["chunks"])
    name, item = _item(doc["dtype"])
    compressor, separator = doc["compressor"], doc.get("dimension_separator", ".")
    if separator not in (".", "/") or doc["order"] not in ("C", "F"):
        raise _bad(f"dimension_separator {str(separator)[:20]!r}, order {str(doc['order'])[:20]!r}")
    if compressor is not None and not isinstance(mapping(compressor).get("id"), str):
        raise _bad("a compressor without an id")
    chain = () if compressor is None else (str(mapping(compressor)["id"])[:32],)
    size = prod(chunks) * item if item is not None and not doc["filters"] else None
    return Array(name, shape, chunks, item, Coding(size, chain), "", str(separator))


def _codecs(codecs: object, shape: tuple[int, ...], item: int | None, depth: int = 0) -> Coding:
    """A v3 chain of codecs over a chunk of ``shape``.

    Arrays to arrays, one of array to bytes, then bytes to bytes.
    """
    size = prod(shape) * item if item is not None else None
    chain: list[str] = []
    shards: Coding | None = None
    if len(sequence(codecs)) > MAX_CODECS:
        raise Damage("too-complex", f"zarr: a chain of {len(sequence(codecs))} codecs", 0)
    for codec in sequence(codecs):
        name = mapping(codec).get("name")
        if not isinstance(name, str):
            raise _bad("a codec without a name")
        if name == "sharding_indexed" and depth < 3:
            told = mapping(mapping(codec).get("configuration"))
            shards, size = _sharding(told, shape, item, depth + 1), None
        elif name not in ("transpose", "bytes"):
            chain.insert(0, name[:32])
            if name in ("vlen-utf8", "vlen-bytes", "cast_value", "scale_offset") or "." in name:
                size = None
    if shards is None:
        return Coding(size, tuple(chain))
    return shards._replace(size=size, chain=tuple(chain))


def _sharding(told: Mapping[str, object], shape: tuple[int, ...], item: int | None, depth: int) -> Coding:
    """The codec that cuts a chunk of ``shape`` into smaller ones, with an index of their places. Raises
    Damage.
    """
    part = integers(told.get("chunk_shape"))
    if (
        part is None
        or len(part) != len(shape)
        or any(not p or s % p for s, p in zip(shape, part, strict=True))
    ):
        raise _bad("a shard that its chunks do not divide")
    index = [mapping(c).get("name") for c in sequence(told.get("index_codecs"))]
    parts = prod(s // p for s, p in zip(shape, part, strict=True))
    inner = _codecs(told.get("codecs"), part, item, depth)
    known = index in (["bytes"], ["bytes", "crc32c"])
    leading = told.get("index_location") == "start"
    return Coding(None, (), inner if known else None, parts, index == ["bytes", "crc32c"], leading)


def v3(doc: Mapping[str, object]) -> Array | None:
    """``zarr.json``; None for a group and for grids of extensions. Raises Damage."""
    _missing(doc, "zarr_format node_type")
    if doc["zarr_format"] != 3 or doc["node_type"] not in ("array", "group"):
        raise _bad(f"zarr_format {str(doc['zarr_format'])[:20]}, node_type {str(doc['node_type'])[:20]}")
    if doc["node_type"] == "group":
        return None
    _missing(doc, "shape data_type chunk_grid chunk_key_encoding fill_value codecs")
    grid, keys = mapping(doc["chunk_grid"]), mapping(doc["chunk_key_encoding"])
    if not isinstance(grid.get("name"), str) or not isinstance(keys.get("name"), str):
        raise _bad("a chunk_grid or chunk_key_encoding without a name")
    if grid["name"] != "regular" or keys["name"] not in ("default", "v2"):
        return None  # an extension: whatever it means
    shape, chunks = _shapes(doc["shape"], mapping(grid.get("configuration")).get("chunk_shape"))
    name, item = _item(doc["data_type"])
    default = keys["name"] == "default"
    separator = mapping(keys.get("configuration")).get("separator", "/" if default else ".")
    if separator not in (".", "/") or not sequence(doc["codecs"]):
        raise _bad(f"separator {str(separator)[:20]!r}, codecs {str(doc['codecs'])[:80]}")
    return Array(
        name,
        shape,
        chunks,
        item,
        _codecs(doc["codecs"], chunks, item),
        "c" if default else "",
        str(separator),
    )


def array_of(doc: Mapping[str, object]) -> Array | None:
    """The array that either kind of metadata describes; None for a group. Raises Damage."""
    return v2(doc) if doc.get("zarr_format") == 2 else v3(doc)
