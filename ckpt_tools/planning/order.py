"""Which save is the newest by time (ns since 1970), and what corrects it (docs/how-it-chooses.md). Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from ckpt_tools.layouts import Layout, Layouts
from ckpt_tools.model.checkpoint import Checkpoint, CheckpointKey, Order, differ, is_comparable
from ckpt_tools.model.part import Kind
from ckpt_tools.planning.choose import StepOf, rank

UNKNOWN: Order = (-1, -1, -1)
FIRST_NS = 3_655 * 86_400 * 10**9
"""1980-01-04: archives that keep no times give files a date before it."""
SKEW_NS = 600 * 10**9
"""How far a time may lie in the future before it counts for nothing (ns)."""
_COPY_NS, _NS_PER_BYTE = 10**9, 20
"""How long a copy takes for each save, and for each byte of it (50 MB/s)."""
_END = 10**17
"""Step in the epoch of a save from an epoch's end, in runs that also save within epochs."""
_REGULAR = (Kind.PERIODIC, Kind.DYING_GASP)
Positions = Mapping[CheckpointKey, Order]
"""Positions in training: (step, epoch, step in epoch), -1 if unknown. Default: ``Checkpoint.order``."""


def find_positions(saves: Sequence[Checkpoint], layouts: Layouts, read_count: StepOf) -> Positions:
    """Return positions in training that names alone do not tell: in runs whose step restarts or is counted in
    several units (then ``read_count`` gives the steps of a save's files), with dates as names, or with saves
    at the end of an epoch.
    """
    runs: dict[tuple[str, str], list[Checkpoint]] = defaultdict(list)
    for c in saves:
        runs[c.layout, c.run].append(c)
    found = (_find_positions_in_run(run, layouts[name], read_count) for (name, _), run in runs.items())
    return {key: position for positions in found for key, position in positions.items()}


def get_step(own: int | None, c: Checkpoint, positions: Positions) -> int | None:
    """Return the save's ``own`` step, else the step of its position in training; None if neither is known."""
    counted = positions.get(c.key, UNKNOWN)[0]
    return counted if own is None and counted >= 0 else own


def _find_positions_in_run(run: Sequence[Checkpoint], layout: Layout, read_count: StepOf) -> Positions:
    """Return the positions of one run's saves by the first way of counting that applies; {} if none does."""
    if layout.counting.restarts and len({c.restarts for c in run}) > 1:
        return _make_positions_of_steps({c.key: read_count(c) for c in run})
    if layout.counting.dated is not None and (dates := _find_positions_by_date(run, layout.counting.dated)):
        return dates
    if any(c.step_in_epoch is not None for c in run):
        return _find_ends_of_epochs(run)
    if layout.counting.by_epoch and _is_ordered_by_epoch(run):
        return {c.key: (-1, *c.order[1::-1]) for c in run if c.step is not None}
    return _find_positions_by_count([c for c in run if c.kind in _REGULAR], read_count)


def _find_ends_of_epochs(run: Sequence[Checkpoint]) -> Positions:
    """Return the positions of saves that name an epoch and no step: behind all steps of that epoch."""
    ends = (c for c in run if c.step is None and c.step_in_epoch is None)
    return {c.key: (-1, c.epoch, _END) for c in ends if c.epoch is not None}


def _find_positions_by_count(regular: Sequence[Checkpoint], read_count: StepOf) -> Positions:
    """Return positions by the counts in files, if names count in several units; {} if a file has no count."""
    counts = {c.key: read_count(c) for c in regular} if len({c.unit for c in regular}) > 1 else {}
    return {} if None in counts.values() else _make_positions_of_steps(counts)


def _make_positions_of_steps(steps: Mapping[CheckpointKey, int | None]) -> Positions:
    """Return positions that have a step alone, ``UNKNOWN`` for None; {} if no save has a step."""
    if all(step is None for step in steps.values()):
        return {}  # without steps the numbers of restarts in names decide
    return {key: UNKNOWN if step is None else (step, -1, -1) for key, step in steps.items()}


def _find_positions_by_date(run: Sequence[Checkpoint], dated: re.Pattern[str]) -> Positions:
    """Return positions by the dates in names, if each save of a run has its own date; else {}."""
    found = {c.key: dated.fullmatch(c.path.rpartition("/")[2]) for c in run if c.order == UNKNOWN}
    # to the microsecond: a date without the time of day is its midnight
    dates = {key: int(re.sub(r"\D", "", m[1]).ljust(20, "0")) for key, m in found.items() if m}
    if len({*dates.values()}) < len(run):
        return {}
    return {key: (-1, -1, date) for key, date in dates.items()}


def count_steps_in_epochs(saves: Sequence[Checkpoint], layouts: Layouts) -> list[Checkpoint]:
    """Return the saves; in runs whose step restarts with each epoch it is their ``step_in_epoch``."""
    runs: dict[tuple[str, str], list[Checkpoint]] = defaultdict(list)
    for c in saves:
        if layouts.of(c).counting.by_epoch and c.step is not None and c.epoch is not None:
            runs[c.layout, c.run].append(c)

    def restarts_with_epoch(run: Sequence[Checkpoint]) -> bool:
        repeats = len({c.step for c in run}) < len({(c.epoch, c.step) for c in run})
        return _is_ordered_by_epoch(run) and (repeats or _is_in_time_order(_sort_by_epoch(run)))

    keys = {c.key for run in runs.values() if restarts_with_epoch(run) for c in run}
    return [replace(c, step=None, step_in_epoch=c.step) if c.key in keys else c for c in saves]


