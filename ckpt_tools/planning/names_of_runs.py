"""Saves of one place whose directories, or files of any name, are called by words of their own: those of runs
that write over one save each (``exp1/``, ``vit/``), or count (``vit_step_50/``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from ckpt_tools.crosscheck.trackers import declared
from ckpt_tools.errors import UsageError
from ckpt_tools.layouts.common.bare_names import read_bare_name
from ckpt_tools.layouts.common.names_apart import APART_NS, Words, are_of_several, of_folds
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.part import Kind
from ckpt_tools.reading.session import Session

_MOST_SHOWN = 8
_DRAWN = re.compile(r"\d|^[a-f]+$")
"""In a word that is drawn anew for each save, such as a hash, and in none that somebody calls a run."""


def require_one(root: str, s: Session, saves: Sequence[Checkpoint]) -> None:
    """Raises UsageError where saves are of several runs, and no tracker names one of them."""
    named = [c for c in saves if c.parts[0].home or s.layouts.piece_of(c.parts[0]).of_any_name]
    found = by_several([c for c in named if c.kind is Kind.PERIODIC])
    if found and not any(declared(s, c) for c in found):
        more = ", …" if len(found) > _MOST_SHOWN else ""
        names = ", ".join(os.path.basename(c.path) for c in found[:_MOST_SHOWN])
        text = f"{root} holds saves under several names, which may be of several runs: {names}{more}"
        hint = "give the one that is meant as ROOT, or leave out the others with --exclude GLOB"
        if not found[0].parts[0].home:
            hint += "; if they are the parts of one save, describe it in ckpt.toml: docs/adding-a-layout.md"
        raise UsageError(text, hint)


def by_several(saves: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Those that are of runs of their own, the newest first; none where they may be of one run."""
    said = [(c, read_bare_name(os.path.basename(c.path))) for c in saves]
    drawn = _are_drawn([name.words for _, name in said if name.numbered])
    named = [(c, name.words) for c, name in said if name.words and not (name.numbered and drawn)]
    if len(named) < 2 or _are_of_one_save([c for c, _ in named]):
        return []
    words = {own for _, own in named}
    apart = words if are_of_several(words) else of_folds(words)
    return sorted((c for c, own in named if own in apart), key=lambda c: -c.mtime_ns)


def _are_drawn(numbered: Sequence[Words]) -> bool:
    """Whether the words beside numbers are such as are drawn anew for each save."""
    return len(set(numbered)) == len(numbered) and all(map(_DRAWN.search, map("".join, numbered)))


def _are_of_one_save(saves: Sequence[Checkpoint]) -> bool:
    """Whether directories were written together, as the parts of one save are. Of files only one is loaded,
    however close together they were written.
    """
    times = [c.mtime_ns for c in saves]
    return saves[0].parts[0].home != "" and max(times) - min(times) < APART_NS
