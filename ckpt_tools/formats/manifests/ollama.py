"""Ollama's manifest of a model: the digests and sizes of its blobs, in the format of container registries.

Facts: ollama manifest/manifest.go, manifest/layer.go: ``models/manifests/HOST/NAMESPACE/MODEL/TAG`` is
``{schemaVersion, config, layers}``; a layer ``{digest: sha256:HEX, size}`` is ``models/blobs/sha256-HEX``.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, limit, make_format
from ckpt_tools.formats.common.json_text import mapping, opens_object, read_json, sequence
from ckpt_tools.formats.common.stored_digests import claim, read_digest
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Guard
from ckpt_tools.storage import Source


@limit
def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Read Ollama's manifest of a model; add a claim on each blob: SHA-256 and size."""
    anatomy.explain(0, source.size, "digests and sizes", Guard.UNPROTECTED)
    if not opens_object(source.read(0, min(source.size, 64))):
        yield finding("not-checksummed", "this is not a manifest of Ollama: nothing is known of its content")
        return
    text = read_json(source)
    yield from text.odd
    value = mapping(text.value)
    for layer in map(mapping, (value.get("config"), *sequence(value.get("layers")))):
        digest, size = str(layer.get("digest", "")), layer.get("size")
        if known := read_digest("sha256", digest.removeprefix("sha256:").removeprefix("sha256-")):
            name = f"blobs/sha256-{known.value.hex()}"
            length = size if type(size) is int and size >= 0 else -1
            anatomy.members[name] = claim("ollama", "the manifest of its model", name, [known], size=length)
        elif digest:
            yield finding("bad-header", f"the digest {digest[:80]!r} is no SHA-256")


FORMAT = make_format("ollama", opens_object, _structure, distinct=False, loader=None)
