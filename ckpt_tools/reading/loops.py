"""The files of people's own training loops: which of them make up one save, and of which step it is."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from ckpt_tools import formats
from ckpt_tools.layouts.common.counters import EPOCHS, STEPS, as_int, read_counts
from ckpt_tools.layouts.common.lost_files import Holds, find_piece
from ckpt_tools.layouts.common.templates import TOKENS
from ckpt_tools.layouts.files import get_loop
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.part import Kind, Part, were_written_together
from ckpt_tools.model.report import Level
from ckpt_tools.reading.session import Session

_MOST = 512
"""How many files of a directory are inspected at most: the newest ones."""
_ENDING = re.compile(r"\.(?:pth\.tar|weights\.h5|[A-Za-z]\w*)$")


class State(Struct, frozen=True):
    """A file and what it holds."""

    part: Part
    holds: Holds | None = None  # None if it could not be read
    steps: tuple[int, ...] = ()
    epochs: tuple[int, ...] = ()
    count: int | None = None  # steps of its optimizer
    role: str = ""
    strange: bool = False  # in no format of states

    @property
    def is_whole(self) -> bool:
        """True if it holds a model and its optimizer's state."""
        return self.holds is not None and self.holds.weights and self.holds.optimizer


class _Save:
    """The files of one save, what they tell, and the step, the epoch, or the number of either in its name."""

    def __init__(self, files: list[State]) -> None:
        self.files, first = files, files[0].part
        self.loop, self.step, self.epoch, self.kind = get_loop(first), first.step, first.epoch, first.kind
        self.steps = next((f.steps for f in files if f.steps), ())
        self.epochs = next((f.epochs for f in files if f.epochs), ())
        self.counts = tuple(f.count for f in files if f.count is not None)
        # the number in its name, if only the files tell its unit, and a file tells steps or epochs
        self.number = self.step if self.loop.told and self.steps + self.epochs + self.counts else None

    @property
    def joins_states(self) -> bool:
        """True if several directories in the save's own hold a whole state each, as those of runs do."""
        whole = (f.part for f in self.files if f.is_whole)
        return len({os.path.dirname(p.path) for p in whole if p.home}) > 1

    def may_hold(self, what: str) -> bool:
        """Return True if one of the files holds ``what``, a field of ``Holds``, or could not be read."""
        return any(f.holds is None or getattr(f.holds, what) for f in self.files)

    def read_name(self, unit: str) -> tuple[int | None, int | None]:
        """Return the step and the epoch in its name; ``unit`` is that of a number whose name tells none."""
        if self.loop.told:
            return self.step if unit in ("step", "") else None, self.step if unit == "epoch" else None
        return self.step, self.epoch


def place_loops(s: Session, parts: Sequence[Part]) -> list[Part]:
    """Return the parts with their content's steps and roles; files without a training state become bare."""
    runs: dict[object, list[Part]] = defaultdict(list)
    for p in parts:
        runs[p.base, p.run].append(p)
    return [p for run in runs.values() for p in _place_run(s, run)]


def _place_run(s: Session, parts: Sequence[Part]) -> Iterator[Part]:
    """Yield the parts of one run, placed by the step or epoch of their saves; other files become bare."""
    saves = _join_halves(_find_saves(_assign_roles(_read_states(s, parts))))
    unit = _find_unit(saves)
    shifts = _find_shifts(saves, unit)
    epochs = {o.steps[0]: o.epoch for o in saves if o.steps and o.epoch is not None}  # step -> epoch
    placed = list[tuple[_Save, int | None, int | None]]()
    for save in saves:
        is_number = save.loop.templates[0].startswith("{step}/")  # nothing else names its directory
        if save.joins_states or (is_number and not unit):  # directories of ranks, or seeds
            for f in save.files:
                s.make_bare(f.part)
        else:
            placed.append((save, *_find_progress(save, unit, shifts, epochs)))
    yield from _place_files(placed)


def _place_files(placed: Sequence[tuple[_Save, int | None, int | None]]) -> Iterator[Part]:
    """Yield parts of saves; a rolling file that holds everything is no part of a save of several files."""
    several = (row for row in placed if not row[0].loop.rolling and row[0].files[1:])
    of_several = {(step, epoch) for _, step, epoch in several}
    for save, step, epoch in placed:
        is_one = len(save.files) == 1 and save.files[0].is_whole
        is_apart = (step, epoch) == (None, None) or (is_one and (step, epoch) in of_several)
        yield from (_place_file(f, save, step, epoch, is_apart=is_apart) for f in save.files)


