"""How a directory is arranged: LAYOUTS in the order in which their templates are tried, most specific first."""

from __future__ import annotations

from ckpt_tools.layouts import megatron, mindio_ttp, mindspore, pytorch_sample
from ckpt_tools.layouts._base import COORDS, Layout, Piece, whole

LAYOUTS: tuple[Layout, ...] = (
    mindio_ttp.LAYOUT,
    megatron.LAYOUT,
    pytorch_sample.LAYOUT,
    mindspore.LAYOUT,  # its flat and callable names match almost any .ckpt, so it comes last
)
BY_NAME = {layout.name: layout for layout in LAYOUTS}

__all__ = ["BY_NAME", "COORDS", "LAYOUTS", "Layout", "Piece", "whole"]
