"""How a directory is arranged: LAYOUTS in the order in which their templates are tried, most specific first, then those of the user (``use``)."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from ckpt_tools.layouts.common.layout import COORDS, Layout, Piece, whole
from ckpt_tools.layouts.common.places import Place, Places, Told, places, read_name

_ORDER = (
    "mindio_ttp",
    "megatron",
    "megatron_core",
    "hf_trainer",  # before the layouts of what may lie inside it
    "deepspeed_universal",
    "deepspeed",
    "accelerate",
    "dlrover",
    "nvrx_local",
    "pytorch_sample",
    "lightning",
    "dcp",
    "dcp_hf",
    "orbax",
    "tensorflow",
    "keras",
    "safetensors_set",
    "mindspore",  # its flat and callable names match almost any .ckpt
    "files",
)
"""The files of this folder that are a layout, most specific first."""

LAYOUTS: tuple[Layout, ...] = tuple(import_module(f"ckpt_tools.layouts.{name}").LAYOUT for name in _ORDER)
BY_NAME = {layout.name: layout for layout in LAYOUTS}
_active = LAYOUTS


def use(own: Iterable[Layout]) -> None:
    """Try the user's own layouts before those of ckpt, for the rest of this process; those of an earlier call are dropped."""
    global _active  # noqa: PLW0603  # one process has one configuration
    own = tuple(own)
    BY_NAME.clear()
    BY_NAME.update({layout.name: layout for layout in (*LAYOUTS, *own)})
    _active = (*own, *LAYOUTS)


def active() -> tuple[Layout, ...]:
    """All layouts in the order in which their templates are tried."""
    return _active


def places_of(path: str, listing: bool = False) -> Places:
    """The pieces of all layouts that are at home in the directory ``path``; for a ``listing`` also those that an index describes."""
    return places(path, _active, listing)


__all__ = [
    "BY_NAME",
    "COORDS",
    "LAYOUTS",
    "Layout",
    "Piece",
    "Place",
    "Places",
    "Told",
    "active",
    "places_of",
    "read_name",
    "use",
    "whole",
]
