"""Which of two checkpoints is the later where their names count in different units, or tell nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, pairwise
from typing import NamedTuple

from ckpt_tools.discovery.exclude import either
from ckpt_tools.errors import UsageError
from ckpt_tools.layouts import Layouts
from ckpt_tools.layouts.common.layout import whole
from ckpt_tools.model.checkpoint import Checkpoint, CheckpointKey, comparable
from ckpt_tools.model.frozen import replace
from ckpt_tools.model.part import Kind
from ckpt_tools.model.report import Level
from ckpt_tools.reading.session import Session

_COUNTERS = {"optimizer": "optimizer_step", "scheduler": "last_epoch"}
"""By the role of a file: what in it every step of training counts on, in one unit over all of a run."""


def with_common_steps(
    s: Session, checkpoints: Sequence[Checkpoint], step_of: Callable[[Checkpoint], int | None], level: Level
) -> list[Checkpoint]:
    """Checkpoints with a step wherever their files tell it; as they are where their names do for all."""
    saves = [c for c in checkpoints if c.kind is Kind.PERIODIC]
    units = {c.unit for c in saves}
    if len(units) < 2 and (units != {""} or len(saves) < 2):
        return list(checkpoints)
    told = [c if c.step is not None else replace(c, step=step_of(c)) for c in saves]
    for role, counter in _COUNTERS.items():
        told = _by_counter(told, partial(_count, s, role, counter, level))
    by_key = {c.key: c for c in told}
    return [by_key.get(c.key, c) for c in checkpoints]


def with_steps_in_epochs(
    checkpoints: Sequence[Checkpoint], layouts: Layouts, doubtful: Callable[[Checkpoint, Checkpoint], None]
) -> list[Checkpoint]:
    """Those of a run in which a later epoch has no higher step, with their steps as counted from the start of
    each epoch, where their layout may name them so, and times or steps that come again tell it. Where neither
    does, nor times that follow the steps, the last by epoch and the last by step are ``doubtful``.
    """
    runs: dict[tuple[str, str], list[Checkpoint]] = {}
    for c in checkpoints:
        if c.step is not None and c.epoch is not None and layouts.of(c).steps_by_epoch:
            runs.setdefault((c.layout, c.run), []).append(c)
    anew = {c.key for saves in runs.values() if _count_anew(saves, doubtful) for c in saves}
    return [replace(c, step=None, step_in_epoch=c.step) if c.key in anew else c for c in checkpoints]


def _count_anew(saves: Sequence[Checkpoint], doubtful: Callable[[Checkpoint, Checkpoint], None]) -> bool:
    by_epoch = sorted(saves, key=lambda c: (c.epoch, c.step))
    by_step = sorted(saves, key=lambda c: (c.step, c.epoch))
    if by_epoch == by_step or _follow(by_step):
        return False
    again = len({c.step for c in saves}) < len({(c.epoch, c.step) for c in saves})
    if again or _follow(by_epoch):
        return True
    if by_epoch[-1] is not by_step[-1]:
        doubtful(by_epoch[-1], by_step[-1])
    return False


def _follow(saves: Sequence[Checkpoint]) -> bool:
    """Whether each was written after the one before."""
    return all(a.mtime_ns < b.mtime_ns for a, b in pairwise(saves))


def _by_counter(
    checkpoints: list[Checkpoint], count_of: Callable[[Checkpoint], int | None]
) -> list[Checkpoint]:
    """Checkpoints with the step that a counter tells, where theirs is not known."""
    if all(c.step is not None for c in checkpoints):
        return checkpoints
    counts = {c.key: count_of(c) for c in checkpoints}
    rate = _rate(checkpoints, counts)
    return [_at(c, rate, counts[c.key]) for c in checkpoints]


class _Rate(NamedTuple):
    """So many steps for so many counts of a counter."""

    steps: int
    counts: int


def _rate(checkpoints: Sequence[Checkpoint], counts: Mapping[CheckpointKey, int | None]) -> _Rate | None:
    """The steps for each count of a counter, where that is the same for all whose step is known."""
    rates = [_Rate(c.step, count) for c in checkpoints if c.step and (count := counts.get(c.key))]
    same = all(r.steps * rates[0].counts == rates[0].steps * r.counts for r in rates)
    return rates[0] if rates and same else None


def _at(c: Checkpoint, rate: _Rate | None, count: int | None) -> Checkpoint:
    """A checkpoint with the step that its counter tells, where its own is not known."""
    if c.step is not None or rate is None or count is None:
        return c
    step, rest = divmod(rate.steps * count, rate.counts)
    return c if rest else replace(c, step=step)


def _count(s: Session, role: str, counter: str, level: Level, c: Checkpoint) -> int | None:
    """What the file of that role counts, or the only one there is, which holds all of a state."""
    part = next((p for p in c.parts if p.role == role), c.parts[0] if len(c.parts) == 1 else None)
    return None if part is None else whole(s.report(part, level).metadata.get(counter))


def untold(chosen: Checkpoint, candidates: Sequence[Checkpoint], *, mute: bool) -> Iterator[Checkpoint]:
    """Candidates that may be later than the one chosen: neither times (``mute``, or a copy's) nor what they
    count in places them.
    """
    copied = not mute and _copied_by_name(candidates)
    for c in candidates:
        silent = mute or c.mtime_ns == chosen.mtime_ns or (copied and c.unit != "")
        told = comparable(c.order, chosen.order) or not silent
        if c.key != chosen.key and c.kind in (Kind.PERIODIC, Kind.DYING_GASP) and not told:
            yield c


def _copied_by_name(saves: Sequence[Checkpoint]) -> bool:
    """Whether times that a copy leaves are all that tells one unit from another: they follow the names, unit
    by unit, and none came later after the one before than copying took.

    Training that saves by steps and by epochs does so in turn, and trains in between.
    """
    by_time = sorted((c for c in saves if c.unit), key=lambda c: (c.mtime_ns, c.order))
    units = [unit for unit, _ in groupby(by_time, key=lambda c: c.unit)]
    names = [(c.parts[0].path if c.parts else c.path) for c in by_time]
    by_name = len(units) > 1 and len(units) == len(set(units)) and names == sorted(names)
    return by_name and all(b.mtime_ns - a.mtime_ns <= _copying(b) for a, b in pairwise(by_time))


def _copying(c: Checkpoint) -> int:
    """The nanoseconds that copying takes at most, at 10 MB/s, and in a pause between two files."""
    return 10_000_000_000 + 100 * sum(max(p.size, 0) for p in c.parts)


def newest_untold(root: str, chosen: Checkpoint, other: Checkpoint, *, mute: bool) -> UsageError:
    """That only the caller can say which of two is the newest: times are lost (``mute``), or a copy's."""
    lost = mute or chosen.mtime_ns == other.mtime_ns
    why = "the modification times were lost" if lost else "modification times follow the names, as copies' do"
    text = (
        f"which checkpoint is the newest is in doubt: {chosen.path} ({chosen.label}) and {other.path}"
        f" ({other.label}): {why}, and their names do not count in one unit"
    )
    return UsageError(text, either(root, chosen, other), rule="order/units-differ")
