"""One candidate in, a judgement out: complete, consistent and sound? Only what would be loaded is read."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property, partial
from typing import NamedTuple

from ckpt_tools.errors import CkptError
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.frozen import replace
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import Assignment, LoadPlan, Rejected, Resume
from ckpt_tools.model.report import Level, Report
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning.assign import Bad, assign
from ckpt_tools.planning.candidate_questions import (
    ask_which_is_the_copy,
    require_no_share,
    require_one_model,
    require_one_name,
    require_trust,
)
from ckpt_tools.planning.choose import Judgement
from ckpt_tools.planning.contradictions import Contradictions
from ckpt_tools.planning.engine import find_gaps, find_hits
from ckpt_tools.planning.evidence import FileEvidence
from ckpt_tools.planning.facts import SavesFacts
from ckpt_tools.planning.hollow import hollow
from ckpt_tools.planning.lost_files import lost, unlike_list, without_model, zeroed
from ckpt_tools.planning.replicas import Groups
from ckpt_tools.planning.rules.save import groups_needed, missing_rank, mixed_counters, seal_unusable
from ckpt_tools.planning.rules.tree import could_not_look
from ckpt_tools.planning.run import Candidate, Run
from ckpt_tools.planning.saved_world import require_its_world
from ckpt_tools.planning.substitutes import Evidence
from ckpt_tools.reading.prefetch import LEAST, prefetch
from ckpt_tools.reading.session import Session
from ckpt_tools.reading.unseen import HINT, why_unseen

_UNUSABLE = (Verdict.BROKEN, Verdict.UNKNOWN)


class Judge:
    """Judges the candidates of one run, one at a time."""

    def __init__(self, session: Session, selection: Selection, run: Run) -> None:
        self.session, self.selection, self.run = session, selection, run
        self.groups = Groups(run.topology, selection)
        self.evidence = FileEvidence(session, selection, run)
        self.contradictions = Contradictions(session, selection, run, self.evidence)

    def judge(self, c: Checkpoint) -> Judgement:
        """Whether a checkpoint can be used, and what each rank would load of it."""
        return Review(self, c).judgement()

    def are_replicas(self, c: Checkpoint, assignment: Assignment) -> bool:
        """Return whether any rank may load what another does: each loads one file, the ranks are one replica
        group, and the files have the same tensors and tell the same step.
        """
        loads, parts, layout = assignment.loads, assignment.parts, self.session.layouts.of(c)
        if assignment.shared or any(len(files) != 1 for files in loads.values()):
            return False
        group = self.groups.of(min(loads), layout.piece(parts[0].piece))
        if group is None or not loads.keys() <= set(group.ranks):
            return False
        reports = [self.session.report(p, self.evidence.level) for p in parts]
        told = {(r.signature, layout.steps(p, r.metadata)) for p, r in zip(parts, reports, strict=True)}
        if len(told) > 1 or not reports[0].signature or self.evidence.tensors(parts[0]).partial:
            return False
        asked = parts[1:] if self.selection.prove_replicas else ()
        return not any(self.evidence.differences(parts[0], other) for other in asked)


class _Inspected(NamedTuple):
    """What the files to load are found to be: why some must not be loaded, and warnings about the others."""

    wrong: dict[str, list[Finding]]
    warnings: Sequence[Finding]


class Review:
    """One candidate under judgement.

    ``bad`` are files that must not be loaded, with why; of these ``concluded`` are wrong only beside
    others, and ``unseen`` could not be read when they were judged, even if they can be by now. ``twins``
    holds, for a finding about a file, the file of another step that may as well be the copy.
    """

    def __init__(self, judge: Judge, c: Checkpoint) -> None:
        self.session, self.selection, self.run = judge.session, judge.selection, judge.run
        self.groups, self.evidence, self.contradictions = judge.groups, judge.evidence, judge.contradictions
        self._verified_before = self.session.reader.bytes_verified
        self.candidate = Candidate(c, self.session.members(c))
        self.names = judge.evidence.level
        self.bad: dict[str, Sequence[Finding]] = {}
        self.concluded: set[str] = set()
        self.unseen: dict[str, Finding] = {}
        self.twins: dict[tuple[str, Finding], Part] = {}
        self.read = False

    def judgement(self) -> Judgement:
        """Replaces files that are wrong by replicas, until nothing is wrong or a rank has no file left."""
        c = self.candidate.whole
        home = c.parts[0].home
        absent = self._absent()
        if not absent and home and self.selection.skip_unreadable:
            rows = [row for row in self.session.found.unseen if row.path.startswith(f"{home}/")]
            absent = [could_not_look.describe_unseen(row.path, row.why) for row in rows]
        if absent:
            return Judgement(False, tuple(absent))
        while True:
            assigned = self._assign(self.bad, compare_bytes=self.selection.prove_replicas)
            if self.selection.ranks is None and assigned.groupless:  # else another node may have their files
                raise groups_needed.ask(c, assigned.findings)
            if not self.bad:
                require_its_world(c, assigned, self.run, self.selection)
            if any(f.severity is Severity.ERROR for f in assigned.findings):
                self._require_known(assigned)
                return Judgement(False, assigned.findings, self.read)
            parts = assigned.parts
            inspected = self._inspect(parts)
            if not inspected.wrong and (gaps := self._gaps(parts)):
                return Judgement(False, gaps, self.read)
            self.bad.update(inspected.wrong)
            if self.bad.keys().isdisjoint(part.path for part in parts):
                # what is wrong, if anything, lies in files that nobody loads
                findings = (*assigned.findings, *inspected.warnings)
                return self._sound(replace(assigned, findings=findings))

    def _sound(self, assigned: Assignment) -> Judgement:
        """The judgement when the files to load are good. Raises UsageError where the caller must say more."""
        parts, named, selection = assigned.parts, self.candidate.named, self.selection
        self._require_no_twin(parts)
        require_trust(parts, self.session)
        require_one_name(named, self.session)
        require_no_share(named, parts, self.session)
        if self.names > Level.PRESENCE:
            damaged = require_one_model(self.candidate.whole, parts, self.bad, self.session, selection.level)
            assigned = replace(assigned, findings=(*assigned.findings, *damaged))
        verified = self.session.reader.bytes_verified > self._verified_before
        read = self.read or (verified and selection.level > Level.STRUCTURE)
        return Judgement(True, assigned.findings, read, assigned)

    # ---- is it complete

    @cached_property
    def lost(self) -> tuple[Finding, ...]:
        """What is gone of it beside the other saves of its run, and its own list."""
        found = list(lost(self.session, self.candidate.named, self.beside))
        if self.names > Level.PRESENCE:
            found += unlike_list(self.session, self.candidate.named)
        return tuple(found)

    @cached_property
    def beside(self) -> list[Checkpoint]:
        """The saves of its run before and after it."""
        return self.run.beside.beside(self.candidate.named)

    def _absent(self) -> list[Finding]:
        """What the candidate lacks as a whole; files of single ranks are missed where these ask for them."""
        c = self.candidate.whole
        layout = self.session.layouts.of(c)
        if self.selection.ranks is None and missing_rank.find_first_ranks(c, layout):
            return find_gaps(c, self.run.expected)[:1]
        nobody_asks = all(layout.piece(p.piece).shared for p in c.parts)
        absent = [
            f
            for f in find_gaps(c, self.run.expected)
            if f.code == "missing-part" or (nobody_asks and f.severity is Severity.ERROR)
        ]
        lost = (f for f in self._about_seals() if f.severity is Severity.ERROR)
        absent = absent or [*lost, *without_model(self.session, c)]
        absent += [f for f in self.lost if f.severity is Severity.ERROR]
        absent += self._mixed()
        return [*absent, *_not_told(layout.lacks(self.candidate.named, self.run.candidates), absent)]

    def _mixed(self) -> Iterator[Finding]:
        """That the names of its files are of several attempts or runs, where other saves tell so."""
        s, c = self.session, self.candidate.whole
        facts = SavesFacts(s.layouts, (c,), self.run.expected)
        for _, f in find_hits(facts, (mixed_counters.RULE,)):
            if f.severity is Severity.ERROR or (f.severity is Severity.WARNING and self.run.checkpoints[1:]):
                yield replace(f, severity=Severity.ERROR)

    def _about_seals(self) -> list[Finding]:
        """What is wrong with the seals of the candidate's files, each said once."""
        seals, parts = self.session.indexes.seals, self.candidate.whole.parts
        if seals is None:
            return []
        for p in parts:
            seals.claims(p.path)
        places = (place for p in parts for place in (p.path, p.home))
        return list(dict.fromkeys(f for place in places for f in seals.about.get(place, ())))

    def _assign(self, bad: Bad, *, compare_bytes: bool) -> Assignment:
        """What each rank would load, without the files that are ``bad``."""
        evidence = Evidence(
            self.evidence.tensors,
            partial(self.evidence.own_files, self.candidate, bad),
            self.evidence.differences if compare_bytes else None,
        )
        return assign(self.candidate.whole, self.groups, bad, evidence)

    # ---- is it sound, and consistent

    def _inspect(self, parts: Sequence[Part]) -> _Inspected:
        """The files to load at the level asked for, one by one and beside each other."""
        self._prefetch(parts)
        wrong = {p.path: why for p in parts if (why := self._wrong_by_itself(p)) is not None}
        warnings = [f for f in (*self._about_seals(), *self.lost) if f.severity is Severity.WARNING]
        seals = self.session.indexes.seals
        if seals and (unsealed := [p.path for p in parts if seals.leaves_out(p.path, p.home)]):
            warnings.append(seal_unusable.describe_loaded(unsealed))
        whole, names = self.candidate.whole, self.names > Level.PRESENCE
        blank = hollow(self.session, whole, self.beside) if names else ()
        for f in (*zeroed(self.session, whole, self.beside), *blank):
            if f.severity is Severity.WARNING:
                warnings.append(f)
            elif f.path is not None:
                wrong.setdefault(f.path, []).append(f)
        for path, f, twin in self.contradictions.of(self.candidate, parts):
            if twin is not None:
                self.twins[path, f] = twin
            if f.severity is not Severity.ERROR:
                warnings.append(replace(f, path=path))
                continue
            if path not in wrong:
                self.concluded.add(path)
            wrong.setdefault(path, []).append(f)
        return _Inspected(wrong, warnings)

    def _wrong_by_itself(self, part: Part) -> list[Finding] | None:
        """Why a file must not be loaded; None where it may be.

        What is a warning of a file, such as ``in-use``, is an error where it keeps a candidate from being
        planned.
        """
        report = self.session.report(part, self.names)
        if report.verdict not in _UNUSABLE and self.selection.level > Level.STRUCTURE:
            report, self.read = self.session.report(part, self.selection.level), True
        if report.verdict not in _UNUSABLE and not self._of_another_format(part, report):
            return None
        if report.verdict is Verdict.UNKNOWN and (why := why_unseen(part, self.session)) is not None:
            self.unseen[part.path] = why
        return [
            replace(f, severity=Severity.ERROR) for f in report.findings if f.severity is not Severity.NOTE
        ]

    def _of_another_format(self, part: Part, report: Report) -> bool:
        """Whether a file is in none of the formats that its piece is written in."""
        piece = self.session.layouts.piece_of(part)
        inspected, of_its_role = self.names > Level.PRESENCE, part.role == piece.role
        return inspected and of_its_role and bool(piece.formats) and report.format not in piece.formats

    def _prefetch(self, parts: Sequence[Part]) -> None:
        """Many files are read by several processes at once, the contents only if the structure is sound."""
        s, level = self.session, self.selection.level
        prefetch(s, parts, self.names)
        if level <= Level.STRUCTURE:
            return
        s.expect(p for p in parts if p.path not in s.reports or s.known(p).level < level)
        if len(parts) >= LEAST:
            good = [p for p in parts if s.report(p, self.names).verdict not in _UNUSABLE]
            prefetch(s, good, level)

    def _gaps(self, parts: Sequence[Part]) -> tuple[Finding, ...]:
        """Tensors of which the files to load hold only some pieces."""
        places = self.session.places
        homes = {os.path.dirname(p.path) for p in parts}
        pieces = [places[home] for home in homes if home in places]
        if not pieces:
            return ()
        from ckpt_tools.formats.common.tensor_pieces import incomplete

        path = self.candidate.whole.path
        return tuple(replace(f, path=path) for files in pieces for f in incomplete(files.values()))

    # ---- is it known

    def _require_known(self, assigned: Assignment) -> None:
        """Raises CkptError where the candidate loses for what nobody knows.

        That is: for files that could not be read, or that may not be the copies.
        """
        if not self.selection.skip_unreadable:
            self._require_inspected(assigned)
        doubtful = {
            path: fs for path, fs in self.bad.items() if fs and all((path, f) in self.twins for f in fs)
        }
        if doubtful and self._usable_but_for(doubtful):
            part = next(p for p in self.candidate.whole.parts if p.path in doubtful)
            raise self._which_is_the_copy(part, self.twins[part.path, doubtful[part.path][0]])

    def _require_inspected(self, assigned: Assignment) -> None:
        """Raises CannotLook when the candidate could be used if the files that could not be read are whole.

        Not having looked is no reason to go back in time. What was concluded from several files may be so
        for want of those.
        """
        now = {
            p.path: f for p in self.candidate.whole.parts if (f := why_unseen(p, self.session)) is not None
        }
        unseen = {**now, **self.unseen}
        if not unseen:
            return
        at_best = self._usable_but_for({*unseen, *self.concluded})
        if at_best is None:
            return
        path = next((p.path for p in at_best.parts if p.path in unseen), next(iter(unseen)))
        why = unseen[path]
        empty = LoadPlan(
            root=self.session.root,
            checkpoint=None,
            resume=Resume(None),
            rejected=(Rejected(self.candidate.whole, assigned.findings),),
            bytes_verified=self.session.reader.bytes_verified,
        )
        raise could_not_look.stop(f"{why.path or path}: {why.message}", HINT, empty)

    def _usable_but_for(self, paths: Collection[str]) -> Assignment | None:
        """What would be loaded if these files were good; None if the candidate would lose all the same."""
        worse = {path: findings for path, findings in self.bad.items() if path not in paths}
        at_best = self._assign(worse, compare_bytes=False)
        errors = (f for f in at_best.findings if f.severity is Severity.ERROR)
        return None if any(f.code != "replica-unproven" for f in errors) else at_best

    def _require_no_twin(self, parts: Sequence[Part]) -> None:
        """Raises UsageError where a file to load may be the copy of another step's.

        A ``max_step`` that is the candidate's own step takes it as it is.
        """
        limit = self.selection.max_step
        if limit is not None and limit == self.candidate.named.step:
            return
        loaded = {p.path: p for p in parts}
        for (path, f), twin in self.twins.items():
            if path in loaded and f.severity is Severity.NOTE:
                raise self._which_is_the_copy(loaded[path], twin)

    def _which_is_the_copy(self, mine: Part, twin: Part) -> CkptError:
        c, others = self.candidate.named, self.run.candidates
        return ask_which_is_the_copy(c, mine, twin, others, self.session.root)


def _not_told(findings: Iterator[Finding], told: Sequence[Finding]) -> list[Finding]:
    """Return those of a code that is not told of their path already."""
    known = {(f.code, f.path) for f in told}
    return [f for f in findings if (f.code, f.path) not in known]
