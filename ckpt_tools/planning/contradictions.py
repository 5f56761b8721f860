"""Whether the files of a candidate agree with their names, each other, and the run's other checkpoints."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import NamedTuple

from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning.engine import FileContents, find_hits
from ckpt_tools.planning.equal_files import Copied, EqualFiles
from ckpt_tools.planning.evidence import FileEvidence
from ckpt_tools.planning.facts import SavesFacts
from ckpt_tools.planning.neighbours import Neighbours
from ckpt_tools.planning.rules.rule import finding_of
from ckpt_tools.planning.rules.save import signature_changed
from ckpt_tools.planning.run import Candidate, Run
from ckpt_tools.reading.session import Session

_NEAR = 3
"""Checkpoints, nearest in time, to compare steps and tensors with."""
_NEAR_FILES = 64
"""Structure passes spent at most on their files."""
_SIZES_COMPARED = 4096
"""Files of other checkpoints, at least, whose sizes are compared with those of the planned files."""


class Contradiction(NamedTuple):
    """What is wrong with a file beside others; ``twin``: one of another step that may as well be the copy."""

    path: str
    finding: Finding
    twin: Part | None = None


class Contradictions:
    """Looks for them in one run."""

    def __init__(self, session: Session, selection: Selection, run: Run, evidence: FileEvidence) -> None:
        self.session, self.selection, self.run, self.evidence = session, selection, run, evidence
        self.layouts = session.layouts
        self._equal = EqualFiles(session)

    @cached_property
    def _by_kind(self) -> Neighbours:
        return Neighbours(self.run.checkpoints, lambda o: (o.layout, o.run, o.kind))

    @cached_property
    def _not_empty(self) -> Neighbours:
        with_content = [o for o in self.run.checkpoints if any(p.size > 0 for p in o.parts)]
        return Neighbours(with_content, lambda o: (o.layout, o.run))

    def of(self, candidate: Candidate, planned: Sequence[Part]) -> Iterator[Contradiction]:
        """Of the planned files; of all where a finished checkpoint has whatever its writer meant to write."""
        c = candidate.whole
        parts = c.parts if self.layouts.of(c).committed else planned
        mine = {p.path for p in parts}
        compared = self._compared(candidate, parts)
        facts = self._facts(c, compared)
        reported = [(hit.path, f) for hit, f in find_hits(facts) if hit.of_file]
        yield from (Contradiction(path, f) for path, f in reported if path in mine)
        if self.selection.level > Level.STRUCTURE or self.selection.compare_only:
            wrong = {path for path, f in reported if f.severity is Severity.ERROR}
            copies = self._copies(candidate, compared, wrong)
            yield from (Contradiction(o.path, o.finding, o.rival) for o in copies if o.path in mine)
        yield from self._unlike(c, mine, facts)

    def _facts(self, c: Checkpoint, compared: Sequence[Part]) -> SavesFacts:
        run = (o.order for o in self.run.checkpoints if (o.layout, o.run) == (c.layout, c.run))
        return SavesFacts(
            layouts=self.layouts,
            saves=(c,),
            files=compared,
            reports=self.session.reports,
            contents=FileContents(self.session),
            expected=self.run.expected,
            first=min((c.order, *run)),
        )

    def _unlike(self, c: Checkpoint, mine: set[str], facts: SavesFacts) -> Iterator[Contradiction]:
        """Those of ``mine`` that hold other tensors than most of their replicas, as the caller tells them."""
        for odd, typical in self.evidence.unlike_replicas(c):
            if odd.path in mine:
                hit = signature_changed.compare(odd, typical, facts)
                yield Contradiction(odd.path, finding_of(signature_changed.RULE, hit))

    def _compared(self, candidate: Candidate, parts: Sequence[Part]) -> list[Part]:
        """The files themselves, and the sound ones of the same ranks in checkpoints near in time."""
        self._inspect(parts)
        ranks, kind = {p.rank for p in parts}, candidate.whole.kind
        near = self._neighbours(candidate, ranks, kind)
        if kind is Kind.DYING_GASP:
            near += self._neighbours(candidate, ranks, Kind.PERIODIC)
        return [*parts, *self._sound(near)]

    def _sound(self, parts: Sequence[Part]) -> list[Part]:
        self._inspect(parts)
        return [p for p in parts if self.session.known(p).verdict is not Verdict.BROKEN]

    def _copies(
        self, candidate: Candidate, compared: Sequence[Part], wrong: Collection[str]
    ) -> Iterable[Copied]:
        """Files with the bytes of another; of two equal ones the one that is ``wrong`` anyway is the copy."""
        sound = [self._placed(p) for p in compared if p.path not in wrong]
        elsewhere = self._elsewhere(candidate, {p.path for p in compared})
        return self._equal.find_copies(sound, list(map(self._placed, elsewhere)))

    @cached_property
    def _told_inside(self) -> dict[str, int]:
        """By their paths, the steps of directories whose names tell none."""
        saves = (c for c in self.run.checkpoints if c.step is not None and c.epoch is None and c.parts)
        return {c.parts[0].home: c.step for c in saves if c.step is not None and c.parts[0].step is None}

    def _placed(self, p: Part) -> Part:
        """A file of such a directory with the step that another one there tells."""
        if (
            p.step is None
            and p.epoch is None
            and p.home
            and (step := self._told_inside.get(p.home)) is not None
        ):
            return p._replace(step=step)
        return p

    def _inspect(self, parts: Sequence[Part]) -> None:
        for p in parts:
            self.session.report(p, self.evidence.level)

    def _neighbours(self, candidate: Candidate, ranks: Collection[int | None], kind: Kind) -> list[Part]:
        """The same ranks' files in checkpoints of a kind, the nearest in time first."""
        c, mine = candidate.whole, candidate.named.key
        others = (o for o in self._by_kind.around(c, (c.layout, c.run, kind)) if o.key != mine)
        near = [p for o in islice(others, _NEAR) for p in o.parts if p.rank in ranks and p.size > 0]
        return near[:_NEAR_FILES]

    def _elsewhere(self, candidate: Candidate, known: Collection[str]) -> list[Part]:
        """Files of the run's other checkpoints, nearest first, that a planned file may be a copy of."""
        c, mine = candidate.whole, candidate.named.key
        enough, out = max(_SIZES_COMPARED, 4 * len(c.parts)), list[Part]()
        for other in self._not_empty.around(c, (c.layout, c.run)):
            if other.key != mine:
                out += (p for p in other.parts if p.path not in known and p.size >= 0)
            if len(out) > enough:
                break
        return out
