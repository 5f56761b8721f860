"""One candidate in, a judgement out: complete, consistent and sound? Only what would be loaded is read."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property, partial
from itertools import chain, islice
from operator import attrgetter

from msgspec.structs import replace

from ckpt_tools.discovery.exclude import make_clause, without
from ckpt_tools.errors import CkptError
from ckpt_tools.formats.common.tensors import incomplete
from ckpt_tools.layouts.common.saved_by import saved_sizes, why_partial
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Assignment, LoadPlan, Rejected, Resume
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning.assign import Bad, Groups, assign
from ckpt_tools.planning.choice_warnings import (
    require_no_share,
    require_one_model,
    require_one_name,
    require_trust,
)
from ckpt_tools.planning.choose import Judgement
from ckpt_tools.planning.engine import find_gaps, find_hits, make_facts
from ckpt_tools.planning.equal_files import Contradiction, EqualFiles, find_when, place
from ckpt_tools.planning.facts import Evidence, OwnFile, Run, SavesFacts, Tensors
from ckpt_tools.planning.lost_files import find_hollow, find_lost, find_no_model, find_zeroed
from ckpt_tools.planning.rules.pair import same_content
from ckpt_tools.planning.rules.rule import Effect, error_of, finding_of, make_finding
from ckpt_tools.planning.rules.save import (
    groups_needed,
    missing_rank,
    mixed_counters,
    seal_mismatch,
    signature_changed,
    topology_mismatch,
)
from ckpt_tools.planning.rules.tree import could_not_look
from ckpt_tools.reading.prefetch import LEAST, prefetch
from ckpt_tools.reading.session import Session
from ckpt_tools.reading.unseen import HINT, why_unseen

_CUT = frozenset({"truncated", "bad-header", "bad-pickle", "trailing-data"})
"""Findings of a file whose list of tensors may have lost its end."""
_is_error = attrgetter("is_error")
_UNUSABLE = (Verdict.BROKEN, Verdict.UNKNOWN)
_NEAR = 3
"""Checkpoints, nearest in time, to compare steps and tensors with."""
_NEAR_FILES = 64
"""Structure passes spent at most on their files."""
_SIZES_COMPARED = 4096
"""Files of other checkpoints, at least, whose sizes are compared with those of the planned files."""


class Judge:
    """Judges the candidates of one run. To ``level`` files are inspected for what they tell of each other."""

    def __init__(self, session: Session, selection: Selection, run: Run) -> None:
        self.session, self.selection, self.run = session, selection, run
        self.level = min(Level.STRUCTURE, selection.level)  # at presence the names must do
        self.groups, self._equal = Groups(run.topology, selection), EqualFiles(session)

    def judge(self, c: Checkpoint) -> Judgement:
        """Whether a checkpoint can be used, and what each rank would load of it."""
        return Review(self, c).make_judgement()

    def are_replicas(self, c: Checkpoint, assignment: Assignment) -> bool:
        """Return True if any rank may load what another does: one file, or proven files of one group."""
        loads, parts, layout = assignment.loads, assignment.parts, self.session.layouts.of(c)
        if len({p.path for p in parts}) == 1:
            return True
        if assignment.shared or any(len(files) != 1 for files in loads.values()):
            return False
        group = self.groups.of(min(loads), layout.piece(parts[0].piece))
        if group is None or not loads.keys() <= set(group.ranks):
            return False
        reports = [self.session.report(p, self.level) for p in parts]
        told = {(r.signature, layout.steps(p, r.metadata)) for p, r in zip(parts, reports, strict=True)}
        if len(told) > 1 or not reports[0].signature or self.tensors(parts[0]).partial:
            return False
        asked = parts[1:] if self.selection.prove_replicas else ()
        return not any(self.find_differences(parts[0], other) for other in asked)

    # ---- what the files of the run tell of each other

    def tensors(self, part: Part) -> Tensors:
        """Return what a file says about its tensors."""
        report = self.session.report(part, self.level)
        return Tensors(report.signature, why_partial(report.metadata), saved_sizes([report]))

    def find_differences(self, a: Part, b: Part) -> list[str]:
        """Return tensors that differ between two replicas, but no random numbers: each rank has its own."""
        from ckpt_tools.inspection.digests import tensor_digests  # only before a replica stands in

        s = self.session
        slow = s.reader.rate.took if s.reader.rate else None
        one, other = (
            tensor_digests(
                p.path, s.inspect(p.path, Level.STRUCTURE)[1], slow, jobs=s.options.jobs, io=s.options.io
            )
            for p in (a, b)
        )
        names = (name for name in one.keys() | other.keys() if "rng" not in name.lower())
        return sorted(name for name in names if one.get(name) != other.get(name))

    def find_own_files(
        self, c: Checkpoint, parts: Sequence[Part], bad: Bad, rank: int, part: Part
    ) -> Iterator[OwnFile]:
        """Yield what a rank wrote in place of a part: in the candidate (``parts``), else the nearest."""
        others = (other.parts for other in self.run.find_nearest(c) if other.run == c.run)
        for p in chain(parts, chain.from_iterable(others)):
            if p.rank != rank or p.role != part.role or p.size <= 0 or p.path == part.path:
                continue
            if any(f.code == "signature-changed" for f in bad.get(p.path, ())):
                continue
            report = self.session.report(p, self.level)
            if report.signature and not any(f.code in _CUT for f in report.findings):
                name = os.path.relpath(p.path, self.session.root)
                yield OwnFile(f"rank {rank}'s own file {name}", report.signature)

    def find_contradictions(
        self, c: Checkpoint, whole: Checkpoint, planned: Sequence[Part], bad: Collection[str]
    ) -> list[Contradiction]:
        """Return what contradicts the planned files, or all of a save that is complete by its names. Copies
        are looked for once none of the planned files is ``bad`` for another reason.
        """
        parts = whole.parts if self.session.layouts.of(c).complete.by_name else planned
        mine = {p.path for p in parts}
        compared = self._find_compared(c, parts)
        first = min(c.order, self.run.first.get((c.layout, c.run), c.order))
        facts = make_facts(self.session, (whole,), self.run.expected, compared, first)
        found = [*self._find_hits(facts)]
        wrong = {row.path for row in found if row.finding.is_error}
        deep = self.selection.level > Level.STRUCTURE or self.selection.compare_only
        if deep and {p.path for p in planned}.isdisjoint({*bad, *wrong}):
            found += self._find_copies(c, compared, wrong)
        for odd, typical in self._find_unlike_replicas(whole):
            hit = signature_changed.compare(odd, typical, facts)
            found.append(Contradiction(odd.path, finding_of(signature_changed.RULE, hit)))
        return [row for row in found if row.path in mine]

    def _find_hits(self, facts: SavesFacts) -> Iterator[Contradiction]:
        """Yield what rules say of files; what a rank lacks may be on another node if only some ask."""
        elsewhere = "" if self.selection.ranks is None else "missing-rank"
        for hit, f in find_hits(facts):
            if hit.of_file and f.code != elsewhere:
                yield Contradiction(hit.path, f)

    def _find_compared(self, c: Checkpoint, parts: Sequence[Part]) -> list[Part]:
        """The files themselves, and the sound ones of the same ranks in checkpoints near in time."""
        ranks, near = {p.rank for p in parts}, list[Part]()
        for kind in (c.kind, Kind.PERIODIC) if c.kind is Kind.DYING_GASP else (c.kind,):
            saves = self.run.find_nearest(c)
            others = (o for o in saves if (o.layout, o.run, o.kind) == (c.layout, c.run, kind))
            files = (p for o in islice(others, _NEAR) for p in o.parts if p.rank in ranks and p.size > 0)
            near += islice(files, _NEAR_FILES)
        for p in (*parts, *near):
            self.session.report(p, self.level)
        return [*parts, *(p for p in near if self.session.known(p).verdict is not Verdict.BROKEN)]

    def _find_copies(
        self, c: Checkpoint, compared: Sequence[Part], wrong: Collection[str]
    ) -> list[Contradiction]:
        """Return files with the bytes of another one, nearest first; one that is ``wrong`` is the copy."""
        elsewhere = self._list_other_files(c, compared)
        asked = [self._place(p) for p in compared if p.path not in wrong]
        found = list(self._equal.find_copies(asked, elsewhere))
        copies = {row.path for row in found if row.finding.severity is not Severity.NOTE}
        places = {place(p) for p in asked if p.path in copies}
        for p in (p for p in asked if place(p) in places):  # what differs as it is damaged shows nothing
            self.session.report(p, self.selection.level)
        return list(self._equal.find_copies(asked, elsewhere)) if places else found

    def _list_other_files(self, c: Checkpoint, compared: Sequence[Part]) -> list[Part]:
        """Return the files of its run's other saves that are not ``compared`` already, nearest first."""
        enough, elsewhere = max(_SIZES_COMPARED, 4 * len(c.parts)), list[Part]()
        known = {p.path for p in compared}
        for other in self.run.find_nearest(c):
            if (other.layout, other.run) == (c.layout, c.run) and any(p.size > 0 for p in other.parts):
                elsewhere += (p for p in other.parts if p.path not in known and p.size >= 0)
            if len(elsewhere) > enough:
                break
        return list(map(self._place, elsewhere))

    @cached_property
    def _told_inside(self) -> dict[str, int]:
        """By their paths, the steps of directories whose names tell none."""
        saves = (c for c in self.run.checkpoints if c.step is not None and c.epoch is None and c.parts)
        return {c.parts[0].home: c.step for c in saves if c.step is not None and c.parts[0].step is None}

    def _place(self, p: Part) -> Part:
        """A file in a directory whose name tells no step, with the one that another file there tells."""
        step = self._told_inside.get(p.home) if p.home and p.step is None and p.epoch is None else None
        return p if step is None else p._replace(step=step)

    def _find_unlike_replicas(self, c: Checkpoint) -> Iterator[tuple[Part, Part]]:
        """Yield replicas with other tensors than most, each with one that holds the usual ones: some files
        cut at a record's end show nothing else. Groups are those that the caller or the strategy files tell,
        and not those that a layout implies.
        """
        flags, topology = self.selection.replica_groups, self.run.topology
        everyone = (range(topology.world_size),) if self.selection.replicas_all else ()
        whole = (p for p in c.parts if p.size > 0 and not self.session.layouts.piece_of(p).readers.sharded)
        of = {(p.role, p.rank): p for p in whole}
        for role in {p.role for p in c.parts}:
            for group in flags.get(role, flags.get("", ())) or topology.strategy or everyone:
                yield from self._find_unlike([p for rank in group if (p := of.get((role, rank)))])

    def _find_unlike(self, replicas: Sequence[Part]) -> Iterator[tuple[Part, Part]]:
        """Yield those with other tensors than most; where as many have either, than the one with most."""
        told = ((p, self.tensors(p)) for p in replicas)
        known = [(p, t.signature) for p, t in told if t.signature and not t.partial]
        count = Counter(signature for _, signature in known)
        if len(count) > 1:
            reports = self.session.reports
            typical, usual = max(known, key=lambda row: (count[row[1]], reports[row[0].path].tensors))
            yield from ((p, typical) for p, signature in known if signature != usual)


