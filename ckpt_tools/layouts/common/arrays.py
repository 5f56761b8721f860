"""Checkpoints that keep each array in a directory of its own, as zarr, with little that lists them."""

from __future__ import annotations

from collections import Counter

from ckpt_tools.layouts.common.layout import Flaws, Found, Rows, Saves, loss, whole
from ckpt_tools.layouts.common.lost_files import lost
from ckpt_tools.layouts.common.piece import Piece
from ckpt_tools.model.checkpoint import Checkpoint


def is_array(piece: Piece) -> bool:
    """Return True if a piece describes an array, whose chunks are files beside it."""
    return "zarr" in piece.formats


def fewer_than_listed(parts: Rows) -> Found:
    """Fewer arrays than a checkpoint's index says that it was saved with: its loader opens each of them."""
    beside = Counter(p.home for p, _ in parts if p.role == "array")
    for part, report in parts:
        said = whole(report.metadata.get("stored_arrays")) or 0
        if part.role == "index" and beside[part.home] < said:
            gone = said - beside[part.home]
            text = f"{gone} of the {said} arrays that it says were saved with it are not there"
            yield part.path, loss(text)


def lost_arrays(c: Checkpoint, beside: Saves) -> Flaws:
    """Arrays, and lists of them, that all the saves ``beside`` it have."""

    def names(o: Checkpoint) -> frozenset[str]:
        told = (p for p in o.parts if p.role == "list" or p.name == ".zarray")
        return frozenset(p.path.removeprefix(f"{o.path}/") for p in told)

    for path in lost(c, beside, names):
        name = path.removesuffix("/.zarray")
        what = path if name == path else f"array {name!r}"
        yield loss(f"there is no {what}, which the run's other checkpoints have", c.path)
