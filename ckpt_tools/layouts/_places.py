"""Which pieces are at home in one directory: its path is matched once, so that each file in it costs one look at its name."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt_tools.layouts._base import COORDS, Layout, Piece

FIELDS = ("rank", "prefix", "generation", "step", "epoch", "step_in_epoch", "tmp")
"""What ``Place.at`` locates among the groups of a matched name."""


class Place:
    """A piece at home in one directory: what the directory's path alone tells about every file of that piece in it."""

    __slots__ = ("at", "axes", "base", "coords", "epoch", "file", "home", "inside", "layout", "piece", "prefix", "rank", "step", "suffix", "tmp")

    def __init__(self, layout: Layout, piece: Piece, fields: dict[str, str | None], base: str, home: str) -> None:
        self.layout, self.piece, self.base, self.home = layout, piece, base, home
        self.suffix, self.file = piece.suffix, piece.file
        self.step, self.epoch, self.inside, self.rank = (int(v) if (v := fields.get(k)) else None for k in ("step", "epoch", "step_in_epoch", "rank"))
        self.prefix, self.tmp = fields.get("prefix") or "", bool(fields.get("tmp"))
        self.coords = tuple((k, int(v)) for k, v in fields.items() if k in COORDS and v)
        index = {k: i - 1 for k, i in piece.file.groupindex.items()}
        self.axes = tuple((k, i) for k, i in index.items() if k in COORDS)
        self.at = tuple(index.get(k, -1) for k in FIELDS)  # -1 is the None that _directory puts behind a match's groups


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
