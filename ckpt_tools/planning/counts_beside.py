"""What files that no layout loads count, beside those of a save that only its name places: a training loop's
own ``state.json`` in each of its directories.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ckpt_tools.findings import finding
from ckpt_tools.layouts.common import loop_counters
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Level
from ckpt_tools.reading.session import Session

_MOST = 512
"""Files that are asked."""


class _Counted(NamedTuple):
    """A file in the directory of a save of this ``step``, and the one that it tells."""

    home: str
    step: int
    path: str
    said: int


def counts_of_another(s: Session, c: Checkpoint) -> Iterator[Finding]:
    """Warnings about files beside those of a choice that tell another step than it, where in every other save
    the file of that name tells the save's own: it was copied from elsewhere.
    """
    chosen = {p.home for p in c.parts}
    for rows in _by_name(s, c).values():
        others = [row for row in rows if row.home not in chosen]
        if others and all(row.said == row.step for row in others):
            yield from (_of_another(row) for row in rows if row.home in chosen and row.said != row.step)


def _by_name(s: Session, c: Checkpoint) -> Mapping[str, list[_Counted]]:
    """Files beside those of the choice, and those of their names beside the other saves."""
    homes = {p.home for p in c.parts}
    ours = [p for p in s.parts if (p.layout, p.run) == (c.layout, c.run)]
    steps = {p.home: p.step for p in ours if p.home and p.step is not None}
    rows: dict[str, list[_Counted]] = defaultdict(list)
    files = [(*os.path.split(file.path), file.path) for file in s.found.bare]
    chosen = {name for home, name, _ in files if home in homes}
    for home, name, path in [row for row in files if row[0] in steps and row[1] in chosen][:_MOST]:
        if (said := _told(s, path)) is not None:
            rows[name].append(_Counted(home, steps[home], path, said))
    return rows


def _told(s: Session, path: str) -> int | None:
    report, _ = s.inspect(path, Level.STRUCTURE)
    return loop_counters.number(report.metadata, loop_counters.STEPS)


def _of_another(row: _Counted) -> Finding:
    text = f"it tells step {row.said}, where in each other save it tells the step of its directory"
    return finding("step-mismatch", text, path=row.path, severity=Severity.WARNING)
