"""One candidate in, a judgement out: complete, consistent and sound? The judge reads only what the plan would load."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ckpt_tools import agreement, completeness
from ckpt_tools.choose import Judgement
from ckpt_tools.digest import tensor_digests
from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.layouts import BY_NAME
from ckpt_tools.model import Checkpoint, Finding, Level, LoadPlan, Part, Rejected, Resume, Severity, Verdict
from ckpt_tools.pipeline.across import changed
from ckpt_tools.pipeline.ahead import by_crowd
from ckpt_tools.pipeline.crowd import LEAST
from ckpt_tools.pipeline.duplicates import same_content
from ckpt_tools.pipeline.session import Session
from ckpt_tools.plan import Assignment, assign, mismatched
from ckpt_tools.question import Selection
from ckpt_tools.topology import Topology

_NEIGHBOURS = 64
"""Structure passes spent at most on the files of neighbouring steps, to compare steps and tensors with."""


def _blind(findings: Sequence[Finding], bad: Mapping[str, Sequence[Finding]]) -> str | None:
    """A file that could not be looked at, when nothing else keeps the candidate from being planned: what is damaged is so whatever the rest holds."""
    unseen = {path for path, fs in bad.items() if any(f.code in ("unreadable", "in-use") for f in fs)}
    why = [f for f in findings if f.severity is Severity.ERROR and f.code != "missing-rank"]
    return next((f.path for f in why if f.path in unseen), None) if all(f.path in unseen for f in why) else None


class Judge:
    """``assignments`` holds, by ``id`` of an accepted checkpoint, what each rank would load from it."""

    def __init__(
        self,
        session: Session,
        checkpoints: Sequence[Checkpoint],
        topology: Topology,
        saved: int | None,
        selection: Selection,
        run: completeness.Expected,
    ) -> None:
        self.session, self.checkpoints, self.topology, self.saved = session, checkpoints, topology, saved
        self.selection, self.expected = selection, run
        self.assignments: dict[int, Assignment] = {}
        self.names = min(Level.STRUCTURE, selection.level)  # at presence the names must do
        self.named: Checkpoint | None = None  # the candidate as its names show it, without what its indexes add

    def judge(self, c: Checkpoint) -> Judgement:
        """Complete, consistent and sound? Reads only what the plan would load, and replaces a bad part by a replica before giving up."""
        s, bad, before = self.session, dict[str, Sequence[Finding]](), self.session.reader.bytes_verified
        self.named, c = c, self.session.members(c)
        everyone = all(BY_NAME[c.layout].piece(p.piece).shared for p in c.parts)  # then nobody asks for the file of one rank
        absent = [f for f in completeness.missing(c, self.expected) if f.code == "missing-part" or (everyone and f.severity is Severity.ERROR)]
        if absent:
            return Judgement(False, tuple(absent))
        read = False
        while True:
            differences = self._differences if self.selection.prove_replicas else None
            a = assign(c, self.topology, self.selection, bad, self._signature, lambda rank_, part: self._evidence(c, rank_, part, bad), differences)
            if a.groupless and self.selection.ranks is None:  # else another node may have it
                raise UsageError(
                    f"{a.findings[0].message} ({c.path})",
                    "say --replica-groups '0,2;1,3' (or FILE), --strategy-dir DIR, parallel sizes such as --tp, or --replicas all",
                )
            clash = mismatched(c, a, self.topology, completeness.named_world(c) or self.saved) if not bad else None
            if clash:
                raise UsageError(
                    f"topology-mismatch: {clash.message}",
                    "start with the saved world size, or name the replicas with --replica-groups or --replicas all",
                )
            if any(f.severity is Severity.ERROR for f in a.findings):
                blind = _blind(a.findings, bad)
                if blind is not None and not self.selection.skip_unreadable:
                    # not having looked is no reason to go back in time: the file may be whole
                    empty = LoadPlan(s.root, None, Resume(None), rejected=(Rejected(c, tuple(a.findings)),), bytes_verified=s.reader.bytes_verified)
                    raise CannotLook(
                        f"{blind}: {bad[blind][0].message}", "make it readable, or pass --skip-unreadable to fall back past it", plan=empty
                    )
                return Judgement(False, tuple(a.findings), read)
            wrong: dict[str, list[Finding]] = {}
            self._ahead(a.parts)
            for part in a.parts:
                report = s.report(part, self.names)
                if report.verdict not in (Verdict.BROKEN, Verdict.UNKNOWN) and self.selection.level > Level.STRUCTURE:
                    report, read = s.report(part, self.selection.level), True
                piece = BY_NAME[part.layout].piece(part.piece)
                alien = self.names and piece.formats and report.format not in piece.formats and part.role == piece.role
                if report.verdict in (Verdict.BROKEN, Verdict.UNKNOWN) or alien:
                    # in-use and unreadable are warnings of a file, but what keeps a candidate from being planned is an error
                    wrong[part.path] = [replace(f, severity=Severity.ERROR) for f in report.findings if f.severity is not Severity.NOTE]
            for path, f in self._contradictions(c, a):
                if f.severity is Severity.ERROR:
                    wrong.setdefault(path, []).append(f)
                else:
                    a.findings.append(replace(f, path=path))
            pieces = [s.places[home] for home in {os.path.dirname(p.path) for p in a.parts} if home in s.places] if not wrong else []
            if pieces:
                from ckpt_tools.formats._dcp_hf import together

                if gaps := [replace(f, path=c.path) for files in pieces for f in together(files.values())]:
                    return Judgement(False, tuple(gaps), read)
            bad.update(wrong)
            if not any(part.path in bad for part in a.parts):  # what is wrong lies in files that nobody loads
                self.assignments[id(self.named)] = a
                return Judgement(True, tuple(a.findings), read or (s.reader.bytes_verified > before and self.selection.level > Level.STRUCTURE))

    def _ahead(self, parts: Sequence[Part]) -> None:
        """Many files are read by several processes at once: their contents only if nothing is wrong with their structure."""
        s, level = self.session, self.selection.level
        by_crowd(s, parts, self.names)
        if level > Level.STRUCTURE and len(parts) >= LEAST:
            by_crowd(s, [p for p in parts if s.report(p, self.names).verdict not in (Verdict.BROKEN, Verdict.UNKNOWN)], level)

    def _contradictions(self, c: Checkpoint, a: Assignment) -> Iterator[tuple[str, Finding]]:
        """Steps and tensors of the planned parts against each other and against the neighbouring steps of the run."""
        parts = list(c.parts) if BY_NAME[c.layout].committed else a.parts
        mine = {p.path for p in parts}
        for p in parts:
            self.session.report(p, self.names)
        ranks = {p.rank for p in parts}
        same = [o for o in self.checkpoints if o is not self.named and (o.layout, o.run, o.kind) == (c.layout, c.run, c.kind)]
        near = sorted(same, key=lambda o: abs(o.mtime_ns - c.mtime_ns))[:3]
        neighbours = [p for o in near for p in o.parts if p.rank in ranks and p.size > 0][:_NEIGHBOURS]
        for p in neighbours:
            self.session.report(p, self.names)
        compared = [*parts, *(p for p in neighbours if self.session.reports[p.path].verdict is not Verdict.BROKEN)]
        reports = self.session.reports
        said = list(agreement.consistency(compared, reports))
        yield from ((path, f) for path, f in said if path in mine)
        if self.selection.level > Level.STRUCTURE:
            wrong = {path for path, f in said if f.severity is Severity.ERROR}  # of two equal files the one that contradicts its name is the copy
            yield from ((path, f) for path, f in same_content([p for p in compared if p.path not in wrong], self.session) if path in mine)
        for odd, typical in (*agreement.signatures(compared, reports), *self._unlike_replicas(c)):
            if odd.path in mine:
                yield odd.path, changed(odd, typical, self.session)

    def _unlike_replicas(self, c: Checkpoint) -> Iterator[tuple[Part, Part]]:
        """(odd part, typical part) where members of a replica group hold other tensors than most: the only sign of a MindSpore file cut at a record border."""
        selection = self.selection
        for role in {p.role for p in c.parts}:
            told = selection.replica_groups.get(role, selection.replica_groups.get("")) or self.topology.strategy
            everyone = (tuple(range(self.topology.world_size)),) if selection.replicas_all else ()
            by_rank = {p.rank: p for p in c.parts if p.role == role and p.size > 0 and not BY_NAME[c.layout].piece(p.piece).sharded}
            for group in told or everyone:
                known = [(p, s) for rank in group if (p := by_rank.get(rank)) and (s := self._signature(p))]
                if len({s for _, s in known}) < 2:
                    continue
                counts = Counter(s for _, s in known)
                typical = max(known, key=lambda row: (counts[row[1]], self.session.reports[row[0].path].tensors))
                yield from ((p, typical[0]) for p, s in known if s != typical[1])

    def _signature(self, part: Part) -> str | None:
        report = self.session.report(part, self.names)
        return None if report.metadata.get("remove_redundancy") == "True" else report.signature

    def _differences(self, a: Part, b: Part) -> list[str]:
        """Tensors that differ between two members of a replica group; each rank keeps random numbers of its own."""
        s = self.session
        slow = s.reader.rate.took if s.reader.rate else None
        digests = [tensor_digests(p.path, s.examine(p.path, Level.STRUCTURE)[1], slow, jobs=s.jobs, io=s.reader.io) for p in (a, b)]
        names = digests[0].keys() | digests[1].keys()
        return sorted(n for n in names if "rng" not in n.lower() and digests[0].get(n) != digests[1].get(n))

    def _evidence(self, c: Checkpoint, rank_: int, part: Part, bad: Mapping[str, Sequence[Finding]]) -> Iterator[tuple[str, str]]:
        """Tensor signatures of what the rank itself wrote: in this checkpoint if it still can be read, else at the nearest other step."""
        others = sorted((o for o in self.checkpoints if o is not self.named and o.run == c.run), key=lambda o: abs(o.mtime_ns - c.mtime_ns))
        for o in (c, *others):
            for p in o.parts:
                cut = any(f.code == "signature-changed" for f in bad.get(p.path, ()))  # what is left of its tensors proves nothing
                if p.rank == rank_ and p.role == part.role and p.size > 0 and p.path != part.path and not cut:
                    report = self.session.report(p, self.names)
                    if report.signature and not any(f.code in ("truncated", "bad-header", "bad-pickle", "trailing-data") for f in report.findings):
                        yield f"rank {rank_}'s own file {os.path.relpath(p.path, self.session.root)}", report.signature
