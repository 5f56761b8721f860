"""What each template of a layout matches below a root, and which paths it narrowly misses."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from msgspec import Struct, field

from ckpt_tools.discovery.walk import discover
from ckpt_tools.errors import CannotLook
from ckpt_tools.layouts import Layout, Layouts
from ckpt_tools.layouts.guess import Miss, near_miss
from ckpt_tools.storage.listing import Names, walk
from ckpt_tools.storage.retry import ABSENT, is_directory
from ckpt_tools.storage.urls import absolute

_SHOWN = 5


class Checked(Struct):
    """One template: how many files it matched, one of them, and the nearest paths that miss it narrowly."""

    layout: str
    piece: str
    template: str
    matched: int = 0
    example: str = ""
    misses: list[Miss] = field(default_factory=list)


def check_layouts(root: str, chosen: Sequence[Layout], layouts: Layouts) -> list[Checked]:
    """Try the templates of the ``chosen`` ones on everything below ``root``. Raises CannotLook."""
    root = absolute(root)
    pieces = [(layout.name, piece) for layout in chosen for piece in layout.pieces]
    out = {(name, piece.name): Checked(name, piece.name, piece.template) for name, piece in pieces}
    taken = set()
    for part in discover(root, layouts).parts:
        if entry := out.get((part.layout, part.piece)):
            taken.add(part.path)
            entry.matched += 1
            entry.example = entry.example or os.path.relpath(part.path, root)
    for path in _files(root):
        if path in taken:
            continue
        seen = os.path.relpath(path, root)
        misses = [(name, piece.name, near_miss(piece, seen)) for name, piece in pieces]
        nearest = max((len(miss.fits) for _, _, miss in misses if miss), default=0)
        for name, piece_name, miss in misses:
            # a directory alone fits the templates of its other files as well
            if miss and len(miss.fits) == nearest:
                entry = out[name, piece_name]
                entry.misses = sorted((*entry.misses, miss), key=lambda m: -len(m.fits))[:_SHOWN]
    return list(out.values())


def _files(root: str) -> Iterator[str]:
    """Everything below the root that is no directory."""
    for at, entries in walk(root, Names):
        if isinstance(entries, ABSENT):
            continue  # a file after all, or gone meanwhile
        if isinstance(entries, OSError):
            raise CannotLook(f"cannot list {at}: {entries.strerror}") from entries
        yield from (e.path for e in entries if not is_directory(e))
