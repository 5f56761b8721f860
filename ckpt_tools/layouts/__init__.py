"""Layouts: how each framework arranges its checkpoints. LAYOUTS are the built-in ones, most specific first;
``Layouts`` are all layouts of one question: the user's own, then those of plug-ins, then the built-in ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache, cached_property
from importlib import import_module

from msgspec import Struct

from ckpt_tools.layouts.common.counters import as_int
from ckpt_tools.layouts.common.layout import Compared, Layout, Purpose
from ckpt_tools.layouts.common.piece import Changes, Claim, Piece, Stage, Where
from ckpt_tools.layouts.common.places import NameFields, Place, Places, Templates
from ckpt_tools.layouts.common.templates import COORDS, compile_template
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.part import Part
from ckpt_tools.model.selection import ReadOptions, Selection
from ckpt_tools.settings import plugins

ORDER = (
    "mindspore.MINDIO_TTP",
    "mindspore.MINDFORMERS",
    "megatron.NEMO_RL",  # before the layouts of what lies inside it
    "megatron.NEMO",
    "deepspeed.OPENRLHF",
    "megatron.MS_SWIFT",  # before Megatron-core, whose directories it has
    "megatron.MEGATRON",
    "megatron.MEGATRON_CORE",
    "megatron.SKYRL",  # before verl, whose names it shares
    "megatron.VERL",
    "megatron.COLOSSALAI",
    "megatron.NANOTRON",
    "objects.LEROBOT",
    "dcp.OLMO_CORE",
    "dcp.COSMOS",
    "dcp.DCP_SET",  # before those whose names its companions share
    "trainers.HF_TRAINER",  # before the layouts of what may lie inside it
    "trainers.ACCELERATE",
    "trainers.LIGHTNING",
    "deepspeed.DEEPSPEED_UNIVERSAL",
    "deepspeed.DEEPSPEED",
    "rank_files.DLROVER",
    "rank_files.NVRX_LOCAL",
    "torch_files.PYTORCH_SAMPLE",
    "torch_files.COMPOSER",
    "torch_files.BASICSR",
    "rank_files.NANOCHAT",
    "torch_files.TIMM",
    "torch_files.FAIRSEQ",
    "megatron.FAIRSEQ2",
    "torch_files.MMENGINE",
    "torch_files.DETECTRON2",
    "torch_files.STABLE_BASELINES3",
    "dcp.PADDLE_DIST",
    "dcp.TORCHSNAPSHOT",
    "dcp.DCP",
    "models.DCP_HF",
    "jax.T5X",
    "jax.LEVANTER",
    "jax.AXLEARN",
    "jax.BIG_VISION",
    "jax.ORBAX",
    "jax.FLAX",
    "jax.EASYLM",
    "tensorflow.TENSORFLOW",
    "tensorflow.KERAS_SHARDS",
    "tensorflow.KERAS_BACKUP",
    "tensorflow.KERAS",
    "models.GGUF",
    "models.ONNX",
    "models.SAVED_MODEL",
    "objects.TORCHTUNE",
    "objects.SPEECHBRAIN",
    "objects.ELEMENTS",
    "torch_files.ESPNET",
    "models.SHARDED_SAFETENSORS",
    "rank_files.TORCH_CHECKPOINTING",
    "rank_files.RANK_FILES",  # names that training loops of one's own give
    "rank_files.RAY",
    "mindspore.MINDSPORE",  # its flat and callable names match almost any .ckpt
    "files.FILES",
)
"""The built-in layouts in the order in which they are tried, most specific first: FILE.NAME is the variable
NAME (LAYOUT if no name follows) of a file in this folder.
"""

LAYOUTS: tuple[Layout, ...]
"""All built-in layouts."""


def __getattr__(name: str) -> tuple[Layout, ...]:
    if name != "LAYOUTS":
        raise AttributeError(name)
    return tuple(_load_built_in().values())


@cache
def _load_built_in() -> dict[str, Layout]:
    """Return each built-in layout by its name, in the order of ORDER."""
    entries = (entry.partition(".") for entry in ORDER)
    layouts = (getattr(import_module(f"{__name__}.{file}"), name or "LAYOUT") for file, _, name in entries)
    return {layout.name: layout for layout in layouts}


@cache
def _load_plugins() -> dict[str, Layout]:
    """Return the layouts of installed packages (plug-ins) by name, except those with a wrong template."""
    layouts = dict[str, Layout]()
    for name, plugin in plugins.list_added("layouts", _load_built_in()).items():
        try:
            for piece in plugin.value.pieces:
                for part in piece.template.split("/"):
                    re.compile(compile_template(part))
            layouts[name] = plugin.value
        except (ValueError, OverflowError, re.error, TypeError, AttributeError) as e:
            plugins.reject("layouts", plugin.name, f"one of its templates is wrong: {e}")
    return layouts


class Layouts(Struct, frozen=True, dict=True):
    """All layouts of one question, in the order in which templates are tried: the user's ``own`` first."""

    own: tuple[Layout, ...] = ()

    @cached_property
    def in_order(self) -> tuple[Layout, ...]:
        return (*self.own, *_load_plugins().values(), *_load_built_in().values())

    @cached_property
    def _by_name(self) -> dict[str, Layout]:
        return {layout.name: layout for layout in reversed(self.in_order)}

    def __iter__(self) -> Iterator[Layout]:
        return iter(self.in_order)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> Layout:
        """Return the layout of that name. Raise KeyError for an unknown name."""
        return self._by_name[name]

    def get(self, name: object) -> Layout | None:
        return self._by_name.get(name) if isinstance(name, str) else None

    def of(self, item: Part | Checkpoint) -> Layout:
        """Return the layout that a part or a checkpoint was recognised by."""
        return self._by_name[item.layout]

    def piece_of(self, part: Part) -> Piece:
        """Return the piece of its layout, that is the kind of file, that a part was recognised as."""
        return self._by_name[part.layout].piece(part.piece)

    def templates(self, listing: bool = False) -> Templates:
        """Return the templates of pieces by directory; of pieces with Claim.DESCRIBED only for a listing."""
        made = self._templates  # once: two threads may make it at the same time
        if listing not in made:
            made[listing] = Templates(self.in_order, listing=listing)
        return made[listing]

    @cached_property
    def _templates(self) -> dict[bool, Templates]:
        """The templates made so far, by whether they are for a listing."""
        return {}

    @cached_property
    def note_names(self) -> frozenset[str]:
        """The file names of trackers, and of other notes (``Records``) about the checkpoints beside them."""
        trackers = {path.rpartition("/")[2] for one in self.in_order for path, _ in one.tracker.others}
        notes = {name for one in self.in_order for name in (one.tracker.file, *one.records.names) if name}
        return frozenset(trackers | notes)

    @cached_property
    def stateless(self) -> tuple[str, ...]:
        """Endings of the names of files that hold no state."""
        return tuple(ending for layout in self.in_order for ending in layout.beside.stateless)

    def trace(self, path: str) -> Layout | None:
        """Return the layout whose framework alone writes to paths like this one; None if there is none."""
        traces = ((layout, pattern) for layout in self.in_order for pattern in layout.beside.traces)
        return next((layout for layout, pattern in traces if re.search(pattern, path)), None)

    @cached_property
    def unneeded(self) -> tuple[tuple[str, str], ...]:
        """Pairs (ending, start): NAME+ending holds no state if a file beside it begins with NAME+start."""
        return tuple(pair for layout in self.in_order for pair in layout.beside.unneeded)

    @cached_property
    def unneeded_endings(self) -> tuple[str, ...]:
        return tuple(ending for ending, _ in self.unneeded)


