"""How a directory is arranged: LAYOUTS in the order in which their templates are tried, most specific first."""

from __future__ import annotations

from ckpt_tools.layouts import megatron, mindio_ttp, mindspore, pytorch_sample
from ckpt_tools.layouts._base import COORDS, Layout, Piece, whole
from ckpt_tools.layouts._places import Place, Told, places, read_name

LAYOUTS: tuple[Layout, ...] = (
    mindio_ttp.LAYOUT,
    megatron.LAYOUT,
    pytorch_sample.LAYOUT,
    mindspore.LAYOUT,  # its flat and callable names match almost any .ckpt, so it comes last
)
BY_NAME = {layout.name: layout for layout in LAYOUTS}


def places_of(path: str) -> list[Place]:
    """The pieces of all layouts that are at home in the directory ``path``."""
    return places(path, LAYOUTS)


__all__ = ["BY_NAME", "COORDS", "LAYOUTS", "Layout", "Piece", "Place", "Told", "places_of", "read_name", "whole"]