def _read_states(s: Session, parts: Sequence[Part]) -> list[State]:
    """Return the files that hold a state, or are damaged and named like one; the others become bare."""
    newest = {p.path for p in sorted(parts, key=lambda p: -p.mtime_ns)[:_MOST]}
    states = [_read_state(p, s, opens=p.path in newest) for p in parts]
    labels = {_label(f) for f in states if f.holds is not None}
    strange = [f for f in states if f.strange and not (get_loop(f.part).numbered and _label(f) in labels)]
    for f in strange:
        s.make_bare(f.part)
    return [f for f in states if f not in strange]


def _read_state(p: Part, s: Session, *, opens: bool) -> State:
    """Return what a file holds; the file is read only if ``opens``."""
    if not opens or p.size <= 0:
        return State(p)
    report = s.report(p, Level.STRUCTURE)
    if report.format is None and not formats.names.only_state(p.name):
        return State(p, strange=True)
    if report.format is None or report.verdict in (Verdict.BROKEN, Verdict.UNKNOWN):
        return State(p)
    if report.metadata.get("torchscript") or report.format not in s.layouts.piece_of(p).formats:
        return State(p, strange=True)  # a program (TorchScript, ONNX), or data
    held, steps, epochs = (
        report.held,
        read_counts(report.metadata, STEPS),
        read_counts(report.metadata, EPOCHS),
    )
    counters = not held.scheduler and bool(steps or epochs)
    roles = {"model": held.weights, "optimizer": held.optimizer, "scheduler": held.scheduler, "other": True}
    role = next(name for name, is_held in roles.items() if is_held)
    count = as_int(report.metadata.get("optimizer_step"))
    holds = Holds(held.weights, held.optimizer, counters)
    return State(p, holds, steps, epochs, count, role)


def _place_file(f: State, save: _Save, step: int | None, epoch: int | None, *, is_apart: bool) -> Part:
    """Return a file's part with the piece and role that its content tells, and its save's step and epoch; a
    file that is written over and ``is_apart`` is a save of its own.
    """
    loop = get_loop(f.part)
    rolling = loop.rolling or loop is not save.loop
    weights = all(o.holds is not None and o.holds.weights for o in save.files)
    more = save.may_hold("optimizer") or save.may_hold("counters")
    return f.part._replace(
        piece=find_piece(f.holds, rolling) if f.holds else f.part.piece,
        role=f.role,
        kind=Kind.RELEASE if save.loop.export and weights and not more else save.kind,
        prefix=loop.name if loop.rolling and is_apart else f.part.prefix,
        step=step,
        epoch=epoch,
    )


# --- roles


def _label(state: State) -> str:
    """Return a file's name without numbers, and without words that all files of its convention have."""
    p = state.part
    name = p.path.removeprefix(f"{p.home or p.base}/")
    words = re.split(r"[-_ =/.]+", re.sub(r"\d+", "", _ENDING.sub("", name)).lower())
    common = set(re.split(r"[-_.]", "".join(TOKENS.split(get_loop(p).templates[0])[::2])))
    return "_".join(word for word in words if word and word not in common)


def _assign_roles(states: Sequence[State]) -> list[State]:
    """Return the files with the role of their convention, else by what they hold, else by their name."""

    def split_name(f: State) -> tuple[str, str]:
        return _label(f), "".join(_ENDING.findall(f.part.name))

    roles = {split_name(f): f.role for f in states if f.holds is not None}
    states = [replace(f, role=roles.get(split_name(f), "")) if f.holds is None else f for f in states]
    names: dict[tuple[object, str], set[str]] = defaultdict(set)  # "" has those of all roles
    for f in states:
        for role in {f.role, ""}:
            names[_identify_save(f.part), role].add(_label(f))
    several = {role for (_, role), labels in names.items() if role and len(labels) > 1}

    unsure = {_identify_save(f.part) for f in states if not f.role}

    def find_role(f: State) -> str:
        loop, save = get_loop(f.part), _identify_save(f.part)
        is_named = f.role in several or (save in unsure and len(names[save, ""]) > 1)
        if f.is_whole and "{name}" not in loop.templates[0]:
            is_named = False  # of two files with whole states and no names of their own one is enough
        return (_label(f) if is_named else "") or loop.role or f.role or "model"

    return [replace(f, role=find_role(f)) for f in states]


# --- saves


def _identify_save(p: Part) -> object:
    """Return what files of one save have in common: a directory, or numbers, and a word."""
    loop = get_loop(p)
    word = "" if loop.numbered else p.name if loop.dated else loop.name
    return p.home, p.kind, None if p.home else (p.step, p.epoch), word


