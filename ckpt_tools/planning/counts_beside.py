"""What files that no layout loads count, beside those of a save that only its name places: a training loop's
own ``state.json`` in each of its directories.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from os.path import basename, dirname

from ckpt_tools.findings import finding
from ckpt_tools.layouts.common import loop_counters
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Level, Report
from ckpt_tools.reading.session import Session

_MOST = 512
"""Files that are asked."""


def counts_of_another(
    s: Session, c: Checkpoint, unplaced: Collection[str], texts: Mapping[str, Report]
) -> Iterator[Finding]:
    """Warnings about ``texts`` beside the files of a choice that tell another step than it, where in every
    other save the one of that name tells the save's own: it was copied from elsewhere.
    """
    ours = [p for p in s.parts if (p.layout, p.run) == (c.layout, c.run)]
    steps = {p.home: p.step for p in ours if p.home and p.step is not None}
    chosen = {p.home for p in c.parts} & steps.keys()
    elsewhere = steps.keys() - chosen
    for path, report in texts.items():
        said = _told(report)
        if dirname(path) not in chosen or said is None or said == steps[dirname(path)]:
            continue
        like = [o for o in unplaced if basename(o) == basename(path) and dirname(o) in elsewhere]
        read = {o: _told(s.inspect(o, Level.STRUCTURE)[0]) for o in like[:_MOST]}
        others = {o: told for o, told in read.items() if told is not None}
        if others and all(told == steps[dirname(o)] for o, told in others.items()):
            text = f"it tells step {said}, where in each other save it tells the step of its directory"
            yield finding("step-mismatch", text, path=path, severity=Severity.WARNING)


def _told(report: Report) -> int | None:
    return loop_counters.number(report.metadata, loop_counters.STEPS)
