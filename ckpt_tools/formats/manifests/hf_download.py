"""Hugging Face's metadata of a file that was downloaded into a directory: commit, etag and time.

Facts: huggingface_hub 0.23 to 2.x, _local_folder.py: ``DIR/.cache/huggingface/download/PATH.metadata`` has
three lines; it is valid unless the file was changed more than a second after the time in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Check, make_format
from ckpt_tools.formats.common.stored_digests import claim
from ckpt_tools.formats.manifests.hf_cache import digest_of
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Guard
from ckpt_tools.storage import Source

_DIRECTORY = ".cache/huggingface/download/"
_COMMIT = re.compile(rb"[0-9a-f]{40}\r?\n")
_LINES = re.compile(rb"([0-9a-f]{40})\r?\n([^\r\n]{1,200})\r?\n(\d{1,12}(?:\.\d{1,12})?)\s*")
_LONGEST = 1024  # bytes


def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Read the metadata of a download; add a claim on the downloaded file."""
    found = _LINES.fullmatch(source.read(0, min(source.size, _LONGEST)))
    anatomy.explain(0, source.size, "commit, etag and time", Guard.UNPROTECTED)
    digest = digest_of(found[2].decode("ascii", "replace")) if found else None
    if found is None or digest is None:  # huggingface_hub removes it, and downloads again
        yield finding("not-checksummed", "no metadata of a download: its file is not compared with it")
        return
    name = source.path.rpartition(_DIRECTORY)[2].removesuffix(".metadata")
    file_claim = claim("hf_download", ".cache/huggingface", name, [digest], optional=True)
    check = partial(_compare_unchanged, since=float(found[3]), compare=file_claim.check)
    anatomy.members[name] = file_claim._replace(check=check)


def _compare_unchanged(source: Source, anatomy: Anatomy, since: float, compare: Check) -> Iterator[Finding]:
    """Run ``compare`` unless the file was changed after the download, at ``since`` (seconds)."""
    stat = getattr(source, "stat", None)
    if stat is not None and stat.st_mtime - 1 > since:
        yield finding("not-checksummed", "it was changed after it was downloaded: nothing says what it held")
    else:
        yield from compare(source, anatomy)


FORMAT = make_format(
    "hf_download", lambda head: bool(_COMMIT.match(head)), _structure, distinct=False, loader=None
)
