"""Learning rates: a schedule sets its optimizer's at every step, so of one save both tell the same."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import isclose
from typing import NamedTuple

from ckpt_tools.findings import finding
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Report

RATE = "lr"
"""What the learning rate is called in what is known of a file."""
_OPTIMIZERS = ("optimizer", "groups")
"""The groups of an optimizer's parameters, which hold its rates, may be in a file of their own."""


class _Save(NamedTuple):
    """The one optimizer and the one schedule of a checkpoint, and the learning rate that each tells."""

    optimizer: Part
    schedule: Part
    has: float
    set_to: float

    @property
    def agrees(self) -> bool:
        return _same(self.has, self.set_to)


def _same(rate: float, other: float) -> bool:
    return isclose(rate, other, rel_tol=1e-9, abs_tol=1e-15)


def other_rates(parts: Sequence[tuple[Part, Report]], told: Collection[str]) -> Iterator[tuple[str, Finding]]:
    """Optimizers and schedules of one checkpoint that tell different learning rates: one of them is another
    save's, where one has that rate. Where no checkpoint of the run agrees, the training sets rates in a way
    of its own; it may also do so now and then, by hand: a warning.

    Of several optimizers or schedules nobody knows which belong together. Those ``told`` are known anyway.
    """
    saves = list(_saves(parts))
    agreeing = [s for s in saves if s.agrees]
    if len(saves) > 1 and not agreeing:
        return
    for s in saves:
        if s.agrees or not {s.optimizer.path, s.schedule.path}.isdisjoint(told):
            continue
        known = [rate for rate in (s.has, s.set_to) if any(_same(rate, o.has) for o in agreeing)]
        odd = s.optimizer if s.has in known else s.schedule
        text = f"the schedule has set a learning rate of {s.set_to:g}, the optimizer beside it has {s.has:g}"
        yield odd.path, finding("step-mismatch", text, severity=Severity.ERROR if known else Severity.WARNING)


def _saves(parts: Sequence[tuple[Part, Report]]) -> Iterator[_Save]:
    homes: dict[str, tuple[list[tuple[Part, Report]], list[tuple[Part, Report]]]] = {}
    for p, r in parts:
        follows = "last_epoch" in r.metadata
        if p.home and (follows or (p.role in _OPTIMIZERS and RATE in r.metadata)):
            homes.setdefault(p.home, ([], []))[follows].append((p, r))
    for optimizers, schedules in homes.values():
        if len(optimizers) != 1 or len(schedules) != 1:
            continue
        (optimizer, of_one), (schedule, of_other) = optimizers[0], schedules[0]
        has, set_to = of_one.metadata.get(RATE), of_other.metadata.get(RATE)
        if isinstance(has, float) and isinstance(set_to, float):
            yield _Save(optimizer, schedule, has, set_to)
