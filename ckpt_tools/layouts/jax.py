"""Trainers with JAX: Orbax, AXLearn, big_vision, Levanter, T5X, flax and EasyLM."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import partial

from ckpt_tools.layouts.common.layout import Flaws, Saves, Tracker, read_fitting
from ckpt_tools.layouts.common.lost_files import (
    check_array_count,
    compare_names,
    find_lost_arrays,
    list_paths,
    loss,
)
from ckpt_tools.layouts.declared import declare
from ckpt_tools.model import ranges
from ckpt_tools.model.checkpoint import Checkpoint

AXLEARN = declare("jax", "axlearn", check=check_array_count, lost=find_lost_arrays)
_SAVES = "checkpoint.bv-"


BIG_VISION = declare(
    "jax",
    "big-vision",
    tracker=Tracker(
        file=f"{_SAVES}LAST",
        read=partial(read_fitting, "[0-9]{9,18}(?:-tmp)?"),  # without _SAVES before it
        name=lambda c: c.path.rpartition("/")[2].removeprefix(_SAVES),
    ),
    lost=find_lost_arrays,
)


def _find_lost_of_levanter(c: Checkpoint, beside: Saves) -> Flaws:
    """Yield arrays of the saves ``beside`` it; of a lone save a missing model, or (a warning) optimizer."""
    yield from find_lost_arrays(c, beside)
    directories = {name.partition("/")[0] for name in list_paths(c)}
    if not beside and "model" not in directories:
        yield loss("there is no array in model/", c.path)
    elif not beside and directories.isdisjoint(("opt_state", "tx")):
        text = "there is no array in opt_state/, and no other save tells whether there was one"
        yield loss(text, c.path, sure=False)


LEVANTER = declare("jax", "levanter", lost=_find_lost_of_levanter)
T5X = declare("jax", "t5x", check=check_array_count, lost=find_lost_arrays)
FLAX = declare("jax", "flax")
EASYLM = declare("jax", "easylm")

_ITERATOR = re.compile(r"process_(\d{1,6})-of-(\d{1,6})\.json")
"""Files in which Grain keeps the place of each process in its data."""


def _find_lost_of_orbax(c: Checkpoint, beside: Saves) -> Flaws:
    """Yield lost files of items, and a missing commit_success.txt where a save is finished by it."""
    if c.path.startswith("gs://") and all(p.role != "commit" for p in c.parts):
        text = "there is no commit_success.txt, which is written last on Google Cloud Storage"
        yield loss(text, c.path)
    losses = list(_find_lost_trees(c))
    yield from losses
    if not losses:
        yield from compare_names(c, beside, lambda o: list_paths(o, "tree", "manifest", "json"))
        yield from _find_lost_processes(c, beside)
        text = "there is no {}, which the run's other checkpoints have: arrays are restored only where "
        text += "Orbax is told their shardings"
        yield from compare_names(c, beside, lambda o: list_paths(o, "sharding"), text, sure=False)


def _find_lost_trees(c: Checkpoint) -> Flaws:
    """Yield items without _METADATA, which lists their arrays, or manifest.ocdbt, which leads to them."""
    by_role = defaultdict[str, set[str]](set)
    for p in c.parts:
        by_role[p.role].add(p.folder.directory.rstrip("/"))
    undescribed = (by_role["manifest"] | by_role["sharding"]) - by_role["tree"]
    for directory in sorted(undescribed) if by_role["tree"] else ():
        yield loss("there is no _METADATA beside the other files of its tree", directory)
    files = {p.path for p in c.parts}
    parts = (p.path.rpartition("/ocdbt.process_") for p in c.parts if p.name == "manifest.ocdbt")
    # before 0.12 nothing but the files of processes tells of a lost manifest.ocdbt above them
    for directory in sorted({directory for directory, of_process, _ in parts if of_process}):
        if f"{directory}/manifest.ocdbt" not in files:
            yield loss("there is no manifest.ocdbt, which leads to what each process wrote", directory)


def _find_lost_processes(c: Checkpoint, beside: Saves) -> Flaws:
    """Yield processes without a file of their place in the data: other files' names tell their number."""
    complete = {key for o in beside for key, found in _list_processes(o).items() if len(found) == key[1]}
    for (item, count), processes in _list_processes(c).items():
        if gone := ranges.gaps(processes, count):
            text = f"there is no {item}/process_{gone[0][0]}-of-{count}.json"
            yield loss(text, c.path, sure=(item, count) in complete)
    text = "there is no file in {}/, in which the run's other checkpoints have those of processes"
    yield from compare_names(c, beside, lambda o: frozenset(item for item, _ in _list_processes(o)), text)


def _list_processes(c: Checkpoint) -> dict[tuple[str, int], set[int]]:
    """Return the processes that have files, by (Grain's item, number of processes that saved it)."""
    found = defaultdict[tuple[str, int], set[int]](set)
    for p in c.parts:
        if p.role == "iterator" and (name := _ITERATOR.fullmatch(p.name)):
            item = p.folder.directory.rstrip("/").rpartition("/")[2]
            found[item, int(name[2])].add(int(name[1]))
    return found


ORBAX = declare("orbax", "orbax", lost=_find_lost_of_orbax)
