"""Checkpoints that keep each array in a directory of its own, as zarr, with little that lists them."""

from __future__ import annotations

from collections import Counter

from ckpt_tools.layouts.common.layout import Flaws, Found, Rows, Saves, loss, whole
from ckpt_tools.layouts.common.lost_files import lost
from ckpt_tools.layouts.common.piece import Piece
from ckpt_tools.model.checkpoint import Checkpoint

ROLE = "array"
LIST = "list"
"""The role of files that list the arrays, where there are such."""


def is_array(piece: Piece) -> bool:
    """Return True if a piece describes an array, whose chunks are files beside it."""
    return "zarr" in piece.formats


def fewer_than_listed(parts: Rows) -> Found:
    """Fewer arrays than a checkpoint's index says that it was saved with: its loader opens each of them."""
    beside = Counter(p.home for p, _ in parts if p.role == ROLE)
    for part, report in parts:
        said = whole(report.metadata.get("stored_arrays")) or 0
        if part.role == "index" and beside[part.home] < said:
            gone = said - beside[part.home]
            yield (
                part.path,
                loss(f"{gone} of the {said} arrays that it says were saved with it are not there"),
            )


def lost_arrays(c: Checkpoint, beside: Saves) -> Flaws:
    """Arrays, and lists of them, that all the saves ``beside`` it have."""

    def names(o: Checkpoint) -> frozenset[str]:
        told = (p.path for p in o.parts if p.role == LIST or p.name == ".zarray")
        return frozenset(path.removeprefix(f"{o.path}/") for path in told)

    for path in lost(c, beside, names):
        name = path.removesuffix("/.zarray")
        what = path if name == path else f"array {name!r}"
        yield loss(f"there is no {what}, which the run's other checkpoints have", c.path)
