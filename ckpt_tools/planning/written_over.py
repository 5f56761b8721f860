"""Saves of one place whose directories are called by words alone (``exp1/``, ``vit/``)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from shlex import quote

from ckpt_tools.crosscheck.trackers import declared
from ckpt_tools.errors import UsageError
from ckpt_tools.layouts.common.bare_names import read_bare_name
from ckpt_tools.layouts.common.names_apart import are_of_several, of_folds
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.part import Kind
from ckpt_tools.reading.session import Session

_MOST_SHOWN = 8
_TOGETHER_NS = 600 * 1_000_000_000
"""Parts that are saved one by one, each into a directory, are all there by then."""


def require_one(root: str, s: Session, saves: Sequence[Checkpoint]) -> None:
    """Raises UsageError where several runs write over one save each, and no tracker names one of them."""
    found = by_several([c for c in saves if c.kind is Kind.PERIODIC and c.parts[0].home])
    if found and not any(declared(s, c) for c in found):
        more = ", …" if len(found) > _MOST_SHOWN else ""
        names = ", ".join(os.path.basename(c.path) for c in found[:_MOST_SHOWN])
        text = f"{root} holds saves of several names, each written over: {names}{more}"
        raise UsageError(text, f"give the one that is meant as ROOT, such as {quote(found[0].path)}")


def by_several(saves: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Those that runs of their own write over, the newest first; none where they may be of one run."""
    named = [(c, read_bare_name(os.path.basename(c.path))) for c in saves]
    rolling = [(c, name.words) for c, name in named if name.words and not name.numbered]
    times = [c.mtime_ns for c, _ in rolling]
    if len(times) < 2 or max(times) - min(times) < _TOGETHER_NS:
        return []
    words = {said for _, said in rolling}
    apart = words if are_of_several(words) else of_folds(words)
    return sorted((c for c, said in rolling if said in apart), key=lambda c: -c.mtime_ns)
