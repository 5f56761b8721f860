"""OCDBT, tensorstore's database of many small values in few files, as Orbax uses it: ``manifest.ocdbt`` and
``d/<32 hex digits>``.

A manifest names the roots of B+trees, a node names its children and values, each by file, offset and length.
Data files hold values and nodes one after another, so nothing but the tree says what their bytes are: the
manifest's claims are followed from node to node.

Facts: tensorstore 0.1.86, kvstore/ocdbt/index.rst and kvstore/ocdbt/format; orbax-checkpoint 0.12.8
(serialization/ocdbt_utils.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ckpt_tools.formats.common.format import Anatomy, Damage, own_format
from ckpt_tools.formats.common.tensors import remember
from ckpt_tools.formats.tensorstore import ocdbt_nodes as db
from ckpt_tools.formats.tensorstore.ocdbt_parts import record, say
from ckpt_tools.formats.tensorstore.ocdbt_record import MANIFEST
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Level
from ckpt_tools.storage import Source


def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """A manifest, and claims on the nodes that it names."""
    if not source.size:
        raise Damage("empty-file", "the file has no bytes", 0)
    for item in record(source, anatomy, 0, source.size, MANIFEST, what="the manifest"):
        if isinstance(item, Finding):
            yield item
            continue
        try:
            manifest = db.manifest(item)
        except Damage as e:
            yield replace(e.finding, offset=14)
            return
        if not manifest.numbered:
            remember(anatomy.metadata, "ocdbt_generation", manifest.generation)
        say(anatomy, [*manifest.roots, *manifest.versions])


FORMAT = own_format(
    name="ocdbt",
    magic=lambda head: head.startswith(MANIFEST),
    checks={Level.STRUCTURE: _structure},
    loader=None,
    protects=(
        "a CRC-32C over the manifest and over every node, with the values that lie inside them (Orbax: those"
        " up to 1 KiB); no other value"
    ),
    limits=(
        "values outside the nodes have no checksum",
        (
            "a changed bit in zstd data is seen only where it breaks decoding (with the zstandard package):"
            " one in twenty in float weights, more in regular data"
        ),
        (
            "without the zstandard package only lengths and checksums are checked, because the tree cannot be"
            " read"
        ),
        "bytes of data files that no node refers to are not checked",
    ),
    reference="tensorstore 0.1.86: kvstore/ocdbt/index.rst, kvstore/ocdbt/format",
)
