"""The one engine: collects the facts of a run, asks the rules, and adds their findings to file reports."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain

from msgspec.structs import replace

from ckpt_tools.discovery import completeness
from ckpt_tools.discovery import group as grouping
from ckpt_tools.discovery.seals import NOTES
from ckpt_tools.formats import format_of, hides_cuts
from ckpt_tools.formats import names as format_names
from ckpt_tools.formats.common.tensors import find_incomplete
from ckpt_tools.layouts.common.saved_by import read_sizes
from ckpt_tools.model.checkpoint import Checkpoint, CheckpointKey, Order
from ckpt_tools.model.finding import Finding, Severity, Verdict, worst
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Level, Report, Tensor
from ckpt_tools.planning import lost_files, trackers
from ckpt_tools.planning.equal_files import EqualFiles
from ckpt_tools.planning.facts import SavesFacts, find_neighbours, get_order
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, finding_of, make_finding
from ckpt_tools.planning.rules.save import (
    missing_part,
    missing_rank,
    mixed_counters,
    parallel_sizes,
    rank_mismatch,
    replica_mismatch,
    signature_changed,
    step_mismatch,
    unfinished,
)
from ckpt_tools.reading.session import Session, with_findings

BESIDE: tuple[Rule, ...] = (
    *(step_mismatch.RULE, rank_mismatch.RULE, parallel_sizes.RULE, mixed_counters.RULE),
    *(signature_changed.RULE, replica_mismatch.RULE),
)
"""Rules that compare files with their names and with each other."""
GAPS: tuple[Rule, ...] = (missing_rank.RULE, missing_part.RULE, unfinished.RULE)
"""Rules that compare a save with the other saves of its run, and find files that it lacks."""


def make_facts(
    s: Session,
    saves: Sequence[Checkpoint],
    expected: completeness.Expected,
    files: Sequence[Part],
    first: Order | None = None,
) -> SavesFacts:
    """Return the facts of saves and their ``files``. Tensors of a file are read once a rule asks for them."""

    def tensors(part: Part) -> dict[str, Tensor]:
        anatomy = s.inspect(part.path, Level.STRUCTURE, expect=s.layouts.piece_of(part).formats)[1]
        return {t.name: t for t in anatomy.tensors}

    def begins_with(whole: Part, cut: Report) -> bool:
        from ckpt_tools.inspection.check import inspect, signature  # most formats show that a file was cut

        anatomy = inspect(whole.path, Level.STRUCTURE, expect=s.layouts.piece_of(whole).formats)[1]
        return signature(anatomy.tensors[: cut.tensors]) == cut.signature

    return SavesFacts(saves, expected, files, s.reports, tensors, hides_cuts, begins_with, first)


def find_hits(facts: SavesFacts, rules: Iterable[Rule] = BESIDE) -> Iterator[tuple[Hit, Finding]]:
    """Yield each hit of the rules with its finding. The finding has no path if the hit is on a file."""
    for rule in rules:
        for hit in list(rule.check(facts)) if rule.check else ():
            yield hit, finding_of(rule, hit)


def find_gaps(
    c: Checkpoint, expected: completeness.Expected, rules: Iterable[Rule] = GAPS, *, spared: bool = False
) -> list[Finding]:
    """Return findings on files that a save lacks: needed ones, or with ``spared`` the dispensable ones."""
    hits = find_hits(SavesFacts((c,), expected), rules)
    return [f for hit, f in hits if (hit.effect is Effect.WARN) is spared]


def check_together(
    s: Session, whole_tree: bool, level: Level = Level.STRUCTURE, saves: Iterable[Checkpoint] | None = None
) -> list[Finding]:
    """Return findings on the run's saves and directories; findings on files are added to their reports."""
    parts = s.parts if saves is None else [p for c in saves for p in c.parts]
    index_paths = set(s.found.indexes) if saves is None else {p.path for p in parts}
    out = _check_directories(s, index_paths) if whole_tree else []
    reported = {f.path for f in out}
    for checkpoints in s.runs(grouping.group(parts, s.layouts)).values():
        run = _Run(s, checkpoints, whole_tree)
        out += run.check(level)
        if whole_tree and run.finished:
            found = trackers.find_tracker_findings(s, run.finished, run.incomplete.copy)
            out += (f for f in found if f.path not in reported)
    return out


def _check_directories(s: Session, index_paths: Container[str]) -> list[Finding]:
    """Return findings on directories: tensors with holes, texts that are gone, indexes at ``index_paths``."""
    out = [replace(f, path=home) for home, files in s.places.items() for f in find_incomplete(files.values())]
    indexes = [os.path.split(path) for path in s.found.indexes if path in index_paths]
    allowed = ((home, name, of) for home, name in indexes for of in format_names.allowed(name))
    with_suffix = {(home, of) for home, name, of in allowed if name.endswith(format_of(of).suffixes)}
    for home, of in sorted(with_suffix):
        out += format_of(of).beside(home, NOTES)  # which opens small files for the format
    return [*out, *lost_files.find_lost_texts(s)]


def add_finding(s: Session, path: str, f: Finding) -> None:
    """Add a finding to the session's report on the file at ``path``, which is read if there is no report."""
    s.reports[path] = with_findings(s.reports.get(path) or s.report_file(path, Level.STRUCTURE), [f])


