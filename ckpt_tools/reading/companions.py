"""Files that each save writes over (``optim_NAME.ckpt``) beside saves with numbers: of which they are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.report import Level
from ckpt_tools.reading.session import Session

_TOGETHER_NS = 2_000_000_000
_RATE = 20_000_000
"""Bytes that a slow file system takes in a second: so long may lie between two files of one save."""


def settle_companions(s: Session) -> None:
    """Give what each save of a run writes over the place of the save that it was written with; what was
    written with none, or with several, is of none.
    """
    rolling = [p for p in s.found.parts if _is_written_over(s, p)]
    if not rolling:
        return
    saves: dict[object, list[Part]] = defaultdict(list)
    for p in s.found.parts:
        if p.kind is Kind.PERIODIC and _placed(p):
            saves[_run_of(p)].append(p)
    settled = {p.path: _of_its_save(p, s, saves[_run_of(p)]) for p in rolling}
    s.companions = [p for p in rolling if not _placed(settled[p.path])]
    for p in s.companions:
        s.make_bare(p)
    left_out = {p.path for p in s.companions}
    s.found.parts = [settled.get(p.path, p) for p in s.found.parts if p.path not in left_out]


def _is_written_over(s: Session, p: Part) -> bool:
    """Return True if each save of a run writes the file over, and its name tells of none."""
    alone = s.layouts.piece_of(p).rolling and not p.home and not _placed(p)
    return alone and not s.layouts.of(p).last_resort


def _of_its_save(p: Part, s: Session, saves: Sequence[Part]) -> Part:
    """The part with the place of the only save whose steps it tells, else of the only one of its time."""
    report = s.report(p, Level.STRUCTURE)
    if report.verdict in (Verdict.BROKEN, Verdict.UNKNOWN):
        return p
    told = s.layouts.of(p).steps(p, report.metadata)[0]
    with_it = [o for o in saves if told is not None and told in (o.step, _steps_of(o))]
    with_it = with_it or [o for o in saves if were_written_together(p, o)]
    nearest = min(with_it, key=lambda o: abs(o.mtime_ns - p.mtime_ns), default=None)
    if nearest is None or len({(o.step, o.epoch, o.step_in_epoch) for o in with_it}) > 1:
        return p
    return p._replace(
        step=nearest.step,
        epoch=nearest.epoch,
        step_in_epoch=nearest.step_in_epoch,
        generation=nearest.generation,
    )


def _steps_of(p: Part) -> int | None:
    """How many steps were done at the end of an epoch, where each has as many as the name says."""
    return p.epoch * p.step_in_epoch if p.epoch is not None and p.step_in_epoch is not None else None


def were_written_together(a: Part, b: Part) -> bool:
    """Whether two files may be of one save, as their times are in a copy."""
    apart = abs(a.mtime_ns - b.mtime_ns)
    return apart <= _TOGETHER_NS + max(a.size, b.size) * 1_000_000_000 // _RATE


def _placed(p: Part) -> bool:
    return (p.step, p.epoch) != (None, None)


def _run_of(p: Part) -> object:
    return p.layout, p.run, p.base, p.rank
