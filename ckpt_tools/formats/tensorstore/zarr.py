"""zarr arrays in files: ``.zarray`` (v2) and ``zarr.json`` (v3) describe the chunk files beside them (Orbax
without OCDBT, tensorstore).

Facts: zarr storage specification v2 and v3; tensorstore 0.1.86 (driver/zarr/metadata.cc,
driver/zarr3/metadata.cc): a chunk that only holds the fill value is not written unless
``store_data_equal_to_fill_value`` is set, so a chunk that is not there is no damage by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar

from msgspec import Struct

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Claim, Damage, nothing, own_format
from ckpt_tools.formats.common.json_text import mapping, read_json
from ckpt_tools.formats.tensorstore.zarr_array import MAX_CHUNKS, Array, Coding, array_of
from ckpt_tools.formats.tensorstore.zarr_chunk import check_chunk
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Guard, Level
from ckpt_tools.storage import Source

_KEYS = (
    "chunks|compressor|dimension_separator|dtype|fill_value|filters|order|shape|zarr_format|"
    "attributes|chunk_grid|chunk_key_encoding|codecs|consolidated_metadata|data_type|dimension_names|"
    "node_type|storage_transformers"
)
_FIRST = re.compile(rb'\s?\{\s*"(?:%s)"\s*:' % _KEYS.encode())


class Chunk(Struct, frozen=True):
    """The claim on a chunk's file: all of it is one chunk of this coding."""

    SENT: ClassVar[bool] = True
    coding: Coding

    def __call__(self, source: Source, anatomy: Anatomy) -> Iterator[Finding]:
        if not source.size and self.coding.size != 0:
            raise Damage("empty-file", "the chunk has no bytes", 0)
        yield from check_chunk(source, anatomy, 0, source.size, self.coding, what="the chunk")


class Described(Struct, frozen=True):
    """The claim on an array's metadata of an index (a format) that names its directory: the chunks belong to
    what the index describes, and each was written. The metadata's own format checks them.
    """

    SENT: ClassVar[bool] = True
    name: str
    format: str

    def __call__(self, source: Source, anatomy: Anatomy) -> Iterator[Finding]:
        try:
            array = read_array(source, Anatomy(), [])
        except Damage:
            return
        if array is not None and array.chunk_count() <= MAX_CHUNKS:
            claim = Claim(self.format, nothing)
            anatomy.members.update((f"{self.name}/{chunk}", claim) for chunk in array.names())
        yield from ()


def _magic(head: bytes) -> bool:
    return _FIRST.match(head) is not None


def read_array(source: Source, anatomy: Anatomy, found: list[Finding]) -> Array | None:
    """The array that the metadata describes; None for a group. Raises Damage."""
    doc = mapping(read_json(source, found).value)
    if not doc:
        raise Damage("bad-header", "zarr metadata that is no JSON object", 0)
    anatomy.explain(
        0, source.size, "zarr metadata: its form is checked, and that the chunks fit it", Guard.UNPROTECTED
    )
    return array_of(doc)


def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """The metadata, and claims on the files of all chunks of the grid."""
    found: list[Finding] = []
    array = read_array(source, anatomy, found)
    yield from found
    if array is None:
        return
    anatomy.tensors.append(array.tensor("array"))
    if array.item is None:
        what = f"elements of type {array.dtype!r} are not known: the size of the chunks is not checked"
        yield finding("unknown-dtype", what, offset=0, severity=Severity.NOTE)
    if array.chunk_count() > MAX_CHUNKS:
        yield finding(
            "too-complex",
            f"{array.chunk_count()} chunks: their files are not checked",
            offset=0,
            severity=Severity.NOTE,
        )
        return
    claim = Claim(FORMAT.name, Chunk(array.coding), whole=True, optional=True)
    anatomy.members.update(dict.fromkeys(array.names(), claim))


FORMAT = own_format(
    name="zarr",
    magic=_magic,
    distinct=False,
    checks={Level.STRUCTURE: _structure},
    loader=None,
    protects=(
        "chunks with the crc32c codec, indexes of shards (Orbax writes them with zarr v3), the content of"
        " gzip, zlib and bz2 data; nothing else"
    ),
    limits=(
        (
            "a changed bit in zstd data is seen only where it breaks decoding (with the zstandard package):"
            " one in twenty in float weights, more in regular data"
        ),
        "raw and blosc chunks are checked by size only",
        (
            "a chunk file that is not there stands for the fill value, so a lost one is seen only through"
            " Orbax's _METADATA"
        ),
        "a changed fill value, and other metadata that does not change sizes, is not seen",
    ),
    reference=(
        "zarr specification v2 and v3; tensorstore 0.1.86: driver/zarr, driver/zarr3,"
        " kvstore/zarr3_sharding_indexed"
    ),
)
