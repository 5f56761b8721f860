"""Hugging Face's cache: a file of a snapshot is a link to a blob, whose name is its digest.

Facts: huggingface_hub 0.x to 2.x, file_download.py: ``models--OWNER--NAME/snapshots/REVISION/FILE`` leads to
``../../blobs/ETAG``; the etag of a large file is its SHA-256, of any other file git's SHA-1, over
``blob SIZE``, a zero byte and the content.
"""

from __future__ import annotations

from os.path import basename, dirname

from ckpt_tools.formats.common.format import Claim, check_nothing, make_format
from ckpt_tools.formats.common.stored_digests import Digest, claim, read_digest


def digest_of(etag: str) -> Digest | None:
    """Return the digest that an etag is; None for an etag of another server."""
    return read_digest("sha256", etag) or read_digest("git-sha1", etag)


def list_claims(path: str, target: str) -> tuple[Claim, ...]:
    """Return the claim that the name of a blob, ``target``, makes on the file ``path`` that links to it."""
    digest = digest_of(basename(target)) if basename(dirname(target)) == "blobs" else None
    return (claim("hf_cache", "the name of its blob", path, [digest]),) if digest else ()


# any content: the path tells
FORMAT = make_format("hf_cache", lambda _: False, check_nothing, distinct=False, loader=None)
