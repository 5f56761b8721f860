"""Saves whose names are dates: when each was saved, whatever has become of the times of its files. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ckpt_tools.findings import finding
from ckpt_tools.layouts import Layout
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.frozen import replace

_ZONES = 900
"""Seconds between two zones of time that are neighbours, at least."""
_FAR = 26 * 3600
"""Seconds between the zones that are furthest apart."""
_EARLY, _LATE = 5, 60
"""Seconds before and after the date in its name in which a save is usually written."""


def in_order(saves: list[Checkpoint], layout: Layout) -> list[Checkpoint]:
    """The saves of a run, those with dates for names with its times in the order of these: one that was
    touched, or copied, was saved when its name says. Where all times fit the dates of clocks in other zones
    (a job that moved, the end of a summer), the times are right.
    """
    dates = _dates(saves, layout)
    if not dates:
        return saves
    rows = sorted(zip(dates, saves, strict=True), key=lambda row: (row[0], row[1].mtime_ns))
    times = sorted(c.mtime_ns for c in saves)
    if times == [c.mtime_ns for _, c in rows] and len({*times}) == len(times):
        return saves
    if all(_of_some_zone(date, c.mtime_ns) for date, c in rows):
        return saves
    at, before, out = 0, "", list[Checkpoint]()
    for mtime_ns, (date, c) in zip(times, rows, strict=True):
        at = max(mtime_ns, at + (date > before))
        before = date
        out.append(replace(c, mtime_ns=at))
    return out


def disagreement(saves: Sequence[Checkpoint], layout: Layout) -> Iterator[Finding]:
    """That a save whose name is not the latest date was written last."""
    if dates := _dates(saves, layout):
        newest = max(zip(dates, saves, strict=True), key=lambda row: row[0])
        last = max(saves, key=_written)
        if _written(last) > _written(newest[1]) and dates[saves.index(last)] < newest[0]:
            text = f"its files were written last, but by its name {newest[1].path} was saved later"
            yield finding("mtime-disagrees-with-step", text, path=last.path)


def _dates(saves: Sequence[Checkpoint], layout: Layout) -> list[str]:
    """The date in each name, which sorts as the dates do; none where not all are dates."""
    if layout.dated is None or len(saves) < 2:
        return []
    found = [layout.dated.fullmatch(c.path.rpartition("/")[2]) for c in saves]
    dates = [m[1] for m in found if m and _seconds(m[1]) is not None]
    return dates if len(dates) == len(saves) else []


def _seconds(date: str) -> int | None:
    """Since the epoch, as if its clock showed UTC; None where there is no such day."""
    import calendar  # few layouts have dates

    digits = "".join(re.findall(r"\d+", date))  # with or without anything between them
    year = int(digits[:4])
    month, day, hour, minute, second = (int(digits[i : i + 2]) for i in range(4, 14, 2))
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 62 and year > 0):
        return None
    return calendar.timegm((year, month, day, hour, minute, second))


def _written(c: Checkpoint) -> int:
    times = sorted(p.mtime_ns for p in c.parts)
    return times[len(times) // 2] if times else 0


def _of_some_zone(date: str, mtime_ns: int) -> bool:
    """Whether a save was written at its date by a clock of any zone."""
    away = mtime_ns // 1_000_000_000 - (_seconds(date) or 0)
    return abs(away) <= _FAR and (away + _EARLY) % _ZONES <= _EARLY + _LATE
