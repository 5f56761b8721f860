"""Files that were saved in another way than the rest of their run:
other tensors, another mode.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

from ckpt_tools.crosscheck.consistency import Changed, same_tensors
from ckpt_tools.findings import finding
from ckpt_tools.formats import format_of
from ckpt_tools.formats.common.counters import is_optimizer_state
from ckpt_tools.inspection.check import prefix_signature
from ckpt_tools.model import ranges
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Level, Report
from ckpt_tools.reading.session import Session

_COUNTS = re.compile(r"[./]state[./]\d+[./]step$")
"""The updates that an optimizer has made of a parameter (torch/optim/adam.py)."""

_TENSORS = 64
"""Tensors of a file that are named, at most."""

Rows = Sequence[tuple[Part, Report]]


def shown(p: Part) -> str:
    """Return its path below the directory of the run."""
    return p.path.removeprefix(f"{p.base}/")


def tensor_names(of: Collection[str]) -> str:
    """Return names of tensors, those that differ by one number together; of very many the first."""
    first = sorted(of)[:_TENSORS]
    more = f" and {len(of) - len(first):,} more" if len(of) > len(first) else ""
    return ranges.names(name[:200] for name in first) + more


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


def differs(row: Changed, s: Session) -> Iterator[Finding]:
    """The same of a part whose siblings may have other tensors: only that it was cut counts then. So it is of
    one that was saved before the optimizer's first step.
    """
    found = changed(row.odd, row.typical, s)
    alike = same_tensors(row.odd, s.layouts.of(row.odd))
    if found.severity is Severity.ERROR or (alike and not (row.first and _before_first_update(row, s))):
        yield found


def _before_first_update(row: Changed, s: Session) -> bool:
    """Whether all that it lacks is what an optimizer's first step makes (torch/optim/optimizer.py: ``state``
    is empty until then).
    """
    both = (s.inspect(p.path, Level.STRUCTURE)[1] for p in (row.odd, row.typical))
    mine, theirs = ({t.name for t in anatomy.tensors} for anatomy in both)
    made = all(is_optimizer_state(name) or _COUNTS.search(name) for name in theirs - mine)
    return mine < theirs and made


def changed(odd: Part, typical: Part, s: Session) -> Finding:
    """A part whose tensors differ from its siblings'.

    An error when it is a sibling cut off after some record, which no format of its own shows.
    """
    a, b = s.known(odd), s.known(typical)
    if a.tensors < b.tensors and a.format is not None and format_of(a.format).hides_cuts:
        formats = s.layouts.piece_of(typical).formats
        if prefix_signature(typical.path, formats, a.tensors) == a.signature:
            whole = f"{shown(typical)} ({b.tensors} tensors)"
            text = f"it ends after {a.tensors} tensors, exactly like {whole} cut between two records"
            return finding("signature-changed", text, severity=Severity.ERROR)
    return finding("signature-changed", f"unlike {shown(typical)}: {_differences(odd, typical, s)}")


def _differences(odd: Part, typical: Part, s: Session) -> str:
    """Which tensors are others, in words."""
    both = (
        s.inspect(p.path, Level.STRUCTURE, expect=s.layouts.piece_of(p).formats)[1] for p in (odd, typical)
    )
    mine, theirs = ({t.name: t for t in anatomy.tensors} for anatomy in both)
    same = mine.keys() & theirs.keys()
    rows = (
        ("it lacks", theirs.keys() - mine.keys()),
        ("it has besides", mine.keys() - theirs.keys()),
        ("of another shape:", {n for n in same if mine[n].shape != theirs[n].shape}),
        ("of another type:", {n for n in same if mine[n].dtype != theirs[n].dtype}),
    )
    return "; ".join(f"{what} {tensor_names(which)}" for what, which in rows if which) or "in another order"
