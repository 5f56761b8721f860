"""What each template of a layout matches below a root, and which paths miss it narrowly."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from ckpt_tools.discovery.walk import discover
from ckpt_tools.errors import CannotLook
from ckpt_tools.layouts import Layout
from ckpt_tools.layouts.common.near_miss import Miss, near_miss
from ckpt_tools.storage.retry import ABSENT, is_directory
from ckpt_tools.storage.walk import walk

_SHOWN = 5


@dataclass
class Checked:
    """One template: how many files it matched, one of them, and paths that miss it narrowly (the nearest first)."""

    layout: str
    piece: str
    template: str
    matched: int = 0
    example: str = ""
    misses: list[Miss] = field(default_factory=list)


class _Entries(list["os.DirEntry[str]"]):
    """The entries of a directory; only their names count."""

    def to_stat(self) -> tuple[()]:
        return ()


def check_layouts(root: str, layouts: Sequence[Layout]) -> list[Checked]:
    """Try the templates of ``layouts`` on everything below ``root``. Raises CannotLook when it cannot be listed."""
    root = os.path.abspath(root)
    out = {
        (layout.name, piece.name): Checked(layout.name, piece.name, piece.template)
        for layout in layouts
        for piece in layout.pieces
    }
    found = discover(root)
    taken = set()
    for part in found.parts:
        if entry := out.get((part.layout, part.piece)):
            taken.add(part.path)
            entry.matched += 1
            entry.example = entry.example or os.path.relpath(part.path, root)
    for at, entries in walk(root, lambda _, entries: _Entries(entries)):
        if isinstance(entries, OSError):
            if isinstance(entries, ABSENT):
                continue  # a file after all, or gone meanwhile
            raise CannotLook(f"cannot list {at}: {entries.strerror}") from entries
        for e in entries:
            if e.path in taken or is_directory(e):
                continue
            path = os.path.relpath(e.path, root)
            misses = {
                (one.name, piece.name): miss
                for one in layouts
                for piece in one.pieces
                if (miss := near_miss(piece, path))
            }
            nearest = max(
                (len(miss.fits) for miss in misses.values()), default=0
            )  # a directory alone fits the templates of its other files as well
            for key, miss in misses.items():
                if len(miss.fits) == nearest:
                    rows = out[key].misses
                    rows.append(miss)
                    rows.sort(key=lambda m: -len(m.fits))
                    del rows[_SHOWN:]
    return list(out.values())
