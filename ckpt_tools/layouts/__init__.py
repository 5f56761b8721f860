"""How a directory is arranged: LAYOUTS in the order in which their templates are tried, most specific first;
``Layouts`` are those of one question, the user's own before them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from importlib import import_module

from ckpt_tools.layouts.common.layout import COORDS, Layout, Piece, whole
from ckpt_tools.layouts.common.places import NameFields, Place, Places, Templates, read_name, templates_of
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.frozen import frozen
from ckpt_tools.model.part import Part
from ckpt_tools.model.selection import ReadOptions, Selection

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


@frozen
class Layouts:
    """The layouts of one question, in the order in which their templates are tried: the user's own first."""

    own: tuple[Layout, ...] = ()

    @cached_property
    def in_order(self) -> tuple[Layout, ...]:
        return (*self.own, *LAYOUTS)

    @cached_property
    def _by_name(self) -> dict[str, Layout]:
        return {layout.name: layout for layout in self.in_order}

    def __iter__(self) -> Iterator[Layout]:
        return iter(self.in_order)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> Layout:
        """The layout of that name. Raises KeyError."""
        return self._by_name[name]

    def get(self, name: object) -> Layout | None:
        return self._by_name.get(name) if isinstance(name, str) else None

    def of(self, one: Part | Checkpoint) -> Layout:
        """The layout that a part or a checkpoint was recognised by."""
        return self._by_name[one.layout]

    def piece_of(self, part: Part) -> Piece:
        """The piece of its layout that a part is."""
        return self._by_name[part.layout].piece(part.piece)

    def templates(self, listing: bool = False) -> Templates:
        """The templates of all, by directory; for a ``listing`` also those of what an index describes."""
        return templates_of(self.in_order, listing)

    @cached_property
    def note_names(self) -> frozenset[str]:
        """The names of trackers, and of other notes about the checkpoints beside them."""
        return frozenset(name for one in self.in_order for name in (one.tracker, *one.records) if name)

    @cached_property
    def stateless(self) -> tuple[str, ...]:
        """How the names of files end that hold no state."""
        return tuple(ending for one in self.in_order for ending in one.stateless)

    @cached_property
    def unneeded(self) -> tuple[tuple[str, str], ...]:
        """(ending, ending of the file beside it) of files that hold no state where that one is there."""
        return tuple(pair for one in self.in_order for pair in one.unneeded)

    @cached_property
    def unneeded_endings(self) -> tuple[str, ...]:
        return tuple(ending for ending, _ in self.unneeded)


BUILT_IN = Layouts()
BY_NAME = {layout.name: layout for layout in LAYOUTS}
_active = BUILT_IN


def use(own: Iterable[Layout]) -> None:
    """Try the user's own layouts before those of ckpt, for the rest of this process; those of an earlier call
    are dropped.
    """
    global _active  # noqa: PLW0603  # one process has one configuration
    _active = Layouts(tuple(own))
    BY_NAME.clear()
    BY_NAME.update({layout.name: layout for layout in _active})


def active() -> Layouts:
    """All layouts in the order in which their templates are tried."""
    return _active


def layouts_of(options: Selection | ReadOptions) -> Layouts:
    """Those that a question is asked with."""
    return options.layouts or active()


def places_of(path: str, listing: bool = False) -> Places:
    """The pieces of all layouts that are at home in the directory ``path``; for a ``listing`` also those that
    an index describes.
    """
    return _active.templates(listing).places(path)


__all__ = [
    "BUILT_IN",
    "BY_NAME",
    "COORDS",
    "LAYOUTS",
    "Layout",
    "Layouts",
    "NameFields",
    "Piece",
    "Place",
    "Places",
    "active",
    "layouts_of",
    "places_of",
    "read_name",
    "use",
    "whole",
]
