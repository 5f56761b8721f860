"""Which pieces are at home in one directory: its path is matched once, so that each file in it costs one look at its name."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt_tools.layouts._base import COORDS, Layout, Piece

Told = tuple[int, int | None, str, int | None, int | None, int | None, int | None, bool, tuple[tuple[str, int], ...]]
"""What a file's name tells: index of the place, rank, prefix, generation, step, epoch, step_in_epoch, unfinished, other coordinates."""


class Place:
    """A piece at home in one directory: what the directory's path alone tells about every file of that piece in it."""

    __slots__ = ("base", "coords", "epoch", "home", "inside", "layout", "piece", "prefix", "rank", "step", "tmp")

    def __init__(self, layout: Layout, piece: Piece, fields: dict[str, str | None], base: str, home: str) -> None:
        self.layout, self.piece, self.base, self.home = layout, piece, base, home
        self.step, self.epoch, self.inside, self.rank = (int(v) if (v := fields.get(k)) else None for k in ("step", "epoch", "step_in_epoch", "rank"))
        self.prefix, self.tmp = fields.get("prefix") or "", bool(fields.get("tmp"))
        self.coords = tuple((k, int(v)) for k, v in fields.items() if k in COORDS and v)


def read_name(name: str, at: Sequence[Place]) -> Told | None:
    """The first place that a file's name fits, and what the name alone tells. Rank directories repeat names, so callers keep the answers."""
    for i, place in enumerate(at):
        piece = place.piece
        if name.endswith(piece.suffix) and (m := piece.file.fullmatch(name)):
            g = m.groupdict()
            rank, generation, step, epoch, inside = (
                int(v) if (v := g.get(k)) else None for k in ("rank", "generation", "step", "epoch", "step_in_epoch")
            )
            if generation is None and "generation" in g:
                generation = 0
            coords = tuple((k, int(v)) for k, v in g.items() if k in COORDS and v)
            return i, rank, "" if piece.weak else g.get("prefix") or place.prefix, generation, step, epoch, inside, bool(g.get("tmp")), coords
    return None


def places(path: str, layouts: Sequence[Layout]) -> list[Place]:
    """The pieces whose directory template matches the end of ``path``."""
    comps = path.split("/")
    out: list[Place] = []
    for layout in layouts:
        for piece in layout.pieces:
            if piece.depth == 0:
                out.append(Place(layout, piece, {}, path, ""))
            elif piece.depth < len(comps) and (m := piece.directory.fullmatch("/".join(comps[-piece.depth :]))):
                base = "/".join(comps[: -piece.depth])
                out.append(Place(layout, piece, m.groupdict(), base, f"{base}/{comps[-piece.depth]}" if piece.depth > 1 else ""))
    return out
