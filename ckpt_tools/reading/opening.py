"""A session in which every file has its place: those whose names do not tell it are settled by their
structure first.
"""

from __future__ import annotations

from ckpt_tools.cache.verdicts import Cache
from ckpt_tools.discovery import group as grouping
from ckpt_tools.model.selection import ReadOptions
from ckpt_tools.reading.ambiguous_names import settle_ambiguous_names
from ckpt_tools.reading.companions import settle_companions
from ckpt_tools.reading.exports import settle_exports
from ckpt_tools.reading.session import Session


def open_session(
    root: str, options: ReadOptions, *, cache: Cache | None = None, listing: bool = False
) -> Session:
    """What is below the root, and the way to its files. Raises CannotLook."""
    s = Session(root, options, cache=cache, listing=listing)
    settle_ambiguous_names(s)
    settle_companions(s)
    settle_exports(s)
    s.parts = grouping.with_content_steps(s.found.parts, s.reports, s.layouts)
    return s
