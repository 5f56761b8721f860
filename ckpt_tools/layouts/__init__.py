"""How a directory is arranged: LAYOUTS in the order in which their templates are tried, most specific first, then those of the user (``use``)."""

from __future__ import annotations

from collections.abc import Iterable

from ckpt_tools.layouts import (
    accelerate,
    dcp,
    dcp_hf,
    deepspeed,
    deepspeed_universal,
    dlrover,
    files,
    hf_trainer,
    keras,
    lightning,
    megatron,
    megatron_core,
    mindio_ttp,
    mindspore,
    nvrx_local,
    orbax,
    pytorch_sample,
    safetensors_set,
    tensorflow,
)
from ckpt_tools.layouts.common.layout import COORDS, Layout, Piece, whole
from ckpt_tools.layouts.common.places import Place, Places, Told, places, read_name

LAYOUTS: tuple[Layout, ...] = (
    mindio_ttp.LAYOUT,
    megatron.LAYOUT,
    megatron_core.LAYOUT,
    hf_trainer.LAYOUT,  # before the layouts of what may lie inside it
    deepspeed_universal.LAYOUT,
    deepspeed.LAYOUT,
    accelerate.LAYOUT,
    dlrover.LAYOUT,
    nvrx_local.LAYOUT,
    pytorch_sample.LAYOUT,
    lightning.LAYOUT,
    dcp.LAYOUT,
    dcp_hf.LAYOUT,
    orbax.LAYOUT,
    tensorflow.LAYOUT,
    keras.LAYOUT,
    safetensors_set.LAYOUT,
    mindspore.LAYOUT,  # its flat and callable names match almost any .ckpt
    files.LAYOUT,
)
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
