"""Files that were saved in another way than the rest of their run:
other tensors, another mode.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from ckpt_tools.findings import finding
from ckpt_tools.formats import format_of
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Report

Rows = Sequence[tuple[Part, Report]]


def unlike_run(rows: Rows) -> Iterator[tuple[str, Finding]]:
    """(path, finding) for the files of one run that most of its other files show to be odd."""
    formats = defaultdict[str, list[tuple[Part, Report]]](list)
    for part, report in rows:
        if report.format is not None:
            formats[report.format].append((part, report))
    for name, same in formats.items():
        yield from format_of(name).crosscheck(same)
    yield from _modes(rows)


def _modes(rows: Rows) -> Iterator[tuple[str, Finding]]:
    """Files without the mode that their framework gives a finished file: copied, or cut."""
    modes = defaultdict[int, list[tuple[Part, Report]]](list)
    for part, report in rows:
        if report.format is not None and (mode := format_of(report.format).final_mode) is not None:
            modes[mode].append((part, report))
    for final, same in modes.items():
        without = [(part, report) for part, report in same if report.mode != final]
        if 2 * len(without) < len(same):
            for part, report in without:
                text = f"its mode is {report.mode:04o}, that of the run's other files {final:04o}"
                yield part.path, finding("mode-not-final", text)
