"""What the files of a run tell about replicas: the signatures of their tensors, and the bytes of these."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain

from ckpt_tools.layouts.common.saved_by import saved_sizes, why_partial
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning.assign import Bad
from ckpt_tools.planning.facts import OwnFile, Tensors
from ckpt_tools.planning.run import Candidate, Run
from ckpt_tools.reading.session import Session

_CUT = frozenset({"truncated", "bad-header", "bad-pickle", "trailing-data"})
"""Findings of a file whose list of tensors may have lost its end."""


class FileEvidence:
    """Answers from the files of one run. ``level`` is how deep they are inspected for it."""

    def __init__(self, session: Session, selection: Selection, run: Run) -> None:
        self.session, self.selection, self.run = session, selection, run
        self.level = min(Level.STRUCTURE, selection.level)  # at presence the names must do

    def tensors(self, part: Part) -> Tensors:
        """Return what a file says about its tensors."""
        report = self.session.report(part, self.level)
        return Tensors(report.signature, why_partial(report.metadata), saved_sizes([report]))

    def differences(self, a: Part, b: Part) -> list[str]:
        """Return tensors that differ between two replicas, but no random numbers: each rank has its own."""
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
        """Yield what a rank wrote in the place of a part: in the candidate, else at the nearest other step.

        Of a file with ``signature-changed`` some tensors are gone, and what is left proves nothing.
        """
        c = candidate.whole
        others = (other.parts for other in self.run.find_nearest(candidate.named) if other.run == c.run)
        for p in chain(c.parts, chain.from_iterable(others)):
            if p.rank != rank or p.role != part.role or p.size <= 0 or p.path == part.path:
                continue
            if any(f.code == "signature-changed" for f in bad.get(p.path, ())):
                continue
            report = self.session.report(p, self.level)
            if report.signature and not any(f.code in _CUT for f in report.findings):
                name = os.path.relpath(p.path, self.session.root)
                yield OwnFile(f"rank {rank}'s own file {name}", report.signature)

    def unlike_replicas(self, c: Checkpoint) -> Iterator[tuple[Part, Part]]:
        """Yield replicas with other tensors than most, each with one that holds the usual ones: some files
        cut at a record's end show nothing else. Groups are those that the caller or the strategy files tell,
        and not those that a layout implies.
        """
        flags, topology = self.selection.replica_groups, self.run.topology
        everyone = (range(topology.world_size),) if self.selection.replicas_all else ()
        for role in {p.role for p in c.parts}:
            parts = [p for p in c.parts if p.role == role and p.size > 0]
            by_rank = {p.rank: p for p in parts if not self.session.layouts.piece_of(p).readers.sharded}
            groups = flags.get(role, flags.get("", ())) or topology.strategy or everyone
            for group in groups:
                yield from self._find_unlike([p for rank in group if (p := by_rank.get(rank))])

    def _find_unlike(self, replicas: Sequence[Part]) -> Iterator[tuple[Part, Part]]:
        """Yield those with other tensors than most; where as many have either, than the one with most."""
        told = ((p, self.tensors(p)) for p in replicas)
        known = [(p, t.signature) for p, t in told if t.signature and not t.partial]
        count = Counter(signature for _, signature in known)
        if len(count) > 1:
            reports = self.session.reports
            typical, usual = max(known, key=lambda row: (count[row[1]], reports[row[0].path].tensors))
            yield from ((p, typical) for p, signature in known if signature != usual)