def _is_ordered_by_epoch(run: Sequence[Checkpoint]) -> bool:
    """Return True if sorting by epoch differs from sorting by step, and times do not follow the steps."""
    by_step = sorted(run, key=lambda c: (c.step or 0, c.epoch or 0))
    return by_step != _sort_by_epoch(run) and not _is_in_time_order(by_step)


def _sort_by_epoch(run: Sequence[Checkpoint]) -> list[Checkpoint]:
    return sorted(run, key=lambda c: (c.epoch or 0, c.step or 0))


def _is_in_time_order(saves: Sequence[Checkpoint]) -> bool:
    """Return True if each save has a later modification time than the one before it."""
    return all(a.mtime_ns < b.mtime_ns for a, b in pairwise(saves))


def add_told_steps(saves: Sequence[Checkpoint], step_of: StepOf) -> list[Checkpoint]:
    """Return the saves; periodic ones without a step get that of their files, if names count differently."""
    regular = [c for c in saves if c.kind is Kind.PERIODIC]
    units = {c.unit for c in regular}
    if len(units) < 2 and (units != {""} or len(regular) < 2):
        return list(saves)
    regular_keys = {c.key for c in regular}
    return [replace(c, step=step_of(c)) if c.step is None and c.key in regular_keys else c for c in saves]


def order_saves(
    saves: Sequence[Checkpoint], by: str, prefer: Kind | None = None, positions: Positions | None = None
) -> list[Checkpoint]:
    """Return the saves, newest first ``by`` "mtime" or "step"; the best so far last if it has no position."""
    known = positions or {}
    ranked = rank(saves, by, prefer, lambda c: known.get(c.key, c.order))
    if prefer is Kind.BEST or all(c.kind not in _REGULAR for c in saves):
        return ranked
    unplaced = {c.key for c in saves if c.kind is Kind.BEST and known.get(c.key, c.order) == UNKNOWN}
    return sorted(ranked, key=lambda c: c.key in unplaced) if unplaced else ranked


class OrderFacts(Struct, frozen=True):
    """What the rules of the order see."""

    root: str
    now_ns: int
    saves: Sequence[Checkpoint]
    by_time: Checkpoint  # the newest usable one of ``saves`` by time
    by_step: Checkpoint  # the same by step; the positions of these two are comparable
    positions: Positions
    # returns the flag that leads to the first of two by leaving out the other; "" if there is none
    exclude: Callable[[Checkpoint, Checkpoint], str]
    tracker: str = ""  # path of a tracker that was written later, and names the one of these two not chosen
    tracked: Checkpoint | None = None  # a third save that the tracker names, if both are one
    tracker_is_link: bool = False
    step_flag: bool = True  # --order step leads to ``by_step``
    others: Sequence[Checkpoint] = ()  # usable, and maybe later than the chosen one

    def get_position(self, c: Checkpoint) -> Order:
        """Return a save's position in training: (step, epoch, step in epoch), -1 where unknown."""
        return self.positions.get(c.key, c.order)

    @property
    def differ(self) -> bool:
        """Whether time and step name saves of different positions in training."""
        return differ(self.get_position(self.by_time), self.get_position(self.by_step))

    @property
    def newest(self) -> Checkpoint:
        """The newest save by time; that by step if the two differ and times cannot be those of training."""
        return self.by_step if self.differ and self.why_mute else self.by_time

    @property
    def why_mute(self) -> str | None:
        """Why modification times cannot be those of training (a word); None if they can."""
        saves = [c for c in self.saves if c.kind is not Kind.RELEASE]
        times = [c.mtime_ns for c in saves]
        positions = [self.get_position(c) for c in saves]
        if len({*positions} - {UNKNOWN}) + positions.count(UNKNOWN) < 2:
            return None
        if min(self.by_time.mtime_ns, self.by_step.mtime_ns) < FIRST_NS:
            return "lost"
        if min(times) == max(times):
            return "equal"
        if self.by_time.mtime_ns > self.now_ns + SKEW_NS:
            return "future"
        size = sum(max(p.size, 0) for c in saves for p in c.parts)
        copy_ns = _COPY_NS * len(saves) + _NS_PER_BYTE * size
        return "copied" if max(times) - min(times) <= copy_ns else None

    @property
    def goes_back(self) -> bool:
        """Whether an earlier position was saved before the newest save by time: then it may be a rollback."""
        newest, position = self.by_time, self.get_position(self.by_time)
        before = (self.get_position(c) for c in self.saves if c.mtime_ns < newest.mtime_ns)
        return any(earlier < position and is_comparable(earlier, position) for earlier in before)

    def find_undecided(self, saves: Sequence[Checkpoint], *, models: bool = False) -> Iterator[Checkpoint]:
        """Yield saves that may be later, as neither times nor steps tell; exports too beside ``models``."""
        newest, mute, position = self.newest, bool(self.why_mute), self.get_position(self.newest)
        for c in saves:
            export = models and c.kind is Kind.RELEASE is not newest.kind and c.mtime_ns >= newest.mtime_ns
            times_mute = export or mute or c.mtime_ns == newest.mtime_ns or c.mtime_ns < FIRST_NS
            if times_mute and c.key != newest.key and (export or c.kind in _REGULAR):
                later_by_name = c.order > newest.order and is_comparable(c.order, newest.order)
                own = self.get_position(c)
                if (later_by_name and own < position) or not is_comparable(own, position):
                    yield c
