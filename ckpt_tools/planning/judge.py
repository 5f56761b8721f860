"""Judge a candidate: is it complete, consistent and sound? Only the files that would be loaded are read."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property, partial
from itertools import chain, islice
from operator import attrgetter

from msgspec.structs import replace

from ckpt_tools.discovery.exclude import hint_exclude, make_clause
from ckpt_tools.errors import CkptError
from ckpt_tools.formats.common.tensors import find_incomplete
from ckpt_tools.layouts.common.lost_files import get_holds
from ckpt_tools.layouts.common.saved_by import read_sizes, say_partial
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Assignment, LoadPlan, Rejected, Resume
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning import choice_warnings
from ckpt_tools.planning.assign import Bad, Groups, assign
from ckpt_tools.planning.choose import Judgement
from ckpt_tools.planning.engine import find_gaps, find_hits, make_facts
from ckpt_tools.planning.equal_files import Contradiction, EqualFiles, find_when, make_series_key
from ckpt_tools.planning.facts import Evidence, OwnFile, Run, SavesFacts, Tensors, find_neighbours
from ckpt_tools.planning.lost_files import find_hollow, find_lost, find_no_model, find_zeroed
from ckpt_tools.planning.rules.pair import same_content
from ckpt_tools.planning.rules.rule import Effect, Hit, error_of, finding_of, make_finding
from ckpt_tools.planning.rules.save import (
    groups_needed,
    missing_rank,
    mixed_counters,
    seal_mismatch,
    signature_changed,
    topology_mismatch,
)
from ckpt_tools.planning.rules.tree import could_not_look
from ckpt_tools.reading.scheduler import LEAST, prefetch
from ckpt_tools.reading.session import Session
from ckpt_tools.reading.unseen import HINT, find_reason

_CUT = frozenset({"truncated", "bad-header", "bad-pickle", "trailing-data"})
"""Codes of findings on a file whose list of tensors may have lost its end."""
_is_error = attrgetter("is_error")
_UNUSABLE = (Verdict.BROKEN, Verdict.UNKNOWN)
_NEAR = 3
"""How many checkpoints, the nearest in time, a candidate's steps and tensors are compared with."""
_NEAR_FILES = 64
"""How many of their files are read at most, to level structure."""
_SIZES_COMPARED = 4096
"""How many files of other checkpoints, at least, are compared in size with the planned files."""


