"""What names are compared with: of each layout its directories, and in each its pieces, in their order."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import groupby
from typing import NamedTuple

from ckpt_tools.layouts.common.layout import Layout, Piece
from ckpt_tools.layouts.common.places import PieceName, PieceNames


class LayoutNames(NamedTuple):
    """What one layout says about names; ``notes`` are its tracker and its records."""

    name: str
    directories: tuple[PieceNames, ...]
    notes: tuple[str, ...]
    stateless: tuple[str, ...]
    unneeded: tuple[tuple[str, str], ...]

    @property
    def pieces(self) -> tuple[PieceName, ...]:
        return tuple(piece for directory in self.directories for piece in directory.pieces)


def names_of(layout: Layout) -> LayoutNames:
    return LayoutNames(
        layout.name,
        tuple(
            PieceNames(layout.name, directory, partial(map, partial(_named, layout.name), list(pieces)))
            for directory, pieces in groupby(layout.pieces, _directory_of)
        ),
        tuple(name for name in (layout.tracker, *_other_trackers(layout), *layout.records) if name),
        layout.stateless,
        layout.unneeded,
    )


def _directory_of(piece: Piece) -> str:
    return piece.template.rpartition("/")[0]


def _named(layout: str, piece: Piece) -> PieceName:
    return PieceName(layout, piece.name, piece.template, piece.weak, piece.described)


def _other_trackers(layout: Layout) -> Iterator[str]:
    return (path.rpartition("/")[2] for path, _ in layout.other_trackers)
