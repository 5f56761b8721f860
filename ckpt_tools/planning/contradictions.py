"""Whether the files of a candidate agree with their names, with each other, and with the run's other checkpoints."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import NamedTuple

from ckpt_tools.crosscheck import attempts, consistency
from ckpt_tools.crosscheck.duplicates import same_content
from ckpt_tools.crosscheck.neighbours import Neighbours
from ckpt_tools.crosscheck.unlike import changed
from ckpt_tools.crosscheck.writers import contradictions
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning.evidence import FileEvidence
from ckpt_tools.planning.run import Candidate, Run
from ckpt_tools.reading.session import Session

_NEAR = 3
"""Checkpoints, nearest in time, to compare steps and tensors with."""
_NEAR_FILES = 64
"""Structure passes spent at most on their files."""
_SIZES_COMPARED = 4096
"""Files of other checkpoints, at least, whose sizes are compared with those of the planned files."""


class Contradiction(NamedTuple):
    """What is wrong with a file beside others. ``twin`` is a file of another step that may as well be the copy."""

    path: str
    finding: Finding
    twin: Part | None = None


class Contradictions:
    """Looks for them in one run."""

    def __init__(self, session: Session, selection: Selection, run: Run, evidence: FileEvidence) -> None:
        self.session, self.selection, self.run, self.evidence = session, selection, run, evidence

    @cached_property
    def _same_kind(self) -> Neighbours:
        return Neighbours(self.run.checkpoints, lambda o: (o.layout, o.run, o.kind))

    @cached_property
    def _not_empty(self) -> Neighbours:
        with_content = [o for o in self.run.checkpoints if any(p.size > 0 for p in o.parts)]
        return Neighbours(with_content, lambda o: (o.layout, o.run))

    def of(self, candidate: Candidate, planned: Sequence[Part]) -> Iterator[Contradiction]:
        """Steps, writers and tensors of the planned files: of all files where a checkpoint always has all of them."""
        c, reports, layouts = candidate.whole, self.session.reports, self.session.layouts
        parts = c.parts if layouts.of(c).committed else planned
        self._inspect(parts)
        neighbours = self._neighbours(candidate, {p.rank for p in parts})
        self._inspect(neighbours)
        compared = [*parts, *(p for p in neighbours if reports[p.path].verdict is not Verdict.BROKEN)]
        mine = {p.path for p in parts}
        found = [
            *consistency.consistency(compared, reports, layouts),
            *contradictions([(p, reports[p.path]) for p in compared], layouts),
            *attempts.unlike(parts, reports),
        ]
        yield from (Contradiction(path, f) for path, f in found if path in mine)
        if self.selection.level > Level.STRUCTURE:
            # of two equal files the one that contradicts its name is the copy
            wrong = {path for path, f in found if f.severity is Severity.ERROR}
            sound = [p for p in compared if p.path not in wrong]
            elsewhere = self._elsewhere(candidate, {p.path for p in compared})
            copies = same_content(sound, self.session, elsewhere)
            yield from (Contradiction(*row) for row in copies if row[0] in mine)
        unlike = self.evidence.unlike_replicas(c)
        for odd, typical in (*consistency.signatures(compared, reports, layouts), *unlike):
            if odd.path in mine:
                yield Contradiction(odd.path, changed(odd, typical, self.session))

    def _inspect(self, parts: Sequence[Part]) -> None:
        for p in parts:
            self.session.report(p, self.evidence.level)

    def _neighbours(self, candidate: Candidate, ranks: Collection[int | None]) -> list[Part]:
        """The same ranks' files in checkpoints of the same kind, the nearest in time first."""
        c, mine = candidate.whole, candidate.named.key
        others = (o for o in self._same_kind.around(c, (c.layout, c.run, c.kind)) if o.key != mine)
        near = [p for o in islice(others, _NEAR) for p in o.parts if p.rank in ranks and p.size > 0]
        return near[:_NEAR_FILES]

    def _elsewhere(self, candidate: Candidate, known: Collection[str]) -> list[Part]:
        """Files of the run's other checkpoints, nearest first, that may be what a planned file is a copy of."""
        c, mine = candidate.whole, candidate.named.key
        enough, out = max(_SIZES_COMPARED, 4 * len(c.parts)), list[Part]()
        for other in self._not_empty.around(c, (c.layout, c.run)):
            if other.key != mine:
                out += (p for p in other.parts if p.path not in known and p.size > 0)
            if len(out) > enough:
                break
        return out