class Judge:
    """The judge of the candidates of one run. It reads files to ``level`` to compare them with each other."""

    def __init__(self, session: Session, selection: Selection, run: Run) -> None:
        self.session, self.selection, self.run = session, selection, run
        self.level = min(Level.STRUCTURE, selection.level)  # at level presence only names are compared
        self.groups, self._equal = Groups(run.topology, selection), EqualFiles(session)

    def judge(self, c: Checkpoint) -> Judgement:
        """Return whether a candidate is usable, and what ranks would load. Raises CkptError if in doubt."""
        return Review(self, c).make_judgement()

    def are_replicas(self, c: Checkpoint, assignment: Assignment) -> bool:
        """Return True if any rank may load any other's file: it is one, or proven replicas of one group."""
        loads, parts, layout = assignment.loads, assignment.parts, self.session.layouts.of(c)
        if len({p.path for p in parts}) == 1:
            return True
        if assignment.shared or any(len(files) != 1 for files in loads.values()):
            return False
        group = self.groups.find_group(min(loads), layout.piece(parts[0].piece))
        if group is None or not loads.keys() <= set(group.ranks):
            return False
        reports = [self.session.report(p, self.level) for p in parts]
        states = {(r.signature, layout.steps(p, r.metadata)) for p, r in zip(parts, reports, strict=True)}
        if len(states) > 1 or not reports[0].signature or self.read_tensors(parts[0]).partial:
            return False
        others = parts[1:] if self.selection.prove_replicas else ()
        return not any(self.find_differences(parts[0], other) for other in others)

    # ---- the files of the run, compared with each other

    def read_tensors(self, part: Part) -> Tensors:
        """Return what a file says about its tensors; reads the file."""
        report = self.session.report(part, self.level)
        return Tensors(report.signature, say_partial(report.metadata), read_sizes([report]))

    def find_differences(self, a: Part, b: Part) -> list[str]:
        """Return names of tensors that differ between two replicas. Random states (``rng``) may differ."""
        from ckpt_tools.inspection.digests import tensor_digests  # only before a replica stands in

        s = self.session
        slow, jobs, io = s.reader.rate.took if s.reader.rate else None, s.options.jobs, s.options.io
        anatomies = ((p.path, s.inspect(p.path, Level.STRUCTURE)[1]) for p in (a, b))
        one, other = (tensor_digests(path, tensors, slow, jobs=jobs, io=io) for path, tensors in anatomies)
        names = (name for name in one.keys() | other.keys() if "rng" not in name.lower())
        return sorted(name for name in names if one.get(name) != other.get(name))

    def find_own_file(
        self, c: Checkpoint, parts: Sequence[Part], bad: Bad, rank: int, part: Part
    ) -> OwnFile | None:
        """Return a rank's own file in the role of ``part``, the nearest that is neither ``bad`` nor cut."""
        others = (other.parts for other in self.run.find_nearest(c) if other.run == c.run)
        for p in chain(parts, chain.from_iterable(others)):
            if p.rank != rank or p.role != part.role or p.size <= 0 or p.path == part.path:
                continue
            if any(f.code == "signature-changed" for f in bad.get(p.path, ())):
                continue
            report = self.session.report(p, self.level)
            if report.signature and not any(f.code in _CUT for f in report.findings):
                name = os.path.relpath(p.path, self.session.root)
                return OwnFile(f"rank {rank}'s own file {name}", report.signature)
        return None

    def find_contradictions(
        self, c: Checkpoint, whole: Checkpoint, planned: Sequence[Part], bad: Collection[str]
    ) -> list[Contradiction]:
        """Return contradictions about files; copies are looked for if no planned file is ``bad``."""
        parts = whole.parts if self.session.layouts.of(c).complete.by_name else planned
        mine = {p.path for p in parts}
        compared = self._collect_compared_files(c, parts)
        first = min(c.order, self.run.first.get((c.layout, c.run), c.order))
        facts = make_facts(self.session, (whole,), self.run.expected, compared, first)
        found = [*self._find_hits(facts)]
        wrong = {row.path for row in found if row.finding.is_error}
        deep = self.selection.level > Level.STRUCTURE or self.selection.compare_only
        if deep and {p.path for p in planned}.isdisjoint({*bad, *wrong}):
            found += self._find_copies(c, compared, wrong)
        for odd, typical in self._find_odd_replicas(whole):
            hit = signature_changed.compare(odd, typical, facts)
            found.append(Contradiction(odd.path, finding_of(signature_changed.RULE, hit)))
        return [row for row in found if row.path in mine]

    def _find_hits(self, facts: SavesFacts) -> Iterator[Contradiction]:
        """Yield rules' findings on files. If only some ranks ask, lost files may be on other nodes."""
        ignored = "" if self.selection.ranks is None else "missing-rank"
        for hit, f in find_hits(facts):
            if hit.of_file and f.code != ignored:
                yield Contradiction(hit.path, f)

    def _collect_compared_files(self, c: Checkpoint, parts: Sequence[Part]) -> list[Part]:
        """Return the ``parts`` and, of checkpoints near in time, sound files of the same ranks. Reads."""
        ranks, near = {p.rank for p in parts}, list[Part]()
        for kind in (c.kind, Kind.PERIODIC) if c.kind is Kind.DYING_GASP else (c.kind,):
            saves = self.run.find_nearest(c)
            others = (o for o in saves if (o.layout, o.run, o.kind) == (c.layout, c.run, kind))
            files = (p for o in islice(others, _NEAR) for p in o.parts if p.rank in ranks and p.size > 0)
            near += islice(files, _NEAR_FILES)
        for p in (*parts, *near):
            self.session.report(p, self.level)
        return [*parts, *(p for p in near if self.session.known(p).verdict is not Verdict.BROKEN)]

    def _find_copies(self, c: Checkpoint, compared: Sequence[Part], wrong: set[str]) -> list[Contradiction]:
        """Return which ``compared`` files equal another one, nearest first; ``wrong`` ones are skipped."""
        elsewhere = self._list_other_files(c, compared)
        asked = [self._add_step(p) for p in compared if p.path not in wrong]
        found = list(self._equal.find_copies(asked, elsewhere))
        copies = {row.path for row in found if row.finding.severity is not Severity.NOTE}
        series = {make_series_key(p) for p in asked if p.path in copies}
        for p in (p for p in asked if make_series_key(p) in series):  # a damaged file differs, shows nothing
            self.session.report(p, self.selection.level)
        return list(self._equal.find_copies(asked, elsewhere)) if series else found

    def _list_other_files(self, c: Checkpoint, compared: Sequence[Part]) -> list[Part]:
        """Return files of the run's other saves that are not yet ``compared``, nearest first."""
        enough, elsewhere = max(_SIZES_COMPARED, 4 * len(c.parts)), list[Part]()
        known = {p.path for p in compared}
        for other in self.run.find_nearest(c):
            if (other.layout, other.run) == (c.layout, c.run) and any(p.size > 0 for p in other.parts):
                elsewhere += (p for p in other.parts if p.path not in known and p.size >= 0)
            if len(elsewhere) > enough:
                break
        return list(map(self._add_step, elsewhere))

    @cached_property
    def _steps_in_files(self) -> dict[str, int]:
        """Maps directories whose names have no step to the step that a file in them tells."""
        saves = (c for c in self.run.checkpoints if c.step is not None and c.epoch is None and c.parts)
        return {c.parts[0].home: c.step for c in saves if c.step is not None and c.parts[0].step is None}

    def _add_step(self, p: Part) -> Part:
        """Return a file with the step that a file of its directory tells, if no name tells one."""
        step = self._steps_in_files.get(p.home) if p.home and p.step is None and p.epoch is None else None
        return p if step is None else p._replace(step=step)

    def _find_odd_replicas(self, c: Checkpoint) -> Iterator[tuple[Part, Part]]:
        """Yield pairs: a replica with other tensors than most of its group, and one with the usual ones."""
        # some files that were cut show nothing else; groups that a layout implies have a rule
        flags, topology = self.selection.replica_groups, self.run.topology
        everyone = (range(topology.world_size),) if self.selection.replicas_all else ()
        whole = (p for p in c.parts if p.size > 0 and not self.session.layouts.piece_of(p).readers.sharded)
        by_rank = {(p.role, p.rank): p for p in whole}
        for role in {p.role for p in c.parts}:
            for group in flags.get(role, flags.get("", ())) or topology.strategy or everyone:
                yield from self._compare_replicas([p for rank in group if (p := by_rank.get((role, rank)))])

    def _compare_replicas(self, replicas: Sequence[Part]) -> Iterator[tuple[Part, Part]]:
        """Yield (odd, typical) replicas. Of equally frequent signatures that with most tensors is typical."""
        tensors = ((p, self.read_tensors(p)) for p in replicas)
        known = [(p, t.signature) for p, t in tensors if t.signature and not t.partial]
        count = Counter(signature for _, signature in known)
        if len(count) > 1:
            reports = self.session.reports
            typical, usual = max(known, key=lambda row: (count[row[1]], reports[row[0].path].tensors))
            yield from ((p, typical) for p, signature in known if signature != usual)


