"""Which of several runs are runs of their own, between which only the caller can choose."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from ckpt_tools.findings import finding
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.part import Kind

Runs = Mapping[tuple[str, str], Sequence[Checkpoint]]
"""(layout, run) -> its finished checkpoints."""


def own_runs(runs: Runs) -> Runs:
    """Without the best so far where it has a directory of that name below its run, which goes on from its
    regular saves.
    """
    return {run: members for run, members in runs.items() if not _best_of_another(run, runs)}


def several(runs: Runs) -> bool:
    """Whether they are several: a lone run of dying gasps (as a fault-tolerance layer saves them) belongs to
    the lone periodic one beside it.
    """
    gasps = [run for run, members in runs.items() if all(c.kind is Kind.DYING_GASP for c in members)]
    return len(runs) > 1 and not (len(runs) == 2 and len(gasps) == 1)


def later_bests(runs: Runs, own: Runs) -> Iterator[Finding]:
    """Those that were left out, and are of a later step than all regular saves."""
    furthest = max((c.order for members in own.values() for c in members), default=())
    for run, members in runs.items():
        for c in members if run not in own else ():
            if c.order > furthest:
                text = "it is of a later step than the run's regular saves, but only the best so far"
                yield finding("passed-over", text, path=c.path, severity=Severity.WARNING)


def _best_of_another(run: tuple[str, str], runs: Runs) -> bool:
    if any(c.kind is not Kind.BEST for c in runs[run]):
        return False
    homes = {_directory(c) for c in runs[run]}
    above = {os.path.dirname(home) for home in homes}
    named = all(os.path.basename(home).lower().startswith("best") for home in homes)
    others = (c for other, members in runs.items() if other[0] == run[0] and other != run for c in members)
    return named and any(c.kind is Kind.PERIODIC and {_directory(c)} == above for c in others)


def _directory(c: Checkpoint) -> str:
    """The directory that a checkpoint lies in."""
    return os.path.dirname(c.parts[0].home or c.parts[0].path)
