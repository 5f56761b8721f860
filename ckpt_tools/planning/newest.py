"""Whether modification times tell which checkpoint is the newest, or whether the step does.

Pure: times, steps, names and witnesses in, a decision out.

The table of cases stands in docs/design.md, section 5. Times are nanoseconds since the epoch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from ckpt_tools.model.checkpoint import Order, apart, unit_of
from ckpt_tools.model.frozen import frozen

_DAY_NS = 86_400 * 1_000_000_000
_FIRST_NS = 3_655 * _DAY_NS
"""1980-01-04: the first days that archives can write down, which is what they write when they keep no times.
"""
_SKEW_NS = 600 * 1_000_000_000
"""How far a clock may be ahead before its times count for nothing."""
_NUMBER = re.compile(r"\d+")
UNKNOWN: Order = (-1, -1, -1)


class Times(Enum):
    """What the modification times of the checkpoints of one run look like."""

    IN_STEP = "they follow the steps"
    TRAINING = "older steps were saved again after newer ones, at the pace of training"
    EQUAL = "all modification times are the same"
    LOST = "all modification times are at the epoch"
    PARTLY_LOST = "some modification times are at the epoch"
    FUTURE = "modification times lie in the future"
    NAMES = "modification times follow the names, as a copy leaves them"
    COPIED = "all were written right after each other, as a copy does"
    REVERSED = "modification times fall while the steps rise"
    UNPROVEN = "nothing shows that older steps were saved again after newer ones"

    @property
    def mute(self) -> bool:
        """Whether the times tell nothing at all, not even that there is a doubt."""
        return self in (Times.EQUAL, Times.LOST)

    @property
    def believed(self) -> bool:
        """Whether the newest by time is the newest."""
        return self in (Times.IN_STEP, Times.TRAINING)

    @property
    def speaks(self) -> bool:
        """Whether the times are a witness at all: they look neither copied nor wrong."""
        return self.believed or self is Times.UNPROVEN


@frozen
class Saved:
    """One checkpoint: its progress, its ``name`` (a path), its time, when the ``first`` and the ``last`` of
    its files were written, whether a ``dying`` job wrote it, and how long a ``pause`` before it a copy makes.
    """

    order: Order
    name: str
    at: int
    first: int
    last: int
    dying: bool = False
    pause: int = 0


@frozen
class Witnesses:
    """What each witness calls the newer of two checkpoints: "mtime" for the newest by time, "step" for that
    of the highest step, None when it is silent.

    Times that are not ``proven`` do not decide alone, but others may not contradict them.
    """

    times: str | None = None
    proven: bool = False
    generations: str | None = None
    tracker: str | None = None
    log: str | None = None

    @property
    def verdict(self) -> str | None:
        """The order that all who speak agree on; None where they contradict each other, where nobody speaks,
        or only times that prove nothing.
        """
        others = {word for word in (self.generations, self.tracker, self.log) if word is not None}
        said = others | ({self.times} if self.times and (self.proven or others) else set())
        return said.pop() if len(said) == 1 else None


def times(saves: Sequence[Saved], now: int) -> Times:
    """What the times of a run's checkpoints look like; those whose step nobody knows are left out."""
    known = [s for s in saves if s.order != UNKNOWN]
    by_time = sorted(known, key=lambda s: (s.at, s.order))
    steps = len({s.order for s in known})
    if steps > 1 and (silent := _silent(by_time)):
        return silent
    if _in_step(by_time):
        return Times.IN_STEP
    return _clock_was_wrong(by_time, now) or _out_of_step(by_time, steps)


def _in_step(by_time: Sequence[Saved]) -> bool:
    """Whether steps rise with the times, as do the numbers of those that count in another unit."""
    newest = dict[str, Order]()
    for save in by_time:
        unit = unit_of(save.order)
        before = newest.get(unit, UNKNOWN)
        if save.order < before and apart(save.order, before):
            return False
        newest[unit] = max(save.order, before)
    return True


def _silent(by_time: Sequence[Saved]) -> Times | None:
    """Why the times tell nothing; None where they do."""
    first, last = by_time[0].at, by_time[-1].at
    if last < _FIRST_NS:
        return Times.LOST
    return Times.EQUAL if first == last else None


