"""What the path of a file alone says about it: that it is an index, or what its digest is."""

from __future__ import annotations

import os

from ckpt_tools import formats
from ckpt_tools.formats import Claim, format_of
from ckpt_tools.formats.seals.names import is_seal
from ckpt_tools.model.report import Level
from ckpt_tools.storage.retry import patiently
from ckpt_tools.storage.urls import is_url


def claims_by_path(path: str) -> tuple[Claim, ...]:
    """One claim, or none for nearly every path. A link that cannot be read says nothing."""
    if is_seal(path):  # whatever its first bytes are by now
        return (Claim("seal", format_of("seal").checks[Level.STRUCTURE], whole=True),)
    if placed := formats.names.placed(path):
        return (Claim(placed.format, format_of(placed.format).checks[Level.STRUCTURE], whole=True),)
    if not formats.names.addressed(path):
        return ()
    from ckpt_tools.formats.manifests.hf_cache import claims_on  # only in such a cache

    try:
        target = path if is_url(path) else patiently(os.readlink, path)
    except OSError:
        target = path
    return claims_on(path, target)
