"""The manifest of a Weights & Biases artifact: the MD5 and the size of each of its files.

Facts: wandb 0.12 to 0.31, sdk/artifacts/artifact_manifests/artifact_manifest_v1.py: ``contents`` maps a path
to ``{digest, size}``, the MD5 in base64; an entry with ``ref`` lies elsewhere, and its digest is another's.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator
from os.path import basename

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, limit, make_format
from ckpt_tools.formats.common.json_text import mapping, opens_object, read_json
from ckpt_tools.formats.common.stored_digests import Digest, claim
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Guard
from ckpt_tools.storage import Source

_MD5 = re.compile(r"[0-9A-Za-z+/]{22}==")


@limit
def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Read a Weights & Biases manifest; add a claim on each of its files: MD5 and size."""
    text, own = read_json(source), basename(source.path)
    value = mapping(text.value)
    anatomy.explain(0, source.size, "names, digests and sizes", Guard.UNPROTECTED)
    if "storagePolicy" not in value or not isinstance(value.get("contents"), dict):
        yield finding("not-checksummed", "this is not a manifest of wandb: nothing is known of its content")
        return
    yield from text.odd
    for name, entry in mapping(value["contents"]).items():
        if (row := mapping(entry)).get("ref") or name == own:
            continue
        md5, size = row.get("digest"), row.get("size")
        if not (isinstance(md5, str) and _MD5.fullmatch(md5)):
            yield finding("bad-header", f"the digest of {name[:80]!r} is no MD5 in base64")
            continue
        digest, length = Digest("md5", b64decode(md5)), size if type(size) is int and size >= 0 else -1
        anatomy.members[name] = claim("wandb_manifest", own, name, [digest], size=length)


FORMAT = make_format("wandb_manifest", opens_object, _structure, distinct=False, loader=None)
