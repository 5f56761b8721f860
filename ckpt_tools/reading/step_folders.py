"""Directories of which each is one save of a training loop of one's own: ``step_100/model.pt`` and
``step_100/optimizer.pt`` are of one run with ``step_200/``, as ``model_100.pt`` is with ``model_200.pt``; so
are ``step_100/model/w.pt`` and ``step_100/optimizer/state.pt``, and ``weights/step_100.pt`` with
``optim/step_100.pt``. A directory called by a number alone, or by ``e`` and one, is a save where its files
tell that number, too. Files that count steps in a directory that counts epochs (``epoch_1/step_300.pt``)
are each a save.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from os.path import basename, dirname

from ckpt_tools.layouts.common.bare_names import (
    BareName,
    is_called_after_a_role,
    is_number,
    read_bare_name,
    read_folder_name,
    read_version,
)
from ckpt_tools.layouts.common.directories import is_called_in_a_save
from ckpt_tools.model.part import Kind, Part

Told = Callable[[Part], frozenset[int]]
"""The numbers that a file tells of how far training was."""
_MOST = 8
"""Directories of one place that are asked whether their files tell their number, the newest ones."""
_SAVES = frozenset({"ckpt", "checkpoint", "chkpt", "chkpnt", "cp", "save", "snapshot"})
"""Words before a number of which nobody can say what it counts, only that it counts saves."""
_WORD = re.compile("[a-z]+")


def in_step_folders(parts: Iterable[Part], told: Told) -> list[Part]:
    """The parts, each below such a directory as one of the run above it, with that directory as its home."""
    found: dict[str, list[Part]] = defaultdict(list)
    by_base: dict[str, list[Part]] = defaultdict(list)
    for p in _of_roles_beside(parts):
        lifted = _lifted(p)
        found[lifted.base].append(p)
        by_base[lifted.base].append(lifted)
    folders = _folders(by_base, told)
    epochs = _epochs_of_steps(found)
    out = list[Part]()
    for base, same in by_base.items():
        if base in folders:
            out += map(_at_home, same)
        else:
            out += map(_one_up, found[base]) if base in epochs else found[base]
    return out


def _of_roles_beside(parts: Iterable[Part]) -> list[Part]:
    """The parts, those in directories beside each other that are called after what they hold, and count the
    same steps (``weights/step_100.pt``, ``optim/step_100.pt``), as of the run above.
    """
    kept = list(parts)
    counted: dict[str, dict[str, set[BareName]]] = defaultdict(lambda: defaultdict(set))
    for p in kept:
        above, folder = os.path.split(p.base)
        if basename(p.run) == folder and is_called_after_a_role(folder):
            counted[above][p.base].add(_when(p.name))
    lifted = {base for bases in counted.values() for base in bases if _count_alike(list(bases.values()))}
    return [
        p._replace(base=dirname(p.base), run=dirname(p.run) or ".") if p.base in lifted else p for p in kept
    ]


def _count_alike(counts: Sequence[set[BareName]]) -> bool:
    """Whether all directories have files of a number that each has, and no file without one."""
    return len(counts) > 1 and BareName() not in set.union(*counts) and bool(set.intersection(*counts))


def _when(name: str) -> BareName:
    """What a file's name counts, and nothing else of it."""
    said = read_bare_name(name)
    return BareName(step=said.step, epoch=said.epoch, number=said.number)


def _lifted(p: Part) -> Part:
    """A part in a directory that is called after what it holds (``step_100/optimizer/``) as one of the save
    above.
    """
    above, folder = os.path.split(p.base)
    if basename(p.run) != folder or not (
        is_called_after_a_role(folder)
        and (
            basename(above).isdigit() or _counts(said := read_bare_name(basename(above))) or _is_rolling(said)
        )
    ):
        return p
    return p._replace(base=above, run=dirname(p.run) or ".")


def _folders(by_base: Mapping[str, Sequence[Part]], told: Told) -> set[str]:
    """Those of the directories that are called after a step, and those beside them called as the last or the
    best.
    """
    names = _lowest(by_base)
    proven = _proven({base: by_base[base] for base in names if is_number(basename(base))}, told)
    counting = proven | {base for base, name in names.items() if _counts(name)}
    rolling = {base for base, name in names.items() if _is_rolling(name)}
    called = {base: read_folder_name(basename(base)) for base in counting | rolling}
    saves = {base for base, name in called.items() if _is_save(by_base[base], name)}
    places = {dirname(base) for base in saves & counting}
    return {base for base in saves if base in counting or dirname(base) in places}