class Review:
    """One candidate under judgement."""

    def __init__(self, judge: Judge, c: Checkpoint) -> None:
        self.session, self.selection, self.run = judge.session, judge.selection, judge.run
        self.judge = judge
        self._verified_before = self.session.reader.bytes_verified
        self.candidate, self.whole = c, self.session.members(c)  # files that names show; those of indexes too
        self.neighbours = find_neighbours(c, self.run.in_order)
        self.level = judge.level
        self.looks_inside = self.level > Level.PRESENCE  # at level presence only names are compared
        self.bad: dict[str, Sequence[Finding]] = {}  # path of a file that must not be loaded -> why
        self.contradicted: set[str] = set()  # paths of bad files that only other files contradict
        self.twins: dict[str, Part] = {}  # of those that equal another file, that file: it may be the copy
        self.unseen: dict[str, Finding] = {}  # could not be read when they were judged, but maybe by now
        self.contents_read = False

    def make_judgement(self) -> Judgement:
        """Return the judgement: bad files are replaced until all are good, or a rank has none left."""
        c = self.whole
        if absent := self._find_absent():
            return Judgement(False, tuple(absent))
        while True:
            assigned = self._assign(self.bad, compare_bytes=self.selection.prove_replicas)
            if self.selection.ranks is None and assigned.groupless:  # other nodes may have their files
                raise groups_needed.ask(c, assigned.findings)
            if not self.bad:
                for hit in topology_mismatch.check(c, assigned, self.run, self.selection):
                    raise error_of(topology_mismatch.RULE, hit)
            if any(f.is_error for f in assigned.findings):
                self._require_certainty(assigned)
                return Judgement(False, assigned.findings, self.contents_read)
            parts, warnings = assigned.parts, list[Finding]()
            wrong = self._inspect(parts, warnings)
            if not wrong and (gaps := self._find_holes(parts)):
                return Judgement(False, gaps, self.contents_read)
            self.bad.update(wrong)
            if self.bad.keys().isdisjoint(part.path for part in parts):
                # all bad files, if any, are files that nobody loads
                if lost := self._find_lost_contents(parts):
                    return Judgement(
                        False, (*chain.from_iterable(self.bad.values()), *lost), self.contents_read
                    )
                return self._judge_sound(replace(assigned, findings=(*assigned.findings, *warnings)))

    def _find_lost_contents(self, parts: Sequence[Part]) -> list[Finding]:
        """Return what a loop's files to load lack, where others of the save that had it are bad."""
        if not self.bad or None in map(get_holds, parts):
            return []
        loaded = replace(self.candidate, parts=tuple(parts))
        others = [o for o in self.run.candidates if o is not self.candidate]
        return [*map(make_finding, self.session.layouts.of(loaded).lacks(loaded, others))]

    def _judge_sound(self, assigned: Assignment) -> Judgement:
        """Return the judgement if all files to load are good. Raises UsageError if the caller must choose."""
        parts, selection, s = assigned.parts, self.selection, self.session
        loaded = {p.path for p in parts}
        idle = (f.at(path) for path, why in self.bad.items() if path not in loaded for f in why)
        damaged = [replace(f, severity=Severity.WARNING) for f in idle if f.is_error]
        choice_warnings.require_trust(parts, s)
        choice_warnings.require_one_name(self.candidate, s)
        choice_warnings.require_no_rank_share(self.candidate, parts, s)
        if self.looks_inside:
            damaged += choice_warnings.require_one_model(self.whole, parts, self.bad, s, selection.level)
        assigned = replace(assigned, findings=(*assigned.findings, *damaged))
        verified = s.reader.bytes_verified != self._verified_before
        read = self.contents_read or (verified and selection.level > Level.STRUCTURE)
        return Judgement(True, assigned.findings, read, assigned)

    # ---- is it complete

    @cached_property
    def lost(self) -> list[Finding]:
        """Findings on lost files, which other saves of the run have or the candidate's own list names."""
        return list(find_lost(self.session, self.candidate, self.neighbours, self.level))

    def _find_absent(self) -> list[Finding]:
        """Return why the candidate is unusable; lost files of ranks count if all ranks load all files."""
        c, s = self.whole, self.session
        layout, gaps = s.layouts.of(c), find_gaps(c, self.run.expected)
        if self.selection.ranks is None and missing_rank.find_first_ranks(c, layout):
            return gaps[:1]
        all_shared = all(layout.piece(p.piece).readers.shared for p in c.parts)
        absent = [f for f in gaps if f.code == "missing-part" or (all_shared and f.is_error)]
        absent = absent or [*filter(_is_error, self._find_seal_findings()), *find_no_model(s, c)]
        absent += [*filter(_is_error, self.lost), *self._find_mixed_attempts()]
        known = {(f.code, f.path) for f in absent}
        more = map(make_finding, layout.lacks(self.candidate, self.run.candidates))
        absent += [f for f in more if (f.code, f.path) not in known]
        return absent or self._find_unreadable_entries(c.parts[0].home)

    def _find_unreadable_entries(self, home: str) -> list[Finding]:
        """Return entries below ``home`` that could not be listed, if --allow unreadable goes on without."""
        unseen = self.session.found.unseen if home and self.selection.skip_unreadable else ()
        rows = (row for row in unseen if row.path.startswith(f"{home}/"))
        hits = (Hit(row.path, row.why, severity=Severity.ERROR) for row in rows)
        return [finding_of(could_not_look.RULE, hit) for hit in hits]

    def _find_mixed_attempts(self) -> Iterator[Finding]:
        """Yield errors if names show several attempts or runs; in a lone save only errors count."""
        facts = SavesFacts((self.whole,), self.run.expected)
        counted = (Severity.ERROR, Severity.WARNING) if self.run.checkpoints[1:] else (Severity.ERROR,)
        for hit, f in find_hits(facts, (mixed_counters.RULE,)):
            if f.severity in counted and hit.effect is not Effect.WARN:
                yield replace(f, severity=Severity.ERROR)

    def _find_seal_findings(self) -> list[Finding]:
        """Return findings on the seals of the candidate's files, each once; [] without seals."""
        seals, parts = self.session.indexes.seals, self.whole.parts
        for p in parts:
            seals.claims(p.path)
        paths = (path for p in parts for path in (p.path, p.home))
        return list(dict.fromkeys(f for path in paths for f in seals.about.get(path, ())))

    def _assign(self, bad: Bad, *, compare_bytes: bool) -> Assignment:
        """Return which files each rank would load; never one whose path is in ``bad``."""
        evidence = Evidence(
            self.judge.read_tensors,
            partial(self.judge.find_own_file, self.candidate, self.whole.parts, bad),
            self.judge.find_differences if compare_bytes else None,
        )
        return assign(self.whole, self.judge.groups, bad, evidence)

    # ---- is it sound, and consistent

    def _inspect(self, parts: Sequence[Part], warnings: list[Finding]) -> dict[str, list[Finding]]:
        """Read files to load. Return by path why some must not be loaded; add the rest to ``warnings``."""
        self._read_ahead(parts)
        wrong = {p.path: why for p in parts if (why := self._explain_rejection(p)) is not None}
        warnings += (f for f in (*self._find_seal_findings(), *self.lost) if f.severity is Severity.WARNING)
        s, whole, seals = self.session, self.whole, self.session.indexes.seals
        if unsealed := [p.path for p in parts if seals.leaves_out(p.path, p.home)]:
            warnings.append(seal_mismatch.describe_unsealed(unsealed))
        hollow = [*find_zeroed(s, whole, self.neighbours)]
        hollow += find_hollow(s, whole, self.neighbours) if self.looks_inside else ()
        for f in hollow:
            (wrong.setdefault(f.path, []) if f.is_error else warnings).append(f)
        self._add_contradictions(parts, wrong, warnings)
        return wrong

    def _add_contradictions(
        self, parts: Sequence[Part], wrong: dict[str, list[Finding]], warnings: list[Finding]
    ) -> None:
        """Add contradictions to ``wrong`` and ``warnings``. Raises UsageError if either may be the copy."""
        loaded, step = {p.path: p for p in parts}, self.selection.max_step
        accepted = step is not None and step == self.candidate.step  # --max-step answered the question
        for path, f, twin in self.judge.find_contradictions(self.candidate, self.whole, parts, wrong):
            if f.severity is Severity.NOTE and twin is not None and path in loaded and not accepted:
                raise self._ask_which_is_the_copy(loaded[path], twin)
            if not f.is_error:
                warnings.append(replace(f, path=path))
                continue
            if path not in wrong:
                self.contradicted.add(path)
                self.twins |= {path: twin} if twin is not None else {}
            elif twin is None:
                self.twins.pop(path, None)
            wrong.setdefault(path, []).append(f)

    def _explain_rejection(self, part: Part) -> list[Finding] | None:
        """Return why a file must not be loaded, with warnings as errors; None if it may be. Reads it."""
        report, piece = self.session.report(part, self.level), self.session.layouts.piece_of(part)
        if report.verdict not in _UNUSABLE and self.selection.level > Level.STRUCTURE:
            report, self.contents_read = self.session.report(part, self.selection.level), True
        expected = piece.formats if self.looks_inside and part.role == piece.role else ()
        if report.verdict not in _UNUSABLE and not (expected and report.format not in expected):
            return None
        if report.verdict is Verdict.UNKNOWN and (why := find_reason(part, self.session)) is not None:
            self.unseen[part.path] = why
        found = sorted(report.findings, key=lambda f: -f.severity)  # the cause comes first
        return [replace(f, severity=Severity.ERROR) for f in found if f.severity is not Severity.NOTE]

    def _read_ahead(self, parts: Sequence[Part]) -> None:
        """Read many files in several processes; contents only of files whose structure is sound."""
        s, level = self.session, self.selection.level
        prefetch(s, parts, self.level)
        if level <= Level.STRUCTURE:
            return
        s.expect(p for p in parts if p.path not in s.reports or s.known(p).level < level)
        if len(parts) >= LEAST:
            good = [p for p in parts if s.report(p, self.level).verdict not in _UNUSABLE]
            prefetch(s, good, level)

    def _find_holes(self, parts: Sequence[Part]) -> tuple[Finding, ...]:
        """Return tensors of which the files to load hold only some pieces; () if they are complete."""
        boxes, path = self.session.places, self.whole.path  # which pieces of tensors files hold, by directory
        pieces = [boxes[home] for home in {os.path.dirname(p.path) for p in parts} if home in boxes]
        return tuple(replace(f, path=path) for files in pieces for f in find_incomplete(files.values()))

    # ---- is it known

    def _require_certainty(self, assigned: Assignment) -> None:
        """Raise CkptError if only unread files, or copies that may be originals, speak against the save."""
        if not self.selection.skip_unreadable:
            self._require_inspected(assigned)
        if self.twins and self._assign_as_if_good(self.twins):
            part = next(p for p in self.whole.parts if p.path in self.twins)
            raise self._ask_which_is_the_copy(part, self.twins[part.path])

    def _require_inspected(self, assigned: Assignment) -> None:
        """Raise CannotLook if only unread files keep the save from being used: an older one may be wrong."""
        still_unseen = {
            p.path: f for p in self.whole.parts if (f := find_reason(p, self.session)) is not None
        }
        unseen = {**still_unseen, **self.unseen}
        at_best = self._assign_as_if_good({*unseen, *self.contradicted}) if unseen else None
        if at_best is None:
            return
        path = next((p.path for p in at_best.parts if p.path in unseen), next(iter(unseen)))
        finding, rejected = unseen[path], (Rejected(self.whole, assigned.findings),)
        root, verified = self.session.root, self.session.reader.bytes_verified
        no_plan = LoadPlan(root, None, Resume(None), rejected=rejected, bytes_verified=verified)
        raise could_not_look.stop(f"{finding.path or path}: {finding.message}", HINT, no_plan)

    def _assign_as_if_good(self, paths: Collection[str]) -> Assignment | None:
        """Return what ranks would load if the files at ``paths`` were good; None if some still had none."""
        still_bad = {path: findings for path, findings in self.bad.items() if path not in paths}
        at_best = self._assign(still_bad, compare_bytes=False)
        lost = any(f.is_error and f.code != "replica-unproven" for f in at_best.findings)
        return None if lost else at_best

    def _ask_which_is_the_copy(self, mine: Part, twin: Part) -> CkptError:
        """Return the question which file is the copy: ``mine``, of the candidate, or its ``twin``."""
        c, first, second = self.candidate, *sorted((mine, twin), key=find_when)
        steps = [o.step for o in self.run.candidates if o.step is not None and o.step < (c.step or 0)]
        limit = c.step if mine is first else max(steps, default=None)
        answers = [make_clause(hint_exclude(self.session.root, c, *filter(None, (twin.home, twin.path))))]
        if limit is not None:
            how = "it as it is" if mine is first else f"step {limit}"
            answers.append(f"add --max-step {limit} to resume from {how}")
        return same_content.ask_which_is_the_copy(self.session.root, first.path, second.path, answers)
