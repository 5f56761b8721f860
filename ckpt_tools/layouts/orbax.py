"""Orbax: a directory for each save, of a manager (``N/``) or called as the script likes, with the files of
the saved tree in it, or with a directory for each item; ``….orbax-checkpoint-tmp`` while it is written.
"""

from __future__ import annotations

import re
from collections import defaultdict

from ckpt_tools.layouts.common.layout import Flaws, Saves, list_paths, loss
from ckpt_tools.layouts.common.lost_files import compare_names
from ckpt_tools.layouts.declared import declare
from ckpt_tools.model import ranges
from ckpt_tools.model.checkpoint import Checkpoint

_ITERATOR = re.compile(r"process_(\d{1,6})-of-(\d{1,6})\.json")
"""Files in which Grain keeps the place of each process in its data."""
_ITEMS = "tree", "manifest", "json"
"""Roles of the files without which an item cannot be restored."""


def _find_lost_files(c: Checkpoint, beside: Saves) -> Flaws:
    """Yield files of items that the run's saves have; and a missing commit_success.txt on Google Cloud
    Storage, without which Orbax restores no save there.
    """
    if c.path.startswith("gs://") and all(p.role != "commit" for p in c.parts):
        text = "there is no commit_success.txt, which is written last on Google Cloud Storage"
        yield loss(text, c.path)
    losses = list(_find_lost_trees(c))
    yield from losses
    if not losses:
        yield from compare_names(c, beside, lambda o: list_paths(o, *_ITEMS))
        yield from _find_lost_processes(c, beside)
        text = "there is no {}, which the run's other checkpoints have: arrays are restored only where "
        text += "Orbax is told their shardings"
        yield from compare_names(c, beside, lambda o: list_paths(o, "sharding"), text, sure=False)


def _find_lost_trees(c: Checkpoint) -> Flaws:
    """Yield items without _METADATA, so that nothing says which arrays they had; and trees without
    manifest.ocdbt, of which only the files of processes are left: before 0.12 nothing else tells of it.
    """
    by_role = defaultdict[str, set[str]](set)
    for p in c.parts:
        by_role[p.role].add(p.folder.directory.rstrip("/"))
    undescribed = (by_role["manifest"] | by_role["sharding"]) - by_role["tree"]
    for directory in sorted(undescribed) if by_role["tree"] else ():
        yield loss("there is no _METADATA beside the other files of its tree", directory)
    files = {p.path for p in c.parts}
    parts = (p.path.rpartition("/ocdbt.process_") for p in c.parts if p.name == "manifest.ocdbt")
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
    found: dict[tuple[str, int], set[int]] = {}
    for p in c.parts:
        if p.role == "iterator" and (name := _ITERATOR.fullmatch(p.name)):
            item = p.folder.directory.rstrip("/").rpartition("/")[2]
            found.setdefault((item, int(name[2])), set()).add(int(name[1]))
    return found


ORBAX = declare(__name__, "orbax", lost=_find_lost_files)