BUILT_IN = Layouts()
"""The layouts that need no configuration: ckpt's own, and those of installed packages."""
_active = BUILT_IN


def _forget_plugins() -> None:
    """Drop the cached plug-ins, and all tables made from them, so that plug-ins are looked for anew."""
    _load_plugins.cache_clear()
    for layouts in (BUILT_IN, _active):
        for cached in [key for key in vars(layouts) if key != "own"]:
            del vars(layouts)[cached]


plugins.register_cache(_forget_plugins)


def package_of(name: str) -> str | None:
    """Return the package whose plug-in adds the layout of this name; None for any other layout."""
    plugin = plugins.list_added("layouts").get(name)
    return str(plugin.package) if plugin else None


def use(own: Iterable[Layout]) -> None:
    """Try the user's own layouts first, for the rest of this process, in place of those of earlier calls."""
    global _active  # noqa: PLW0603  # one process has one configuration
    _active = Layouts(tuple(own))


def get_active() -> Layouts:
    """Return all layouts in the order in which their templates are tried."""
    return _active


def layouts_of(options: Selection | ReadOptions) -> Layouts:
    """Return the layouts that these options name; without any the active ones."""
    return options.layouts or get_active()


__all__ = [
    "BUILT_IN",
    "COORDS",
    "LAYOUTS",
    "Changes",
    "Claim",
    "Compared",
    "Layout",
    "Layouts",
    "NameFields",
    "Piece",
    "Place",
    "Places",
    "Purpose",
    "Stage",
    "Where",
    "as_int",
    "get_active",
    "layouts_of",
    "package_of",
    "use",
]