def _lowest(bases: Collection[str]) -> dict[str, BareName]:
    """What the directories are called that have none of the others below them."""
    above = {at for base in bases for at in _above(base)}
    return {base: read_version(basename(base)) for base in bases if base not in above}


def _proven(numbered: Mapping[str, Sequence[Part]], told: Told) -> set[str]:
    """Those of the directories that are called by a number alone and lie beside each other, where the files
    of the newest tell their numbers: seeds, folds and sizes do not. One of which none is whole says nothing.
    """
    places: dict[tuple[str, str], list[str]] = defaultdict(list)
    for base in numbered:
        places[dirname(base), basename(base).rstrip("0123456789")].append(base)
    out = set[str]()
    for (_, letter), bases in places.items():
        bases.sort(key=lambda base: -max(p.mtime_ns for p in numbered[base]))
        rows = [
            (int(basename(base).removeprefix(letter)), _told_in(numbered[base], told))
            for base in bases[:_MOST]
        ]
        of_saves = not letter and all(is_called_in_a_save(p.name) for base in bases for p in numbered[base])
        if of_saves or _tell_their_numbers([row for row in rows if row[1]]):
            out.update(bases)
    return out


def _told_in(parts: Iterable[Part], told: Told) -> frozenset[int]:
    return frozenset().union(*map(told, parts))


def _tell_their_numbers(rows: Sequence[tuple[int, frozenset[int]]]) -> bool:
    """Whether each of several directories tells its own number, or all the one before or after it (one counts
    from 0); one into which a file of another was copied tells that one's. Those of ranks tell all the same.
    """
    for off in (0, -1, 1):
        own = [said for n, said in rows if n + off in said]
        if len(set(own)) == len(own) > 1 and all(said in own for _, said in rows):
            return True
    return False


def _epochs_of_steps(found: Mapping[str, Sequence[Part]]) -> set[str]:
    """The directories called after an epoch, each of whose files counts steps, where no epoch has a step as
    low as one before it: they count through.
    """
    places: dict[tuple[str, str], list[tuple[int, list[int], str]]] = defaultdict(list)
    for base, parts in found.items():
        folder = read_bare_name(basename(base))
        if folder.epoch is not None and (steps := _steps_alone(folder, parts)):
            places[dirname(base), folder.pattern].append((folder.epoch, steps, base))
    out = set[str]()
    for rows in places.values():
        rows.sort()
        if all(max(a) < min(b) for (_, a, _), (_, b, _) in pairwise(rows)):
            out.update(base for *_, base in rows)
    return out


def _steps_alone(folder: BareName, parts: Sequence[Part]) -> list[int]:
    """The steps of the files in a directory of no other name than an epoch's; none where one has no step."""
    if folder.step is not None or folder.words or folder.role or any(p.run == "." for p in parts):
        return []
    steps = [read_bare_name(p.name).step for p in parts]
    known = [n for n in steps if n is not None]
    return known if len(known) == len(steps) else []


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
    counted = (name.step, name.epoch) != (None, None) or name.pattern.endswith(":v")
    return counted or (name.number is not None and not _SAVES.isdisjoint(_WORD.findall(name.pattern.lower())))


def _is_rolling(name: BareName) -> bool:
    """Whether a directory beside those is called as the last or the best of them."""
    said = bool(name.alias) or name.kind is not Kind.PERIODIC
    return said and not (name.numbered or name.words) and name.role in ("", "ema")


def _is_save(parts: Iterable[Part], folder: BareName) -> bool:
    """Whether the files in a directory may be of one save: they count nothing of their own, not even under
    one name, and lie below the root. One rank's may all be called after it (``step_100/model_0.pt``).
    """
    numbers = {folder.step, folder.epoch, folder.number, *((0,) if folder.numbered else ())}
    models, names = 0, dict[object, str]()
    for p in parts:
        own = read_bare_name(p.name)
        inside = dirname(p.path[len(p.base) :])
        if names.setdefault((inside, own.pattern, own.words, p.name.rpartition(".")[2]), p.name) != p.name:
            return False
        if own.shard or p.run == "." or basename(p.run) != basename(p.base):
            return False
        if not {n for n in (own.step, own.epoch, own.number) if n is not None} <= numbers:
            return False
        models += own.role in ("", folder.role)
    return folder.numbered or models == 1


def _one_up(p: Part) -> Part:
    return p._replace(base=dirname(p.base), run=dirname(p.run) or ".")


def _at_home(p: Part) -> Part:
    return p._replace(base=dirname(p.base), home=p.base, run=dirname(p.run) or ".")
