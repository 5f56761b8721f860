"""Whether the files of a candidate agree with their names, each other, and the run's other checkpoints."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from itertools import islice

from ckpt_tools.model.checkpoint import Order
from ckpt_tools.model.finding import Severity, Verdict
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning.engine import facts_of, find_hits
from ckpt_tools.planning.equal_files import Contradiction, EqualFiles
from ckpt_tools.planning.evidence import FileEvidence
from ckpt_tools.planning.rules.rule import finding_of
from ckpt_tools.planning.rules.save import signature_changed
from ckpt_tools.planning.run import Candidate, Neighbours, Run
from ckpt_tools.reading.session import Session

_NEAR = 3
"""Checkpoints, nearest in time, to compare steps and tensors with."""
_NEAR_FILES = 64
"""Structure passes spent at most on their files."""
_SIZES_COMPARED = 4096
"""Files of other checkpoints, at least, whose sizes are compared with those of the planned files."""


class Contradictions:
    """Looks for them in one run."""

    def __init__(self, session: Session, selection: Selection, run: Run, evidence: FileEvidence) -> None:
        self.session, self.selection, self.run, self.evidence = session, selection, run, evidence
        self._equal = EqualFiles(session)

    @cached_property
    def _by_kind(self) -> Neighbours:
        return Neighbours(self.run.checkpoints, lambda o: (o.layout, o.run, o.kind))

    @cached_property
    def _not_empty(self) -> Neighbours:
        with_content = [o for o in self.run.checkpoints if any(p.size > 0 for p in o.parts)]
        return Neighbours(with_content, lambda o: (o.layout, o.run))

    @cached_property
    def _told_inside(self) -> dict[str, int]:
        """By their paths, the steps of directories whose names tell none."""
        saves = (c for c in self.run.checkpoints if c.step is not None and c.epoch is None and c.parts)
        return {c.parts[0].home: c.step for c in saves if c.step is not None and c.parts[0].step is None}

    @cached_property
    def _first(self) -> dict[tuple[str, str], Order]:
        """The order of the first checkpoint of each run."""
        in_order = sorted(self.run.checkpoints, key=lambda o: o.order, reverse=True)
        return {(o.layout, o.run): o.order for o in in_order}

    def of(self, candidate: Candidate, planned: Sequence[Part]) -> Iterator[Contradiction]:
        """Of the planned files; of all where a finished checkpoint has whatever its writer meant to write.
        Files may hold other tensors than most of their replicas, as the caller tells these.
        """
        c = candidate.whole
        parts = c.parts if self.session.layouts.of(c).committed else planned
        mine = {p.path for p in parts}
        compared = self._compared(candidate, parts)
        first = self._first.get((c.layout, c.run), c.order)
        facts = facts_of(self.session, (c,), self.run.expected, compared, min(c.order, first))
        reported = [Contradiction(hit.path, f) for hit, f in find_hits(facts) if hit.of_file]
        yield from (row for row in reported if row.path in mine)
        if self.selection.level > Level.STRUCTURE or self.selection.compare_only:
            wrong = {row.path for row in reported if row.finding.severity is Severity.ERROR}
            yield from (row for row in self._copies(candidate, compared, wrong) if row.path in mine)
        for odd, typical in self.evidence.unlike_replicas(c):
            if odd.path in mine:
                hit = signature_changed.compare(odd, typical, facts)
                yield Contradiction(odd.path, finding_of(signature_changed.RULE, hit))

    def _compared(self, candidate: Candidate, parts: Sequence[Part]) -> list[Part]:
        """The files themselves, and the sound ones of the same ranks in checkpoints near in time."""
        c, mine, ranks = candidate.whole, candidate.named.key, {p.rank for p in parts}
        near = list[Part]()
        for kind in (c.kind, Kind.PERIODIC) if c.kind is Kind.DYING_GASP else (c.kind,):
            others = (o for o in self._by_kind.around(c, (c.layout, c.run, kind)) if o.key != mine)
            files = (p for o in islice(others, _NEAR) for p in o.parts if p.rank in ranks and p.size > 0)
            near += islice(files, _NEAR_FILES)
        for p in (*parts, *near):
            self.session.report(p, self.evidence.level)
        return [*parts, *(p for p in near if self.session.known(p).verdict is not Verdict.BROKEN)]

    def _copies(
        self, candidate: Candidate, compared: Sequence[Part], wrong: Collection[str]
    ) -> Iterator[Contradiction]:
        """Files with the bytes of another, planned or of the run's other checkpoints, nearest first; of two
        equal ones the one that is ``wrong`` anyway is the copy.
        """
        c, known = candidate.whole, {p.path for p in compared}
        enough, elsewhere = max(_SIZES_COMPARED, 4 * len(c.parts)), list[Part]()
        for other in self._not_empty.around(c, (c.layout, c.run)):
            if other.key != candidate.named.key:
                elsewhere += (p for p in other.parts if p.path not in known and p.size >= 0)
            if len(elsewhere) > enough:
                break
        sound = [self._placed(p) for p in compared if p.path not in wrong]
        return self._equal.find_copies(sound, list(map(self._placed, elsewhere)))

    def _placed(self, p: Part) -> Part:
        """A file in a directory whose name tells no step, with the one that another file there tells."""
        step = self._told_inside.get(p.home) if p.home and p.step is None and p.epoch is None else None
        return p if step is None else p._replace(step=step)
