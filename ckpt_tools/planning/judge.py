"""One candidate in, a judgement out: complete, consistent and sound? The judge reads only what the plan would load."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, islice
from math import prod
from shlex import quote

from ckpt_tools.crosscheck import attempts, consistency, twins
from ckpt_tools.crosscheck.duplicates import same_content
from ckpt_tools.crosscheck.neighbours import Neighbours
from ckpt_tools.crosscheck.unlike import changed
from ckpt_tools.crosscheck.writers import contradictions
from ckpt_tools.discovery import completeness
from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.findings import finding
from ckpt_tools.formats.pickles import unlisted
from ckpt_tools.inspection.digests import tensor_digests
from ckpt_tools.layouts import BY_NAME
from ckpt_tools.layouts.common.rank_grid import Topology
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import LoadPlan, Rejected, Resume
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning.assign import Assignment, assign, mismatched
from ckpt_tools.planning.choose import Judgement
from ckpt_tools.planning.newest import UNKNOWN
from ckpt_tools.reading.prefetch import by_crowd
from ckpt_tools.reading.processes import LEAST
from ckpt_tools.reading.session import Session
from ckpt_tools.reading.unseen import HINT, why_unseen

_ELSEWHERE = 4096
"""Files of other checkpoints, at least, whose sizes are compared with those of the planned files."""
_SIBLINGS = 100_000
"""Files of other checkpoints, nearest in time first, whose times are compared: enough of them show what is usual."""
_NEIGHBOURS = 64
"""Structure passes spent at most on the files of neighbouring steps, to compare steps and tensors with."""


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
        candidates: Sequence[Checkpoint] = (),
    ) -> None:
        self.session, self.checkpoints, self.topology, self.saved = session, checkpoints, topology, saved
        self.selection, self.expected, self.candidates = selection, run, candidates
        self.begun: Sequence[Checkpoint] = ()  # saves of the run that never finished
        self.assignments: dict[int, Assignment] = {}
        self.names = min(Level.STRUCTURE, selection.level)  # at presence the names must do
        self.twins: dict[
            tuple[str, Finding], Part
        ] = {}  # the file of another step that may as well be the copy
        self.named: Checkpoint | None = (
            None  # the candidate as its names show it, without what its indexes add
        )

    def judge(self, c: Checkpoint) -> Judgement:
        """Complete, consistent and sound? Reads only what the plan would load, and replaces a bad part by a replica before giving up."""
        s, bad, before = self.session, dict[str, Sequence[Finding]](), self.session.reader.bytes_verified
        self.named, c = c, self.session.members(c)
        everyone = all(
            BY_NAME[c.layout].piece(p.piece).shared for p in c.parts
        )  # then nobody asks for the file of one rank
        absent = [
            f
            for f in completeness.missing(c, self.expected)
            if f.code == "missing-part" or (everyone and f.severity is Severity.ERROR)
        ]
        absent += BY_NAME[c.layout].lacks(self.named, self.candidates)
        if absent or (absent := self._hidden(c)):
            return Judgement(False, tuple(absent))
        read, concluded = False, set[str]()  # files that are only wrong beside the others
        while True:
            differences = self._differences if self.selection.prove_replicas else None
            a = assign(
                c,
                self.topology,
                self.selection,
                bad,
                self._signature,
                lambda rank_, part: self._evidence(c, rank_, part, bad),
                differences,
            )
            if a.groupless and self.selection.ranks is None:  # else another node may have it
                raise UsageError(
                    f"{'; '.join(f.message for f in a.findings if f.code == 'replica-groups-needed')} ({c.path})",
                    "say --replica-groups '0,2;1,3' (or FILE), --strategy-dir DIR, parallel sizes such as --tp, or --replicas all",
                )
            if not bad:
                self._require_its_world(c, a)
            if any(f.severity is Severity.ERROR for f in a.findings):
                self._require_known(c, a, bad, concluded)
                return Judgement(False, tuple(a.findings), read)
            wrong: dict[str, list[Finding]] = {}
            self._ahead(a.parts)
            for part in a.parts:
                report = s.report(part, self.names)
                if (
                    report.verdict not in (Verdict.BROKEN, Verdict.UNKNOWN)
                    and self.selection.level > Level.STRUCTURE
                ):
                    report, read = s.report(part, self.selection.level), True
                piece = BY_NAME[part.layout].piece(part.piece)
                alien = (
                    self.names
                    and piece.formats
                    and report.format not in piece.formats
                    and part.role == piece.role
                )
                if report.verdict in (Verdict.BROKEN, Verdict.UNKNOWN) or alien:
                    # in-use and unreadable are warnings of a file, but what keeps a candidate from being planned is an error
                    wrong[part.path] = [
                        replace(f, severity=Severity.ERROR)
                        for f in report.findings
                        if f.severity is not Severity.NOTE
                    ]
            for path, f in self._contradictions(c, a):
                if f.severity is Severity.ERROR:
                    concluded.update(() if path in wrong else (path,))
                    wrong.setdefault(path, []).append(f)
                else:
                    a.findings.append(replace(f, path=path))
            if not wrong and (gaps := self._gaps(c, a)):
                return Judgement(False, gaps, read)
            bad.update(wrong)
            if not any(part.path in bad for part in a.parts):  # what is wrong lies in files that nobody loads
                if mixed := self._two_attempts(a):
                    return Judgement(False, mixed, read)
                self._require_no_twin(a)
                self._require_trust(a)
                self.assignments[id(self.named)] = a
                return Judgement(
                    True,
                    tuple(a.findings),
                    read or (s.reader.bytes_verified > before and self.selection.level > Level.STRUCTURE),
                )

    def _gaps(self, c: Checkpoint, a: Assignment) -> tuple[Finding, ...]:
        """Tensors of which the planned files hold only some pieces."""
        places = self.session.places
        pieces = [places[home] for home in {os.path.dirname(p.path) for p in a.parts} if home in places]
        if not pieces:
            return ()
        from ckpt_tools.formats.common.tensor_pieces import incomplete

        return tuple(replace(f, path=c.path) for files in pieces for f in incomplete(files.values()))

    def _two_attempts(self, a: Assignment) -> tuple[Finding, ...]:
        """Why files that would be loaded together are of two saves of the step. Raises UsageError where only their times say so: a restored file looks the same."""
        assert self.named is not None  # noqa: S101 - judge() has set it; for the type checker
        c, kinds = self.named, {p.piece for p in a.parts}
        others, files = list[Checkpoint](), 0  # a file that does not tell its step may be of this very one
        for o in sorted(self.checkpoints, key=lambda o: abs(o.mtime_ns - c.mtime_ns)):
            if (
                o.order not in (c.order, UNKNOWN)
                and (o.layout, o.run) == (c.layout, c.run)
                and files < _SIBLINGS
            ):
                others.append(o)
                files += len(o.parts)
        found = attempts.apart(
            a.parts,
            [[p for p in o.parts if p.piece in kinds] for o in others],
            [o.parts for o in self.begun if o.order != c.order],
        )
        if found is None:
            return ()
        text = f"{completeness.label(c)} joins files of two attempts to save it: {found.sides(self.session.root)}; {found.why}"
        if found.restarted:
            return (finding("mixed-attempts", text, path=c.path, severity=Severity.ERROR),)
        name = c.parts[0].home or found.newer[0].path
        declared = {os.path.realpath(path) for path in self.selection.same_save}
        if declared.isdisjoint(os.path.realpath(path) for path in (name, *(p.path for p in c.parts))):
            raise UsageError(
                text,
                f"if they are of one save, and some were only restored or copied: --same-save {quote(name)}; else move it out of ROOT",
            )
        return ()

    def _require_known(
        self, c: Checkpoint, a: Assignment, bad: Mapping[str, Sequence[Finding]], concluded: Collection[str]
    ) -> None:
        """Raises CkptError where the candidate loses for what nobody knows: files that could not be read, or that may not be the copies."""
        if not self.selection.skip_unreadable:
            self._look_first(c, a, bad, concluded)
        doubtful = [path for path, fs in bad.items() if fs and all((path, f) in self.twins for f in fs)]
        if not doubtful:
            return
        worse = {path: fs for path, fs in bad.items() if path not in doubtful}
        at_best = assign(
            c,
            self.topology,
            self.selection,
            worse,
            self._signature,
            lambda rank_, part: self._evidence(c, rank_, part, worse),
            None,
        )
        if not any(f.severity is Severity.ERROR and f.code != "replica-unproven" for f in at_best.findings):
            part = next(p for p in c.parts if p.path in doubtful)
            raise self._which(part, self.twins[part.path, bad[part.path][0]])

    def _require_no_twin(self, a: Assignment) -> None:
        """Raises UsageError where a file to load may be the copy of another step's. A ``max_step`` that is the candidate's own step takes it as it is."""
        assert self.named is not None  # noqa: S101 - judge() has set it; for the type checker
        if self.selection.max_step is not None and self.selection.max_step == self.named.step:
            return
        loaded = {p.path: p for p in a.parts}
        for (path, f), twin in self.twins.items():
            if path in loaded and f.severity is Severity.NOTE:
                raise self._which(loaded[path], twin)

    def _require_trust(self, a: Assignment) -> None:
        """Raises UsageError where a file to load names what is in no list, and its framework would unpickle it without asking: nobody but the caller knows whose code that is."""
        for part in a.parts:
            report = self.session.reports[part.path]
            if any(f.code == "unknown-global" for f in report.findings):
                raise UsageError(*unlisted.question(part.path, report.unlisted))

    def _which(self, mine: Part, twin: Part) -> UsageError:
        assert self.named is not None  # noqa: S101 - as above
        return twins.question(self.named, mine, twin, self.candidates, self.session.root)

    def _look_first(
        self, c: Checkpoint, a: Assignment, bad: Mapping[str, Sequence[Finding]], concluded: Collection[str]
    ) -> None:
        """Raises CannotLook when the candidate could be planned if the files that could not be read are whole: not having looked is no reason to go back in time.

        What was ``concluded`` from several files may be so for want of those.
        """
        unseen = {p.path: f for p in c.parts if (f := why_unseen(p, self.session)) is not None}
        if not unseen:
            return
        worse = {path: fs for path, fs in bad.items() if path not in unseen and path not in concluded}
        at_best = assign(
            c,
            self.topology,
            self.selection,
            worse,
            self._signature,
            lambda rank_, part: self._evidence(c, rank_, part, worse),
            None,
        )
        hopeless = any(
            f.severity is Severity.ERROR and f.code != "replica-unproven" for f in at_best.findings
        )
        if hopeless:
            return
        path = next((p.path for p in at_best.parts if p.path in unseen), next(iter(unseen)))
        s, why = self.session, unseen[path]
        empty = LoadPlan(
            s.root,
            None,
            Resume(None),
            rejected=(Rejected(c, tuple(a.findings)),),
            bytes_verified=s.reader.bytes_verified,
        )
        raise CannotLook(f"{why.path or path}: {why.message}", HINT, plan=empty)

    def _hidden(self, c: Checkpoint) -> list[Finding]:
        """What could not be listed in the candidate's own directory, where the caller gave leave to pass over what cannot be read: it is this checkpoint."""
        home = c.parts[0].home
        if not (home and self.selection.skip_unreadable):
            return []
        return [
            finding("unreadable", row.why, path=row.path, severity=Severity.ERROR)
            for row in self.session.found.unseen
            if row.path.startswith(f"{home}/")
        ]

    def _require_its_world(self, c: Checkpoint, a: Assignment) -> None:
        """Raises UsageError where another number of ranks than saved this very checkpoint, or another grid of them, would leave state unread."""
        own = {} if BY_NAME[c.layout].reshardable else dict(self.expected.told(c))
        for axis in (
            ("tp", "pp") if own else ()
        ):  # places that its names show are there, whatever its files say
            own[axis] = max(
                own.get(axis, 0),
                1 + max((at for p in c.parts for a_, at in p.coords if a_ == axis), default=-1),
            )
        grid = prod(max(1, own.get(axis, 1)) for axis in ("tp", "pp", "cp"))
        world = grid if own.get("world", 0) % grid else own.get("world")
        clash = mismatched(c, a, self.topology, completeness.named_world(c) or world or self._saved_by(c))
        now = {
            axis: self.topology.sizes.get(axis, own[axis])
            for axis in ("tp", "pp")
            if own.get(axis) and axis not in self.selection.sizes
        }
        other = [axis for axis, n in now.items() if n != own[axis]]
        if clash is None and not other:
            return
        text = (
            f"saved with {other[0]}={own[other[0]]}, to be loaded with {other[0]}={now[other[0]]}"
            if clash is None
            else clash.message
        )
        raise UsageError(
            f"topology-mismatch: {text} ({c.path})",
            "start with the saved world size, or name the replicas with --replica-groups or --replicas all",
        )

    def _saved_by(self, c: Checkpoint) -> int | None:
        """How many ranks saved a checkpoint, where other saves tell: that an older one had more says nothing of one without a file beyond this job's ranks."""
        world = self.topology.world_size
        smaller = (self.saved or 0) > world > max(completeness.ranks_of_its_own(c), default=world)
        return None if smaller else self.saved

    def _ahead(self, parts: Sequence[Part]) -> None:
        """Many files are read by several processes at once: their contents only if nothing is wrong with their structure."""
        s, level = self.session, self.selection.level
        by_crowd(s, parts, self.names)
        if level > Level.STRUCTURE:
            s.expect(p for p in parts if p.path not in s.reports or s.reports[p.path].level < level)
        if level > Level.STRUCTURE and len(parts) >= LEAST:
            by_crowd(
                s,
                [
                    p
                    for p in parts
                    if s.report(p, self.names).verdict not in (Verdict.BROKEN, Verdict.UNKNOWN)
                ],
                level,
            )

    def _contradictions(self, c: Checkpoint, a: Assignment) -> Iterator[tuple[str, Finding]]:
        """Steps and tensors of the planned parts against each other and against the neighbouring steps of the run."""
        parts = list(c.parts) if BY_NAME[c.layout].committed else a.parts
        mine = {p.path for p in parts}
        for p in parts:
            self.session.report(p, self.names)
        ranks = {p.rank for p in parts}
        near = list(
            islice(
                (o for o in self._same_kind.around(c, (c.layout, c.run, c.kind)) if o is not self.named), 3
            )
        )
        neighbours = [p for o in near for p in o.parts if p.rank in ranks and p.size > 0][:_NEIGHBOURS]
        for p in neighbours:
            self.session.report(p, self.names)
        compared = [
            *parts,
            *(p for p in neighbours if self.session.reports[p.path].verdict is not Verdict.BROKEN),
        ]
        reports = self.session.reports
        said = [
            *consistency.consistency(compared, reports),
            *contradictions([(p, reports[p.path]) for p in compared]),
            *attempts.unlike(parts, reports),
        ]
        yield from ((path, f) for path, f in said if path in mine)
        if self.selection.level > Level.STRUCTURE:
            wrong = {
                path for path, f in said if f.severity is Severity.ERROR
            }  # of two equal files the one that contradicts its name is the copy
            copied = same_content(
                [p for p in compared if p.path not in wrong],
                self.session,
                self._elsewhere(c, {p.path for p in compared}),
            )
            for path, f, twin in copied:
                if path in mine:
                    self.twins.update({} if twin is None else {(path, f): twin})
                    yield path, f
        for odd, typical in (*consistency.signatures(compared, reports), *self._unlike_replicas(c)):
            if odd.path in mine:
                yield odd.path, changed(odd, typical, self.session)

    @cached_property
    def _same_kind(self) -> Neighbours:
        return Neighbours(self.checkpoints, lambda o: (o.layout, o.run, o.kind))

    @cached_property
    def _same_run(self) -> Neighbours:
        return Neighbours(self.checkpoints, lambda o: o.run)

    @cached_property
    def _full(self) -> Neighbours:
        return Neighbours(
            [o for o in self.checkpoints if any(p.size > 0 for p in o.parts)], lambda o: (o.layout, o.run)
        )

    def _elsewhere(self, c: Checkpoint, known: set[str]) -> list[Part]:
        """Files of the run's other checkpoints, nearest first, that may be what a planned file is a copy of."""
        out: list[Part] = []
        for o in self._full.around(c, (c.layout, c.run)):
            if o is self.named:
                continue
            out += (p for p in o.parts if p.path not in known and p.size > 0)
            if len(out) > max(_ELSEWHERE, 4 * len(c.parts)):
                break
        return out

    def _unlike_replicas(self, c: Checkpoint) -> Iterator[tuple[Part, Part]]:
        """(odd part, typical part) where members of a replica group hold other tensors than most: the only sign of a MindSpore file cut at a record border."""
        selection = self.selection
        for role in {p.role for p in c.parts}:
            told = (
                selection.replica_groups.get(role, selection.replica_groups.get("")) or self.topology.strategy
            )
            everyone = (tuple(range(self.topology.world_size)),) if selection.replicas_all else ()
            by_rank = {
                p.rank: p
                for p in c.parts
                if p.role == role and p.size > 0 and not BY_NAME[c.layout].piece(p.piece).sharded
            }
            for group in told or everyone:
                known = [(p, s) for rank in group if (p := by_rank.get(rank)) and (s := self._signature(p))]
                if len({s for _, s in known}) < 2:
                    continue
                counts = Counter(s for _, s in known)
                typical = max(
                    known, key=lambda row: (counts[row[1]], self.session.reports[row[0].path].tensors)
                )
                yield from ((p, typical[0]) for p, s in known if s != typical[1])

    def _signature(self, part: Part) -> str | None:
        report = self.session.report(part, self.names)
        return None if report.metadata.get("remove_redundancy") == "True" else report.signature

    def _differences(self, a: Part, b: Part) -> list[str]:
        """Tensors that differ between two members of a replica group; each rank keeps random numbers of its own."""
        s = self.session
        slow = s.reader.rate.took if s.reader.rate else None
        digests = [
            tensor_digests(
                p.path, s.inspect(p.path, Level.STRUCTURE)[1], slow, jobs=s.options.jobs, io=s.reader.io
            )
            for p in (a, b)
        ]
        names = digests[0].keys() | digests[1].keys()
        return sorted(n for n in names if "rng" not in n.lower() and digests[0].get(n) != digests[1].get(n))

    def _evidence(
        self, c: Checkpoint, rank_: int, part: Part, bad: Mapping[str, Sequence[Finding]]
    ) -> Iterator[tuple[str, str]]:
        """Tensor signatures of what the rank itself wrote: in this checkpoint if it still can be read, else at the nearest other step."""
        others = (o for o in self._same_run.around(c, c.run) if o is not self.named)
        for o in chain((c,), others):
            for p in o.parts:
                cut = any(
                    f.code == "signature-changed" for f in bad.get(p.path, ())
                )  # what is left of its tensors proves nothing
                if p.rank == rank_ and p.role == part.role and p.size > 0 and p.path != part.path and not cut:
                    report = self.session.report(p, self.names)
                    if report.signature and not any(
                        f.code in ("truncated", "bad-header", "bad-pickle", "trailing-data")
                        for f in report.findings
                    ):
                        yield (
                            f"rank {rank_}'s own file {os.path.relpath(p.path, self.session.root)}",
                            report.signature,
                        )
