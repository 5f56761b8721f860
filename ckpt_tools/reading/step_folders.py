"""Directories of which each is one save of a training loop of one's own: ``step_100/model.pt`` and
``step_100/optimizer.pt`` are of one run with ``step_200/``, as ``model_100.pt`` is with ``model_200.pt``; so
are ``step_100/model/w.pt`` and ``step_100/optimizer/state.pt``.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from os.path import basename, dirname

from ckpt_tools.layouts.common.bare_names import BareName, is_called_after_a_role, read_bare_name
from ckpt_tools.model.part import Kind, Part

_SAVES = frozenset({"ckpt", "checkpoint", "chkpt", "chkpnt", "cp", "save", "snapshot"})
"""Words before a number of which nobody can say what it counts, only that it counts saves."""
_WORD = re.compile("[a-z]+")


def in_step_folders(parts: Iterable[Part]) -> list[Part]:
    """The parts, each below such a directory as one of the run above it, with that directory as its home."""
    found: dict[str, list[Part]] = defaultdict(list)
    by_base: dict[str, list[Part]] = defaultdict(list)
    for p in parts:
        lifted = _lifted(p)
        found[lifted.base].append(p)
        by_base[lifted.base].append(lifted)
    folders = _folders(by_base)
    return [
        p for base, same in by_base.items() for p in (map(_at_home, same) if base in folders else found[base])
    ]


def _lifted(p: Part) -> Part:
    """A part in a directory that is called after what it holds (``step_100/optimizer/``) as one of the save
    above.
    """
    above, folder = os.path.split(p.base)
    if basename(p.run) != folder or not (
        is_called_after_a_role(folder) and _counts(read_bare_name(basename(above)))
    ):
        return p
    return p._replace(base=above, run=dirname(p.run) or ".")


def _folders(by_base: Mapping[str, Sequence[Part]]) -> set[str]:
    """Those of the directories that are called after a step, and those beside them called as the last or the
    best.
    """
    above = {at for base in by_base for at in _above(base)}
    names = {base: read_bare_name(basename(base)) for base in by_base if base not in above}
    saves = {base for base, name in names.items() if _is_one(name) and _is_save(by_base[base], name)}
    counted = {base for base in saves if _counts(names[base])}
    counting = {dirname(base) for base in counted}
    return counted | {base for base in saves if dirname(base) in counting}


def _is_one(name: BareName) -> bool:
    return _counts(name) or _is_rolling(name)


def _above(path: str) -> Iterable[str]:
    while (up := dirname(path)) != path:
        yield up
        path = up


def _counts(name: BareName) -> bool:
    """Whether a directory is called after a step or an epoch; ``model_2`` and ``run_2`` may be anything, and
    ``step_2_ema`` is a part of a save.
    """
    if name.role:
        return False
    return (name.step, name.epoch) != (None, None) or (
        name.number is not None and not _SAVES.isdisjoint(_WORD.findall(name.pattern.lower()))
    )


def _is_rolling(name: BareName) -> bool:
    """Whether a directory beside those is called as the last or the best of them."""
    said = bool(name.alias) or name.kind is not Kind.PERIODIC
    return said and not (name.numbered or name.words or name.role)


def _is_save(parts: Iterable[Part], folder: BareName) -> bool:
    """Whether the files in a directory may be of one save: they count nothing of their own, and lie below the
    root.
    """
    numbers = {folder.step, folder.epoch, folder.number}
    models = 0
    for p in parts:
        own = read_bare_name(p.name)
        if own.shard or p.run == "." or basename(p.run) != basename(p.base):
            return False
        if not {n for n in (own.step, own.epoch, own.number) if n is not None} <= numbers:
            return False
        models += not own.role
    return folder.numbered or models == 1


def _at_home(p: Part) -> Part:
    return p._replace(base=dirname(p.base), home=p.base, run=dirname(p.run) or ".")
