"""What files that no layout loads count, beside those of a save that only its name places: a training loop's
own ``state.json`` in each of its directories.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
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
    steps = _steps(s, c)
    chosen = {p.home for p in c.parts} & steps.keys()
    others = steps.keys() - chosen
    elsewhere = [path for path in unplaced if dirname(path) in others]
    for path in (path for path in texts if dirname(path) in chosen):
        said = _told(texts[path])
        like = (o for o in elsewhere if basename(o) == basename(path))
        if said not in (None, steps[dirname(path)]) and _tell_their_own(s, islice(like, _MOST), steps):
            text = f"it tells step {said}, where in each other save it tells the step of its directory"
            yield finding("step-mismatch", text, path=path, severity=Severity.WARNING)


def _steps(s: Session, c: Checkpoint) -> Mapping[str, int]:
    """The step of each directory of the run's saves."""
    ours = [p for p in s.parts if (p.layout, p.run) == (c.layout, c.run)]
    return {p.home: p.step for p in ours if p.home and p.step is not None}


def _tell_their_own(s: Session, texts: Iterable[str], steps: Mapping[str, int]) -> bool:
    """Whether those that tell a step, one at least, tell that of their directory."""
    told = [(_told(s.inspect(path, Level.STRUCTURE)[0]), steps[dirname(path)]) for path in texts]
    own = {said == step for said, step in told if said is not None}
    return own == {True}


def _told(report: Report) -> int | None:
    return loop_counters.number(report.metadata, loop_counters.STEPS)