def _find_saves(states: Iterable[State]) -> list[_Save]:
    """Return saves: files of one directory of their own, with one number, or with one word."""
    together: dict[object, list[State]] = defaultdict(list)
    for f in states:
        together[_identify_save(f.part)].append(f)
    for files in together.values():
        files.sort(key=lambda f: (f.role != "model", not (f.holds and f.holds.weights), f.part.path))
    return [_Save(files) for files in together.values()]


def _join_halves(saves: Sequence[_Save]) -> list[_Save]:
    """Return the saves; a rolling one without weights is joined to the only save that fits it."""
    halves = [o for o in saves if o.loop.rolling and not o.may_hold("weights")]
    models = [o for o in saves if o not in halves and o.kind is Kind.PERIODIC] if halves else []
    models = [o for o in models if not o.may_hold("optimizer")]
    more: dict[_Save, list[State]] = defaultdict(list)
    joined = set[_Save]()
    for half in halves:
        if len(fitting := _find_fitting(half, models)) == 1:
            more[fitting[0]] += half.files
            joined.add(half)
    return [_Save([*o.files, *more[o]]) for o in saves if o not in joined]


def _find_fitting(half: _Save, models: Sequence[_Save]) -> list[_Save]:
    """Return the saves of the step that a half tells, else the saves written with it, or nearest to it in
    time if they have the count of its optimizer: a count begins anew with the optimizer.
    """
    if fitting := [o for o in models if not {*half.steps}.isdisjoint((o.step, *o.steps))]:
        return fitting
    part = half.files[0].part
    together = [o for o in models if were_written_together(o.files[0].part, part)]
    nearest = together or sorted(models, key=lambda o: abs(o.files[0].part.mtime_ns - part.mtime_ns))[:1]
    counted = [o for o in nearest if not {*half.counts}.isdisjoint((o.step, *o.steps))]
    return counted or together or [o for o in models if all(m.loop.rolling for m in models)]


def _find_unit(saves: Sequence[_Save]) -> str:
    """Return the unit of numbers without one: ``step``, ``epoch``, ``saves`` if steps grow too, else ""."""
    numbered = [(n, o) for o in saves if (n := o.number) is not None]
    steps = sum(n in (*o.steps, *o.counts) for n, o in numbered)
    epochs = Counter(n - o.epochs[0] for n, o in numbered if o.epochs and abs(n - o.epochs[0]) <= 1)
    if not numbered or 2 * steps > len(numbered):
        return "step"
    if 2 * max(epochs.values(), default=0) > len(numbered):
        return "epoch"
    if not _do_steps_grow(numbered):
        return ""
    return "saves" if any(o.steps for _, o in numbered) else "epoch" if epochs else "step"


def _do_steps_grow(numbered: Sequence[tuple[int, _Save]]) -> bool:
    """Return True if the steps in files grow with the numbers in their names."""
    steps = sorted((n, (*o.steps, *o.counts)[0]) for n, o in numbered if o.steps or o.counts)
    return all(a[1] < b[1] for a, b in pairwise(steps))


def _find_shifts(saves: Sequence[_Save], unit: str) -> tuple[int, int, bool]:
    """Return by how much most names exceed steps and epochs in files (-1 to 1), and if optimizers do."""
    shifts: tuple[Counter[int], Counter[int]] = (Counter(), Counter())
    for save in saves:
        for counts, number, held in zip(shifts, save.read_name(unit), (save.steps, save.epochs), strict=True):
            if number is not None and held and abs(number - held[0]) <= 1:
                counts[number - held[0]] += 1
    step, epoch = (max(counts, key=lambda n: (counts[n], n == 0), default=0) for counts in shifts)
    return step, epoch, any(save.read_name(unit)[0] in save.counts for save in saves if save.counts)


def _find_progress(
    save: _Save, unit: str, shifts: tuple[int, int, bool], epochs: Mapping[int, int]
) -> tuple[int | None, int | None]:
    """Return the step and epoch of a save: those in its name, else those in its files plus ``shifts``, else
    for a file that is written over the epoch that ``epochs`` tell of its step.
    """
    (step, epoch), (step_shift, epoch_shift, by_optimizer) = save.read_name(unit), shifts
    counts = save.counts if by_optimizer and save.loop.rolling else ()
    step = next((n + step_shift for n in (*save.steps, *counts)), None) if step is None else step
    epoch = next((n + epoch_shift for n in save.epochs), None) if epoch is None else epoch
    if epoch is None and save.loop.rolling and save.steps:
        epoch = epochs.get(save.steps[0])
    return (save.step if step is None and epoch is None else step), epoch
