"""A session in which every file has its place, also those whose names do not tell it."""

from __future__ import annotations

from ckpt_tools.cache.verdicts import Cache
from ckpt_tools.model.selection import ReadOptions
from ckpt_tools.reading.placing import place_parts
from ckpt_tools.reading.session import Session


def open_session(
    root: str, options: ReadOptions, *, cache: Cache | None = None, listing: bool = False
) -> Session:
    """What is below the root, and the way to its files. Raises CannotLook."""
    s = Session(root, options, cache=cache, listing=listing)
    s.parts = place_parts(s)
    return s
