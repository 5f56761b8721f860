"""Hugging Face's cache: a file of a snapshot is a link to a blob, whose name is its digest.

Facts: huggingface_hub 0.x to 2.x, file_download.py: ``models--OWNER--NAME/snapshots/REVISION/FILE`` leads to
``../../blobs/ETAG``; the etag of a large file is its SHA-256, of any other file git's SHA-1, over
``blob SIZE``, a zero byte and the content.
"""

from __future__ import annotations

import re

from ckpt_tools.formats.common.format import Claim, check_nothing, make_format
from ckpt_tools.formats.common.stored_digests import Digest, claim

_BLOB = re.compile(r"(?:.*/)?blobs/([0-9a-f]{40}|[0-9a-f]{64})")


def digest_of(etag: str) -> Digest | None:
    """Return the digest that an etag is; None for an etag of another server."""
    if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", etag) is None:
        return None
    return Digest("sha256" if len(etag) == 64 else "git-sha1", bytes.fromhex(etag))


def list_claims(path: str, target: str) -> tuple[Claim, ...]:
    """Return the claim that the name of a blob, ``target``, makes on the file ``path`` that links to it."""
    blob = _BLOB.fullmatch(target)
    digest = digest_of(blob[1]) if blob else None
    return (claim("hf_cache", "the name of its blob", path, [digest]),) if digest else ()


# any content: the path tells
FORMAT = make_format("hf_cache", lambda _: False, check_nothing, distinct=False, loader=None)
