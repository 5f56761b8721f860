"""What the files of a run tell about replicas: the signatures of their tensors, and the bytes of these."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from ckpt_tools.layouts.common.saved_by import saved_sizes, why_partial
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning.assign import Bad
from ckpt_tools.planning.neighbours import Neighbours
from ckpt_tools.planning.run import Candidate, Run
from ckpt_tools.planning.substitutes import OwnFile, Tensors
from ckpt_tools.reading.session import Session

_CUT = frozenset({"truncated", "bad-header", "bad-pickle", "trailing-data"})
"""Findings of a file whose list of tensors may have lost its end."""


class Odd(NamedTuple):
    """A file whose tensors are not those that they should be, and one that holds the usual ones."""

    part: Part
    typical: Part


class FileEvidence:
    """Answers from the files of one run. ``level`` is how deep they are inspected for it."""

    def __init__(self, session: Session, selection: Selection, run: Run) -> None:
        self.session, self.selection, self.run = session, selection, run
        self.level = min(Level.STRUCTURE, selection.level)  # at presence the names must do

    @cached_property
    def _same_run(self) -> Neighbours:
        return Neighbours(self.run.checkpoints, lambda c: c.run)

    def tensors(self, part: Part) -> Tensors:
        """What a file says about its tensors."""
        report = self.session.report(part, self.level)
        return Tensors(report.signature, why_partial(report.metadata), saved_sizes([report]))

    def differences(self, a: Part, b: Part) -> list[str]:
        """Tensors that differ between two replicas, apart from random numbers: each rank has its own."""
        from ckpt_tools.inspection.digests import tensor_digests  # only before a replica stands in

        s = self.session
        slow = s.reader.rate.took if s.reader.rate else None
        one, other = (
            tensor_digests(
                p.path, s.inspect(p.path, Level.STRUCTURE)[1], slow, jobs=s.options.jobs, io=s.reader.io
            )
            for p in (a, b)
        )
        names = (name for name in one.keys() | other.keys() if "rng" not in name.lower())
        return sorted(name for name in names if one.get(name) != other.get(name))

    def own_files(self, candidate: Candidate, bad: Bad, rank: int, part: Part) -> Iterator[OwnFile]:
        """What a rank wrote in the place of a part: in the candidate, else at the nearest other step.

        Of a file with ``signature-changed`` some tensors are gone, and what is left proves nothing.
        """
        for p in self._nearest(candidate):
            if p.rank != rank or p.role != part.role or p.size <= 0 or p.path == part.path:
                continue
            if any(f.code == "signature-changed" for f in bad.get(p.path, ())):
                continue
            report = self.session.report(p, self.level)
            if report.signature and not any(f.code in _CUT for f in report.findings):
                name = os.path.relpath(p.path, self.session.root)
                yield OwnFile(f"rank {rank}'s own file {name}", report.signature)

    def _nearest(self, candidate: Candidate) -> Iterator[Part]:
        """The parts of a candidate, and then those of the run's others, the nearest in time first."""
        c, mine = candidate.whole, candidate.named.key
        yield from c.parts
        for other in self._same_run.around(c, c.run):
            if other.key != mine:
                yield from other.parts

    def unlike_replicas(self, c: Checkpoint) -> Iterator[Odd]:
        """Replicas with other tensors than most: some files cut at a record's end show nothing else."""
        for role in {p.role for p in c.parts}:
            by_rank = {
                p.rank: p
                for p in c.parts
                if p.role == role and p.size > 0 and not self.session.layouts.piece_of(p).sharded
            }
            for group in self._told_groups(role):
                yield from self._unlike([p for rank in group if (p := by_rank.get(rank))])

    def _told_groups(self, role: str) -> Sequence[Sequence[int]]:
        """The replica groups that the caller or the strategy files tell; not those that a layout implies."""
        flags = self.selection.replica_groups
        everyone = (range(self.run.topology.world_size),) if self.selection.replicas_all else ()
        return flags.get(role, flags.get("")) or self.run.topology.strategy or everyone

    def _unlike(self, replicas: Sequence[Part]) -> Iterator[Odd]:
        """Those with other tensors than most; where as many have either, than the one with most tensors."""
        signatures = {p.path: self.tensors(p) for p in replicas}
        known = [p for p in replicas if signatures[p.path].signature and not signatures[p.path].partial]
        count = Counter(signatures[p.path].signature for p in known)
        if len(count) < 2:
            return
        reports = self.session.reports
        typical = max(known, key=lambda p: (count[signatures[p.path].signature], reports[p.path].tensors))
        usual = signatures[typical.path].signature
        yield from (Odd(p, typical) for p in known if signatures[p.path].signature != usual)
