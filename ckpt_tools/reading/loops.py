"""The files of people's own training loops: which of them make up one save, of which step, by the conventions
that their names fit and by what is in them.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from ckpt_tools.layouts.common.held import piece_for
from ckpt_tools.layouts.common.templates import TOKENS
from ckpt_tools.layouts.files import Loop, loop_of
from ckpt_tools.model.frozen import replace
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.reading.companions import were_written_together
from ckpt_tools.reading.held_state import State, read_state
from ckpt_tools.reading.session import Session

_MOST = 512
"""Files of a directory that are inspected, the newest ones."""
_ENDING = re.compile(r"\.(?:pth\.tar|weights\.h5|[A-Za-z]\w*)$")


class _Save(NamedTuple):
    """The files of one save, and the step, the epoch, or the number of either that their names tell."""

    files: list[State]
    loop: Loop
    step: int | None
    epoch: int | None

    @property
    def number(self) -> int | None:
        """The number in its name, where only its files tell what it counts."""
        return self.step if self.loop.told else None

    @property
    def joins_states(self) -> bool:
        """Whether several directories in that of the save hold a whole state each, as those of runs do."""
        whole = (f.part for f in self.files if f.holds and f.holds.weights and f.holds.optimizer)
        return len({os.path.dirname(p.path) for p in whole if p.home}) > 1

    @property
    def steps(self) -> tuple[int, ...]:
        return next((f.steps for f in self.files if f.steps), ())

    @property
    def tells(self) -> bool:
        return bool(self.steps or self.epochs or self.counts)

    @property
    def counts(self) -> tuple[int, ...]:
        """How many steps its optimizers have taken."""
        return tuple(f.count for f in self.files if f.count is not None)

    @property
    def epochs(self) -> tuple[int, ...]:
        return next((f.epochs for f in self.files if f.epochs), ())


def place_loops(s: Session, parts: Sequence[Part]) -> list[Part]:
    """Return the parts with what their files tell: role, kind, step and epoch. What holds nothing of a
    training state is no part.
    """
    runs: dict[object, list[Part]] = defaultdict(list)
    for p in parts:
        runs[p.base, p.run].append(p)
    return [p for beside in runs.values() for p in _place_beside(s, beside)]


def _place_beside(s: Session, parts: Sequence[Part]) -> Iterator[Part]:
    newest = {p.path for p in sorted(parts, key=lambda p: -p.mtime_ns)[:_MOST]}
    states = _states(s, [read_state(p, s, p.path in newest) for p in parts])
    saves = _with_rolling_halves(_saves(_with_roles(states)))
    counted = _what_numbers_count(saves)
    shift = _shift(saves, counted)
    epochs = {o.steps[0]: o.epoch for o in saves if o.steps and o.epoch is not None}  # by the steps they tell
    for save in saves:
        of_others = save.loop.of_number and not counted  # of ranks, or seeds
        if of_others or save.joins_states:
            for f in save.files:
                s.make_bare(f.part)
        else:
            step, epoch = _place(save, counted, shift)
            if epoch is None and save.loop.rolling and save.steps:
                epoch = epochs.get(save.steps[0])
            yield from (_part(f, save, step, epoch) for f in save.files)


def _states(s: Session, read: Sequence[State]) -> list[State]:
    """Return the files that hold a state, or are damaged; one in no format of states is damaged only if it
    has a number and others of its name hold states.
    """
    known = {_label(f) for f in read if f.holds is not None}
    strange = [f for f in read if f.strange and not (loop_of(f.part).numbered and _label(f) in known)]
    for f in strange:
        s.make_bare(f.part)
    return [f for f in read if f not in strange]


# --- roles


def _label(state: State) -> str:
    """Return the name of a file without the numbers that differ from save to save, and without what all
    files of its convention are called.
    """
    p = state.part
    inside = p.path.removeprefix(f"{p.home or p.base}/")
    words = re.split(r"[-_ =/.]+", re.sub(r"\d+", "", _ENDING.sub("", inside)).lower())
    own = set(re.split(r"[-_.]", "".join(TOKENS.split(loop_of(p).templates[0])[::2])))
    return "_".join(word for word in words if word and word not in own)


def _peers(state: State) -> tuple[str, str]:
    """Return what files that hold the same in other saves have in common with it."""
    return _label(state), "".join(_ENDING.findall(state.part.name))


def _with_roles(states: Sequence[State]) -> list[State]:
    """Return the files with their roles: what they hold, or what they are called where several of one save
    hold the same. One that could not be read is what others of its name are.
    """
    known = {_peers(f): f.role for f in states if f.holds is not None}
    states = [replace(f, role=known.get(_peers(f), "model")) if f.holds is None else f for f in states]
    names: dict[tuple[object, str], set[str]] = defaultdict(set)
    for f in states:
        names[_key(f.part), f.role].add(_label(f))
    several = {role for (_, role), labels in names.items() if len(labels) > 1}
    return [replace(f, role=_own_role(f, several)) for f in states]


def _own_role(f: State, several: set[str]) -> str:
    """Return the role that its convention declares, that of what it holds, or its label where several files
    of a save hold the same; of two that hold everything and have no names of their own one is enough.
    """
    loop = loop_of(f.part)
    whole = f.holds is not None and f.holds.weights and f.holds.optimizer
    if loop.role or f.role not in several or (whole and "{name}" not in loop.templates[0]):
        return loop.role or f.role
    return _label(f) or f.role


# --- saves


def _key(p: Part) -> object:
    loop = loop_of(p)
    word = "" if loop.numbered else p.name if loop.dated else loop.name
    return p.home, p.kind, None if p.home else (p.step, p.epoch), word


def _saves(states: Iterable[State]) -> list[_Save]:
    """Return files of one directory of their own, of one number, or of one word, as one save each."""
    together: dict[object, list[State]] = defaultdict(list)
    for f in states:
        together[_key(f.part)].append(f)
    saves = list[_Save]()
    for same in together.values():
        same.sort(key=lambda f: (f.role != "model", not (f.holds and f.holds.weights), f.part.path))
        first = same[0].part
        saves.append(_Save(same, loop_of(first), first.step, first.epoch))
    return saves


def _with_rolling_halves(saves: Sequence[_Save]) -> list[_Save]:
    """Return the saves; what is written over and holds no weights (``optimizer.pt``) is of the only save of
    weights alone that fits it.
    """
    halves = [o for o in saves if not _holds(o, "weights") and o.loop.rolling]
    rest = [o for o in saves if o not in halves and o.files[0].part.kind is Kind.PERIODIC]
    models = [o for o in rest if not _holds(o, "optimizer")] if halves else []
    joined = list[_Save]()
    for half in halves:
        of_it = _fitting(half, models)
        if len(of_it) == 1:
            of_it[0].files.extend(half.files)
            joined.append(half)
    return [o for o in saves if o not in joined]


def _fitting(half: _Save, models: Sequence[_Save]) -> list[_Save]:
    """Return the saves whose step a half tells, else those that it was written with, else those that are
    written over as it is.
    """
    told = {*half.steps, *half.counts}
    of_it = [o for o in models if not told.isdisjoint((o.step, *o.steps))]
    of_it = of_it or [o for o in models if were_written_together(o.files[0].part, half.files[0].part)]
    return of_it or [o for o in models if all(m.loop.rolling for m in models)]


def _holds(save: _Save, what: str) -> bool:
    """Return True if one of the files holds it, or could not be read."""
    return any(f.holds is None or getattr(f.holds, what) for f in save.files)


def _what_numbers_count(saves: Sequence[_Save]) -> str:
    """Return what the numbers in names count that say no unit, as most files tell: ``step`` or ``epoch``;
    else ``saves`` if the steps that they tell grow with the numbers, "" if these do not.
    """
    telling = [(n, o) for o in saves if (n := o.number) is not None and o.tells]
    steps = sum(n in (*o.steps, *o.counts) for n, o in telling)
    epochs = Counter(n - o.epochs[0] for n, o in telling if o.epochs and abs(n - o.epochs[0]) <= 1)
    if not telling or 2 * steps > len(telling):
        return "step"
    if 2 * max(epochs.values(), default=0) > len(telling):
        return "epoch"
    if not _grow(telling):
        return ""
    return "saves" if any(o.steps for _, o in telling) else "epoch" if epochs else "step"


def _grow(telling: Sequence[tuple[int, _Save]]) -> bool:
    """Return True if the steps that files tell are higher the higher the numbers of their saves are."""
    told = sorted((n, (*o.steps, *o.counts)[0]) for n, o in telling if o.steps or o.counts)
    return all(a[1] < b[1] for a, b in pairwise(told))


class _Shift(NamedTuple):
    """By how much names count steps and epochs higher than the files tell them; ``by_optimizer``: what an
    optimizer counts is the step.
    """

    step: int
    epoch: int
    by_optimizer: bool


def _shift(saves: Sequence[_Save], counted: str) -> _Shift:
    """Return what most saves show that have both."""
    apart: tuple[Counter[int], Counter[int]] = (Counter(), Counter())
    for save in saves:
        for i, (named, told) in enumerate(zip(_named(save, counted), (save.steps, save.epochs), strict=True)):
            if named is not None and told and abs(named - told[0]) <= 1:
                apart[i][named - told[0]] += 1
    step, epoch = (max(found, key=lambda n: (found[n], n == 0), default=0) for found in apart)
    return _Shift(step, epoch, any(_named(save, counted)[0] in save.counts for save in saves if save.counts))


def _named(save: _Save, counted: str) -> tuple[int | None, int | None]:
    """Return the step and the epoch that its name tells."""
    if save.loop.told:
        return save.step if counted in ("step", "") else None, save.step if counted == "epoch" else None
    return save.step, save.epoch


def _place(save: _Save, counted: str, shift: _Shift) -> tuple[int | None, int | None]:
    """Return the step and epoch of a save: those that its name tells, else those that its files tell."""
    step, epoch = _named(save, counted)
    counts = save.counts if shift.by_optimizer and save.loop.rolling else ()
    step = next((n + shift.step for n in (*save.steps, *counts)), None) if step is None else step
    epoch = next((n + shift.epoch for n in save.epochs), None) if epoch is None else epoch
    return (save.step if step is None and epoch is None else step), epoch


def _part(f: State, save: _Save, step: int | None, epoch: int | None) -> Part:
    loop = loop_of(f.part)
    rolling = loop.rolling or loop is not save.loop
    return f.part._replace(
        piece=piece_for(f.holds, rolling) if f.holds else f.part.piece,
        role=f.role,
        kind=Kind.RELEASE if _is_export(save) else save.files[0].part.kind,
        prefix=loop.name if loop.rolling and (step, epoch) == (None, None) else f.part.prefix,
        step=step,
        epoch=epoch,
    )


def _is_export(save: _Save) -> bool:
    """Return True for weights alone under a name that says no more than what they are."""
    weights = [f.holds is not None and f.holds.weights for f in save.files]
    more = any(f.holds is None or f.holds.optimizer or f.holds.counters for f in save.files)
    return save.loop.export and all(weights) and not more
