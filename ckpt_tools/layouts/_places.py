"""Which pieces are at home in one directory: its path is matched once, so that each file in it costs one look at its name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from ckpt_tools.layouts._base import NUMBERS, Layout, Piece

Told = tuple[int, int | None, str, int | None, int | None, int | None, int | None, bool, tuple[tuple[str, int], ...]]
"""What a file's name tells: index of the place, rank, prefix, generation, step, epoch, step_in_epoch, unfinished, other coordinates."""

_PART = frozenset({"rank", "step", "epoch", "step_in_epoch", "generation"})
_COORDS = frozenset(NUMBERS) - _PART


class Place:
    """A piece at home in one directory: what the directory's path alone tells about every file of that piece in it."""

    __slots__ = ("base", "coords", "epoch", "fields", "generation", "home", "inside", "layout", "piece", "prefix", "rank", "step", "sure", "tmp")

    def __init__(self, layout: Layout, piece: Piece, fields: dict[str, str | None], base: str, home: str) -> None:
        self.layout, self.piece, self.base, self.home = layout, piece, base, home
        self.sure = not (piece.weak or piece.companion or piece.described)
        self.tmp, self.prefix = piece.unfinished, ""
        self.coords: tuple[tuple[str, int], ...] = ()
        self.step: int | None = None
        self.epoch: int | None = None
        self.inside: int | None = None
        self.rank: int | None = None
        self.generation: int | None = None
        self.fields = fields

    def read(self) -> Place:
        """The place with what the directory's path tells, read once it has a file: most directories hold files of a few of the pieces that may be at home there."""
        fields, self.fields = self.fields, {}
        if not fields:
            return self
        self.step, self.epoch, self.inside, self.rank, self.generation = (
            int(v) if (v := fields.get(k)) else None for k in ("step", "epoch", "step_in_epoch", "rank", "generation")
        )
        self.prefix, self.tmp = fields.get("prefix") or fields.get("run") or "", self.tmp or bool(fields.get("tmp"))
        self.coords = tuple((k, int(v)) for k, v in fields.items() if k in _COORDS and v)
        return self


def read_name(name: str, at: Sequence[Place], after: int = -1) -> Told | None:
    """The first place behind ``after`` that a file's name fits, and what the name alone tells. Rank directories repeat names, so callers keep the answers."""
    for i, place in enumerate(at[after + 1 :], after + 1):
        piece = place.piece
        if name.endswith(piece.suffix) and (m := piece.file.fullmatch(name)):
            g = m.groupdict()
            rank, generation, step, epoch, inside = (
                int(v) if (v := g.get(k)) else None for k in ("rank", "generation", "step", "epoch", "step_in_epoch")
            )
            if generation is None and "generation" in g:
                generation = 0
            coords = tuple((k, int(v)) for k, v in g.items() if k in _COORDS and v)
            prefix = "" if piece.weak else g.get("prefix") or g.get("run") or ""
            return i, rank, prefix, generation, step, epoch, inside, bool(g.get("tmp")), coords
    return None


@lru_cache(8)
def _by_depth(
    layouts: tuple[Layout, ...], listing: bool
) -> tuple[list[tuple[Layout, Piece]], list[tuple[int, re.Pattern[str], list[tuple[int, Layout, Piece]]]]]:
    """Pieces that are at home anywhere, and per depth one expression that most directories fail, with the pieces that may be at home in the others."""
    flat: list[tuple[Layout, Piece]] = []
    deep: dict[int, list[tuple[int, Layout, Piece]]] = {}
    for order, (layout, piece) in enumerate((one, piece) for one in layouts for piece in one.pieces if listing or not piece.described):
        if piece.depth:
            deep.setdefault(piece.depth, []).append((order, layout, piece))
        else:
            flat.append((layout, piece))
    out = []
    for depth, pieces in sorted(deep.items()):
        homes: dict[str, list[tuple[int, Layout, Piece]]] = {}
        for entry in pieces:
            homes.setdefault(entry[2].directory.pattern, []).append(entry)
        out += [(depth, re.compile(pattern), entries) for pattern, entries in homes.items()]
    return flat, out


def places(path: str, layouts: tuple[Layout, ...], listing: bool = False) -> list[Place]:
    """The pieces whose directory template matches the end of ``path``, in the order of the layouts; those at home anywhere come last.

    Only for a ``listing`` the described ones are among them.
    """
    flat, deep = _by_depth(layouts, listing)
    comps, tails = path.split("/"), dict[int, str]()
    found: list[tuple[int, Place]] = []
    for depth, pattern, entries in deep:
        if depth >= len(comps):
            continue
        tail = tails.get(depth) or tails.setdefault(depth, "/".join(comps[-depth:]))
        if m := pattern.fullmatch(tail):
            base, fields = "/".join(comps[:-depth]), m.groupdict()
            for order, layout, piece in entries:
                home = "/".join(comps[: len(comps) - depth + piece.home]) if piece.home else path if piece.here else ""
                found.append((order, Place(layout, piece, fields, base, home)))
    found.sort(key=lambda row: row[0])
    out = [*(place for _, place in found), *(Place(layout, piece, {}, path, path if piece.here else "") for layout, piece in flat)]
    out.sort(key=lambda place: (place.piece.described, place.piece.weak))  # a name that says little is what is left when no other fits
    return out