class Review:
    """One candidate under judgement: as its files' names show it, and ``whole``, with what indexes add.

    ``bad`` are files that must not be loaded, with why; of these ``concluded`` are wrong only beside
    others, ``doubts`` may not be copies but what they equal is one, and ``unseen`` could not be read when
    they were judged, even if they can be by now.
    """

    def __init__(self, judge: Judge, c: Checkpoint) -> None:
        self.session, self.selection, self.run = judge.session, judge.selection, judge.run
        self.judge = judge
        self._verified_before = self.session.reader.bytes_verified
        self.named, self.whole = c, self.session.members(c)
        self.beside = self.run.beside.find_beside(c)
        self.names = judge.level
        self.looks_inside = self.names > Level.PRESENCE  # at presence the names must do
        self.bad: dict[str, Sequence[Finding]] = {}
        self.concluded: set[str] = set()
        self.doubts: dict[str, Part] = {}
        self.unseen: dict[str, Finding] = {}
        self.read = False

    def make_judgement(self) -> Judgement:
        """Replaces files that are wrong by replicas, until nothing is wrong or a rank has no file left."""
        c = self.whole
        if absent := self._find_absent():
            return Judgement(False, tuple(absent))
        while True:
            assigned = self._assign(self.bad, compare_bytes=self.selection.prove_replicas)
            if self.selection.ranks is None and assigned.groupless:  # else another node may have their files
                raise groups_needed.ask(c, assigned.findings)
            if not self.bad:
                for hit in topology_mismatch.check(c, assigned, self.run, self.selection):
                    raise error_of(topology_mismatch.RULE, hit)
            if any(f.is_error for f in assigned.findings):
                self._require_known(assigned)
                return Judgement(False, assigned.findings, self.read)
            parts, warnings = assigned.parts, list[Finding]()
            wrong = self._inspect(parts, warnings)
            if not wrong and (gaps := self._find_holes(parts)):
                return Judgement(False, gaps, self.read)
            self.bad.update(wrong)
            if self.bad.keys().isdisjoint(part.path for part in parts):
                # what is wrong, if anything, lies in files that nobody loads
                return self._judge_sound(replace(assigned, findings=(*assigned.findings, *warnings)))

    def _judge_sound(self, assigned: Assignment) -> Judgement:
        """The judgement when the files to load are good. Raises UsageError where the caller must say more."""
        parts, named, selection = assigned.parts, self.named, self.selection
        require_trust(parts, self.session)
        require_one_name(named, self.session)
        require_no_share(named, parts, self.session)
        if self.looks_inside:
            damaged = require_one_model(self.whole, parts, self.bad, self.session, selection.level)
            assigned = replace(assigned, findings=(*assigned.findings, *damaged))
        verified = self.session.reader.bytes_verified > self._verified_before
        read = self.read or (verified and selection.level > Level.STRUCTURE)
        return Judgement(True, assigned.findings, read, assigned)

    # ---- is it complete

    @cached_property
    def lost(self) -> list[Finding]:
        """What is gone of it beside the other saves of its run, and its own list."""
        return list(find_lost(self.session, self.named, self.beside, self.names))

    def _find_absent(self) -> list[Finding]:
        """Return what the candidate lacks as a whole; files of single ranks only if nobody may do without."""
        c, s = self.whole, self.session
        layout, gaps = s.layouts.of(c), find_gaps(c, self.run.expected)
        if self.selection.ranks is None and missing_rank.find_first_ranks(c, layout):
            return gaps[:1]
        nobody_asks = all(layout.piece(p.piece).readers.shared for p in c.parts)
        absent = [f for f in gaps if f.code == "missing-part" or (nobody_asks and f.is_error)]
        absent = absent or [*filter(_is_error, self._find_seal_findings()), *find_no_model(s, c)]
        absent += [*filter(_is_error, self.lost), *self._find_mixed()]
        known = {(f.code, f.path) for f in absent}
        more = map(make_finding, layout.lacks(self.named, self.run.candidates))
        absent += [f for f in more if (f.code, f.path) not in known]
        return absent or self._find_unlisted(c.parts[0].home)

    def _find_unlisted(self, home: str) -> list[Finding]:
        unseen = self.session.found.unseen if home and self.selection.skip_unreadable else ()
        rows = (row for row in unseen if row.path.startswith(f"{home}/"))
        return [could_not_look.describe_unseen(row.path, row.why) for row in rows]

    def _find_mixed(self) -> Iterator[Finding]:
        """That the names of its files are of several attempts or runs, where other saves tell so."""
        facts = SavesFacts(self.session.layouts, (self.whole,), self.run.expected)
        told = (Severity.ERROR, Severity.WARNING) if self.run.checkpoints[1:] else (Severity.ERROR,)
        for hit, f in find_hits(facts, (mixed_counters.RULE,)):
            if f.severity in told and hit.effect is not Effect.WARN:
                yield replace(f, severity=Severity.ERROR)

    def _find_seal_findings(self) -> list[Finding]:
        """What is wrong with the seals of the candidate's files, each said once."""
        seals, parts = self.session.indexes.seals, self.whole.parts
        if seals is None:
            return []
        for p in parts:
            seals.claims(p.path)
        places = (place for p in parts for place in (p.path, p.home))
        return list(dict.fromkeys(f for place in places for f in seals.about.get(place, ())))

    def _assign(self, bad: Bad, *, compare_bytes: bool) -> Assignment:
        """What each rank would load, without the files that are ``bad``."""
        evidence = Evidence(
            self.judge.tensors,
            partial(self.judge.find_own_files, self.named, self.whole.parts, bad),
            self.judge.find_differences if compare_bytes else None,
        )
        return assign(self.whole, self.judge.groups, bad, evidence)

    # ---- is it sound, and consistent

    def _inspect(self, parts: Sequence[Part], warnings: list[Finding]) -> dict[str, list[Finding]]:
        """Return why files to load must not be loaded, by path; add what is less to ``warnings``."""
        self._read_ahead(parts)
        wrong = {p.path: why for p in parts if (why := self._find_wrong(p)) is not None}
        warnings += (f for f in (*self._find_seal_findings(), *self.lost) if f.severity is Severity.WARNING)
        s, whole, seals = self.session, self.whole, self.session.indexes.seals
        if seals and (unsealed := [p.path for p in parts if seals.leaves_out(p.path, p.home)]):
            warnings.append(seal_mismatch.describe_loaded(unsealed))
        empty = [*find_zeroed(s, whole, self.beside)]
        empty += find_hollow(s, whole, self.beside) if self.looks_inside else ()
        for f in empty:
            (wrong.setdefault(f.path, []) if f.is_error else warnings).append(f)
        self._add_contradictions(parts, wrong, warnings)
        return wrong

    def _add_contradictions(
        self, parts: Sequence[Part], wrong: dict[str, list[Finding]], warnings: list[Finding]
    ) -> None:
        """Add what contradicts files. Raises UsageError if one to load may be a copy or the original."""
        loaded, step = {p.path: p for p in parts}, self.selection.max_step
        as_it_is = step is not None and step == self.named.step
        for path, f, twin in self.judge.find_contradictions(self.named, self.whole, parts, wrong):
            if f.severity is Severity.NOTE and twin is not None and path in loaded and not as_it_is:
                raise self._ask_which_is_the_copy(loaded[path], twin)
            if not f.is_error:
                warnings.append(replace(f, path=path))
                continue
            if path not in wrong:
                self.concluded.add(path)
                self.doubts |= {path: twin} if twin is not None else {}
            elif twin is None:
                self.doubts.pop(path, None)
            wrong.setdefault(path, []).append(f)

    def _find_wrong(self, part: Part) -> list[Finding] | None:
        """Return why a file must not be loaded, None if it may be. Its warnings are errors then."""
        report, piece = self.session.report(part, self.names), self.session.layouts.piece_of(part)
        if report.verdict not in _UNUSABLE and self.selection.level > Level.STRUCTURE:
            report, self.read = self.session.report(part, self.selection.level), True
        expected = piece.formats if self.looks_inside and part.role == piece.role else ()
        if report.verdict not in _UNUSABLE and not (expected and report.format not in expected):
            return None
        if report.verdict is Verdict.UNKNOWN and (why := why_unseen(part, self.session)) is not None:
            self.unseen[part.path] = why
        found = sorted(report.findings, key=lambda f: -f.severity)  # the cause is said first
        return [replace(f, severity=Severity.ERROR) for f in found if f.severity is not Severity.NOTE]

    def _read_ahead(self, parts: Sequence[Part]) -> None:
        """Many files are read by several processes at once, the contents only if the structure is sound."""
        s, level = self.session, self.selection.level
        prefetch(s, parts, self.names)
        if level <= Level.STRUCTURE:
            return
        s.expect(p for p in parts if p.path not in s.reports or s.known(p).level < level)
        if len(parts) >= LEAST:
            good = [p for p in parts if s.report(p, self.names).verdict not in _UNUSABLE]
            prefetch(s, good, level)

    def _find_holes(self, parts: Sequence[Part]) -> tuple[Finding, ...]:
        """Tensors of which the files to load hold only some pieces."""
        places, path = self.session.places, self.whole.path
        pieces = [places[home] for home in {os.path.dirname(p.path) for p in parts} if home in places]
        return tuple(replace(f, path=path) for files in pieces for f in incomplete(files.values()))

    # ---- is it known

    def _require_known(self, assigned: Assignment) -> None:
        """Raise CkptError if the candidate loses only for files that are unread, or may be no copies."""
        if not self.selection.skip_unreadable:
            self._require_inspected(assigned)
        if self.doubts and self._assign_but_for(self.doubts):
            part = next(p for p in self.whole.parts if p.path in self.doubts)
            raise self._ask_which_is_the_copy(part, self.doubts[part.path])

    def _require_inspected(self, assigned: Assignment) -> None:
        """Raises CannotLook when the candidate could be used if the files that could not be read are whole:
        not having looked is no reason to go back. What several files showed may be so for want of those.
        """
        now = {p.path: f for p in self.whole.parts if (f := why_unseen(p, self.session)) is not None}
        unseen = {**now, **self.unseen}
        if not unseen:
            return
        at_best = self._assign_but_for({*unseen, *self.concluded})
        if at_best is None:
            return
        path = next((p.path for p in at_best.parts if p.path in unseen), next(iter(unseen)))
        why = unseen[path]
        empty = LoadPlan(
            root=self.session.root,
            checkpoint=None,
            resume=Resume(None),
            rejected=(Rejected(self.whole, assigned.findings),),
            bytes_verified=self.session.reader.bytes_verified,
        )
        raise could_not_look.stop(f"{why.path or path}: {why.message}", HINT, empty)

    def _assign_but_for(self, paths: Collection[str]) -> Assignment | None:
        """What would be loaded if these files were good; None if the candidate would lose all the same."""
        worse = {path: findings for path, findings in self.bad.items() if path not in paths}
        at_best = self._assign(worse, compare_bytes=False)
        lost = any(f.is_error and f.code != "replica-unproven" for f in at_best.findings)
        return None if lost else at_best

    def _ask_which_is_the_copy(self, mine: Part, twin: Part) -> CkptError:
        """Return the question whether ``mine``, a file of the candidate, is the copy or its ``twin``."""
        c, first, second = self.named, *sorted((mine, twin), key=find_when)
        steps = [o.step for o in self.run.candidates if o.step is not None and o.step < (c.step or 0)]
        limit = c.step if mine is first else max(steps, default=None)
        answers = [make_clause(without(self.session.root, c, *filter(None, (twin.home, twin.path))))]
        if limit is not None:
            how = "it as it is" if mine is first else f"step {limit}"
            answers.append(f"add --max-step {limit} to resume from {how}")
        homes = [p.home or p.path for p in (first, second)]
        return same_content.ask_which_is_the_copy(first.path, second.path, homes, answers)
