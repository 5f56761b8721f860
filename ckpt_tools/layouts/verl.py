"""Layouts of the workers of reinforcement learning: verl's and SkyRL's."""

from __future__ import annotations

from collections import defaultdict
from functools import partial

from msgspec.structs import replace

from ckpt_tools.layouts import dcp
from ckpt_tools.layouts.common.counters import check_steps
from ckpt_tools.layouts.common.layout import Flaws, Saves, check_all, list_paths, loss
from ckpt_tools.layouts.common.lost_files import check_index, compare_names
from ckpt_tools.layouts.declared import declare
from ckpt_tools.layouts.megatron import TRACKER, check_metadata
from ckpt_tools.model.checkpoint import Checkpoint

_KINDS = ("model", "optim", "extra_state")
"""How the names of FSDP's files begin."""


def _find_lost_kinds(c: Checkpoint, beside: Saves) -> Flaws:
    """Yield kinds of files that a worker of a lone save has none of, as a warning: it may save none."""
    by_directory = defaultdict[str, set[str]](set)
    for name in list_paths(c) if not beside else ():
        directory, _, file = name.rpartition("/")
        kind, separator, _ = file.partition("_world_size_")
        if separator:
            by_directory[directory].add(kind)
    for directory, kinds in sorted(by_directory.items()):
        if gone := [kind for kind in _KINDS if kind not in kinds]:
            text = f"{directory or 'it'} has no {' and no '.join(gone)} file, and no other save can tell"
            yield loss(text, c.path, sure=False)


_DIST = "dist_ckpt"


def _find_lost_of_verl(c: Checkpoint, beside: Saves) -> Flaws:
    """Yield the files that Megatron-core writes last into its directories, in asynchronous saves after
    ``data.pt``; and files that the saves ``beside`` it have: places of ranks in the data, and states'
    directories.
    """
    files = list_paths(c)
    for home in sorted({name.rpartition("/")[0] for name in files if f"{_DIST}/" in name}):
        last = ".metadata", "metadata.json"
        for name in last if f"{home}/common.pt" in files else last[:1]:
            if f"{home}/{name}" not in files:
                text = f"there is no {home}/{name}, which is written last: without it nothing there is loaded"
                yield loss(text, c.path)
    yield from check_index(c, beside)
    yield from _find_lost_kinds(c, beside)

    def list_needed(o: Checkpoint) -> frozenset[str]:
        return frozenset(
            n for n in list_paths(o) if n.startswith("data_") or n.endswith(f"{_DIST}/.metadata")
        )

    yield from compare_names(c, beside, list_needed)


VERL = declare(
    __name__,
    "verl",
    check=check_all(dcp.check_common, check_metadata),
    lost=_find_lost_of_verl,
    tracker=replace(TRACKER, always=False),
)


def _find_lost_of_skyrl(c: Checkpoint, beside: Saves) -> Flaws:
    """Yield files that Megatron-core needs to read others, written last, after ``trainer_state.pt``."""
    yield from _find_lost_kinds(c, beside)
    files = list_paths(c)
    ends = ("distcp", "/common.pt")
    for directory in sorted({name.rpartition("/")[0] for name in files if name.endswith(ends)}):
        for name in (".metadata", "metadata.json"):
            if f"{directory}/{name}" not in files:
                yield loss(f"there is no {directory}/{name}: it was never finished, or lost it", c.path)


SKYRL = declare(
    __name__,
    "skyrl",
    check=check_all(dcp.check_common, partial(check_steps, read="global_step", role="trainer")),
    lost=_find_lost_of_skyrl,
)