def _clock_was_wrong(by_time: Sequence[Saved], now: int) -> Times | None:
    if by_time[-1].at > now + _SKEW_NS:
        return Times.FUTURE
    return Times.PARTLY_LOST if by_time[0].at < _FIRST_NS else None


def _out_of_step(by_time: Sequence[Saved], steps: int) -> Times:
    """What made the times of saves of so many ``steps`` disagree with their order: training, or a copy."""
    # of two, one may just have been saved again, or touched
    if steps > 2 and all(a.order >= b.order for a, b in pairwise(by_time)):
        return Times.REVERSED
    if all(b.first - a.last < b.pause for a, b in pairwise(by_time)):
        return Times.COPIED  # no job trains, dies and starts again in so short a time
    copied = all(a.name <= b.name for a, b in pairwise(by_time))
    if _at_the_pace_of_training(by_time, copied):
        return Times.TRAINING
    return Times.NAMES if copied else Times.UNPROVEN


class _Pace(NamedTuple):
    """How long a save ``took`` after the one before, in nanoseconds, and how many steps were trained for it.

    ``on``: from the save before on; else from an earlier one, after a rollback. ``dying``: it was saved when
    the job died, at any step.
    """

    took: int
    steps: int
    on: bool
    dying: bool


def _at_the_pace_of_training(by_time: Sequence[Saved], copied: bool) -> bool:
    """Whether every save took at least half the time that its steps take in this run; downtime may come on
    top.

    Where the times could be those of a ``copied`` tree, two pairs of saves in step must show the pace, and no
    other word in a name may be why an older step comes later: a copy keeps a pace, too.
    """
    paces = None if _interleaved(by_time) or (copied and _back_by_a_word(by_time)) else _paces(by_time)
    if paces is None:
        return False
    regular = [pace for pace in paces if pace.on and pace.steps > 0 and not pace.dying]
    rates = sorted(pace.took / pace.steps for pace in regular)
    if len(rates) < 1 + copied:
        return False
    usual, apart = rates[(len(rates) - (not copied)) // 2], min(pace.steps for pace in regular)
    # the regular save before may have been written while training went on
    late = {False: 0.0, True: apart / 2}
    return all(2 * pace.took >= usual * (pace.steps - late[pace.dying]) for pace in paces)


def _back_by_a_word(by_time: Sequence[Saved]) -> bool:
    """Whether an older step comes after one that is called otherwise, in more than the number."""
    back = [(a.name, b.name) for a, b in pairwise(by_time) if b.order < a.order]
    return any(_NUMBER.sub("", a) != _NUMBER.sub("", b) for a, b in back)


def _paces(by_time: Sequence[Saved]) -> list[_Pace] | None:
    """The pace of each save after the first; None where that cannot be known.

    A step that is lower than the one before was trained from an earlier save of a lower step, which must be
    there: a file that was touched or restored has none.
    """
    place = _places(by_time)
    if place is None:
        return None
    paces = list[_Pace]()
    for i, (a, b) in enumerate(pairwise(by_time)):
        origin, on = a.order, b.order > a.order
        if not on:
            origin = max((s.order for s in by_time[: i + 1] if s.order < b.order), default=UNKNOWN)
        if origin == UNKNOWN:
            return None
        if on or not b.dying:  # else saved when the job died, which may be at once
            paces.append(_Pace(b.at - a.at, place[b.order] - place[origin], on, b.dying))
    return paces


def _interleaved(by_time: Sequence[Saved]) -> bool:
    """Whether files of most saves were written between those of the next: several processes copied them.

    A single one may hold a file that was restored.
    """
    pairs = [(a, b) for a, b in pairwise(by_time) if a.order != b.order]
    return 2 * sum(b.first < a.last for a, b in pairs) >= len(pairs) > 0


def _places(saves: Sequence[Saved]) -> Mapping[Order, int] | None:
    """Progress -> a number of steps; None where some are told in steps and others in epochs."""
    orders = {s.order for s in saves}
    if all(step >= 0 for step, _, _ in orders):
        return {order: order[0] for order in orders}
    if any(step >= 0 for step, _, _ in orders):
        return None
    per_epoch = 1 + max(0, *(inside for _, _, inside in orders))
    return {order: order[1] * per_epoch + order[2] for order in orders}