class _Run:
    """The checkpoints of one run; ``incomplete`` ones lack files. ``tree``: a whole directory is checked."""

    def __init__(self, session: Session, checkpoints: Sequence[Checkpoint], tree: bool) -> None:
        self.session, self.checkpoints, self.tree = session, checkpoints, tree
        self.finished = [c for c in checkpoints if not c.unfinished]
        self.in_order = sorted(self.finished, key=get_order)
        self.incomplete = set[CheckpointKey]()

    @cached_property
    def expected(self) -> completeness.Expected:
        """What the finished saves lead to expect of each; reads no further file."""
        s = self.session

        def find_sizes(c: Checkpoint) -> dict[str, int]:
            return read_sizes(s.known(p) for p in c.parts if p.path in s.reports)

        return completeness.expect_sizes(self.finished, s.layouts, sizes_in_files=find_sizes)

    def check(self, level: Level) -> list[Finding]:
        """Return findings on saves and directories; findings on files are added to their reports."""
        s, out, contradicted = self.session, list[Finding](), set[str]()
        parts = [p for c in self.finished for p in c.parts]  # unfinished saves prove nothing
        for hit, f in find_hits(make_facts(s, self.finished, self.expected, parts)):
            if not hit.of_file:
                out.append(f)
                continue
            add_finding(s, hit.path, f)
            if f.is_error:
                contradicted.add(hit.path)
        for path, f in list(lost_files.find_odd_files([(p, s.known(p)) for p in parts])):
            add_finding(s, path, f)
        self._check_contents(level, contradicted)
        newest = max(self.finished, key=get_order, default=None)
        for c in self.checkpoints:
            out += self._check_completeness(c)
        if newest is not None and self.tree:
            for c in self.finished:
                lost = list(lost_files.find_lost(s, c, find_neighbours(c, self.in_order), level))
                if any(f.is_error for f in lost):
                    self.incomplete.add(c.key)
                out += lost
            # directories that were checkpoints until their indexes were lost, or before they had one
            out += lost_files.find_headless(s, s.members(newest)) if s.found.strange else ()
            out += trackers.find_begun_later(s, self.finished[-1])
            out += map(make_finding, s.layouts.of(self.finished[0]).records.check(self.finished, NOTES))
        return out

    def _check_contents(self, level: Level, contradicted: Container[str]) -> None:
        """Add to reports which files are copies, zeros or empty; ``contradicted`` ones are no copies."""
        s = self.session
        wholes = [(s.members(c), find_neighbours(c, self.in_order)) for c in self.finished]
        if self.tree and level >= Level.CONTENT:
            members = chain.from_iterable(c.parts for c, _ in wholes)
            sound = [p for p in members if p.path in s.reports and p.path not in contradicted]
            for copy in list(EqualFiles(s).find_copies(sound)):
                add_finding(s, copy.path, copy.finding)
        zeroed = (lost_files.find_zeroed(s, c, beside) for c, beside in wholes if self.tree)
        hollow = (lost_files.find_hollow(s, c, find_neighbours(c, self.in_order)) for c in self.finished)
        for of_saves in (zeroed, hollow):
            for f in list(chain.from_iterable(of_saves)):
                add_finding(s, f.path, f)

    def _check_completeness(self, c: Checkpoint) -> Iterator[Finding]:
        """Yield files that a checkpoint lacks or has twice. A save that a tracker names was finished."""
        s, layout = self.session, self.session.layouts.of(c)
        if declared := trackers.find_declared(s, c):
            yield declared
        elif c.unfinished:
            self._soften(c.parts)
            yield unfinished.describe_begun(c, layout, trackers.find_hint(s, c))
        else:
            gaps = self._find_gaps(c) if self.tree else []
            if any(f.severity is not Severity.NOTE for f in gaps):
                self.incomplete.add(c.key)
            yield from gaps
            yield from find_gaps(c, self.expected, spared=True) if self.tree else ()
            yield from rank_mismatch.find_doubled(c, layout)
            yield from mixed_counters.find_leftovers(c, self.expected)

    def _find_gaps(self, c: Checkpoint) -> list[Finding]:
        """Return the files that a checkpoint lacks, as one finding if the save may still be under way."""
        s = self.session
        gaps = find_gaps(c, self.expected) or [*lost_files.find_no_model(s, c)]
        rows = ((p, s.known(p).findings) for p in c.parts)
        torn = [p for p, found in rows if any(f.code in trackers.TORN and f.is_error for f in found)]
        looks_torn = torn or any(f.severity is not Severity.NOTE for f in gaps)
        if not looks_torn or not s.unfinished(c, self.finished):
            return gaps
        self._soften(torn)
        torn_text = f"{completeness.name_kind(c)} ends early, or a file of it does"
        text = "; ".join(f.message for f in gaps) or torn_text
        ranks = next((f.ranks for f in gaps if f.ranks), ())
        hit = Hit(c.path, text, trackers.find_hint(s, c), ranks=ranks)
        return [finding_of(unfinished.RULE, hit)]

    def _soften(self, torn: Iterable[Part]) -> None:
        """Turn errors into warnings in the reports of half-written files: an unfinished save is no damage."""
        reports = self.session.reports
        for p in torn:
            report = reports.get(p.path)
            if report and report.verdict is Verdict.BROKEN:
                found = report.findings
                softer = tuple(
                    replace(f, severity=Severity.WARNING) if f.code in trackers.TORN else f for f in found
                )
                reports[p.path] = replace(report, findings=softer, verdict=worst(softer))
