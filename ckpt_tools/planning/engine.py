"""The one engine: makes facts of a run, asks the rules, and joins what they hit to the reports on files.

What still has to read while it looks is a function here: of files it gives (path, finding), which is added to
the file's report before the next one looks at it, of checkpoints findings that belong to no single file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property

from ckpt_tools.discovery import completeness
from ckpt_tools.discovery import group as grouping
from ckpt_tools.discovery.sidecars import NOTES
from ckpt_tools.formats import format_of, hides_cuts
from ckpt_tools.formats import names as format_names
from ckpt_tools.formats.common.counters import is_optimizer_state
from ckpt_tools.formats.common.zeros import ZEROS
from ckpt_tools.layouts.common.saved_by import saved_sizes
from ckpt_tools.model.checkpoint import Checkpoint, CheckpointKey
from ckpt_tools.model.finding import Finding, Severity, Verdict, worst
from ckpt_tools.model.frozen import field, record, replace
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Level, Report
from ckpt_tools.model.tensor import Tensor
from ckpt_tools.planning.equal_files import EqualFiles
from ckpt_tools.planning.facts import SavesFacts
from ckpt_tools.planning.hollow import hollow
from ckpt_tools.planning.lost_files import (
    find_lost_texts,
    headless,
    lost,
    unlike_list,
    unlike_run,
    without_model,
    zeroed,
)
from ckpt_tools.planning.neighbours import Siblings
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, finding_of
from ckpt_tools.planning.rules.save import (
    missing_part,
    missing_rank,
    mixed_counters,
    parallel_sizes,
    rank_mismatch,
    replica_mismatch,
    sibling_has_role,
    signature_changed,
    step_mismatch,
    unfinished,
)
from ckpt_tools.planning.trackers import declared, missing, tracker_findings
from ckpt_tools.planning.unfinished import TORN, begun_later, hint_of
from ckpt_tools.reading.session import Session, with_findings

BESIDE: tuple[Rule, ...] = (
    step_mismatch.RULE,
    rank_mismatch.RULE,
    parallel_sizes.RULE,
    mixed_counters.RULE,
    signature_changed.RULE,
    replica_mismatch.RULE,
)
"""What is wrong with files beside their names and each other."""
GAPS: tuple[Rule, ...] = (missing_rank.RULE, missing_part.RULE, sibling_has_role.RULE, unfinished.RULE)
"""What a save lacks beside the others of its run."""
FileFinding = tuple[str, Finding]
"""The path of a file, and what is said of it."""


@record
class _Run:
    """The checkpoints of one run, and what the checks so far have shown.

    ``tree``: more than one file was asked for. ``zeros``: some file seems to hold nothing else.
    """

    session: Session
    checkpoints: Sequence[Checkpoint]
    tree: bool
    level: Level
    zeros: bool = False
    contradicted: set[str] = field(default_factory=set)
    """Files that contradict their names: errors."""
    incomplete: set[CheckpointKey] = field(default_factory=set)
    """Checkpoints that lack parts."""

    @cached_property
    def finished(self) -> list[Checkpoint]:
        return [c for c in self.checkpoints if not c.unfinished]

    @cached_property
    def parts(self) -> list[Part]:
        """What a save left half written proves nothing, so only those of finished checkpoints."""
        return [p for c in self.finished for p in c.parts]

    @cached_property
    def expected(self) -> completeness.Expected:
        """What its saves lead to expect of each."""
        s = self.session
        return completeness.expected(
            self.finished,
            s.layouts,
            sizes_in_files=lambda c: saved_sizes(s.known(p) for p in c.parts if p.path in s.reports),
        )

    @property
    def reports(self) -> dict[str, Report]:
        return self.session.reports

    def add(self, path: str, f: Finding) -> None:
        """Add a finding to the report on a file."""
        report = self.reports.get(path) or self.session.report_file(path, Level.STRUCTURE)
        self.reports[path] = with_findings(report, [f])


class FileContents:
    """What rules ask of the files of a session."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def tensors(self, part: Part) -> dict[str, Tensor]:
        """The tensors of a file by their names."""
        formats = self.session.layouts.piece_of(part).formats
        anatomy = self.session.inspect(part.path, Level.STRUCTURE, expect=formats)[1]
        return {t.name: t for t in anatomy.tensors}

    def hides_cuts(self, format_: str | None) -> bool:
        """Return True if a file of the format may end after any record and look whole."""
        return hides_cuts(format_)

    def begins_with(self, whole: Part, cut: Report) -> bool:
        """Return True if ``whole`` begins with all the tensors of a file that may be cut."""
        formats = self.session.layouts.piece_of(whole).formats
        from ckpt_tools.inspection.check import prefix_signature  # few files may be cut and look whole

        return prefix_signature(whole.path, formats, cut.tensors) == cut.signature

    def is_optimizer_state(self, tensor: str) -> bool:
        """Return True if the name of a tensor says that it is what an optimizer keeps of a parameter."""
        return is_optimizer_state(tensor)


def find_hits(facts: SavesFacts, rules: Iterable[Rule] = BESIDE) -> Iterator[tuple[Hit, Finding]]:
    """Yield where the rules hold, and what is said there: of a hit on a file without its path."""
    for rule in rules:
        for hit in list(rule.check(facts)) if rule.check else ():
            yield hit, finding_of(rule, hit)


def find_gaps(c: Checkpoint, expected: completeness.Expected) -> list[Finding]:
    """Return what a save lacks beside the others of its run, without which nothing can be resumed."""
    hits = find_hits(SavesFacts(expected.layouts, (c,), expected), GAPS)
    return [f for hit, f in hits if hit.effect is not Effect.WARN]


def find_losses(c: Checkpoint, expected: completeness.Expected) -> list[Finding]:
    """Return what a save lacks beside the others of its run that resuming can do without."""
    hits = find_hits(SavesFacts(expected.layouts, (c,), expected), GAPS)
    return [f for hit, f in hits if hit.effect is Effect.WARN]


def crosscheck(
    s: Session,
    whole_tree: bool,
    level: Level = Level.STRUCTURE,
    saves: Iterable[Checkpoint] | None = None,
) -> list[Finding]:
    """Return findings over several files, run by run. Those about one file are added to its report. With
    ``saves`` nothing else is looked at: to compare each of thousands with all others takes days.
    """
    parts = s.parts if saves is None else [p for c in saves for p in c.parts]
    out = _outside_runs(s, None if saves is None else {p.path for p in parts}) if whole_tree else []
    judged = {f.path for f in out}
    zeros = whole_tree and any(report.metadata.get(ZEROS) for report in s.reports.values())
    for checkpoints in s.runs(grouping.group(parts, s.layouts)).values():
        run = _Run(s, checkpoints, whole_tree, level, zeros)
        out += _of_run(run)
        if whole_tree and run.finished:
            out += (f for f in tracker_findings(s, run.finished, run.incomplete.copy) if f.path not in judged)
    return out


def _of_run(run: _Run) -> list[Finding]:
    """Add to the reports what is said of the files of a run, and return what is said of its saves."""
    out = _beside_each_other(run)
    for of_files in _OF_FILES:
        for path, f in list(of_files(run)):
            run.add(path, f)
    for of_checkpoints in _OF_CHECKPOINTS:
        out += of_checkpoints(run)
    return out


# --- of files that belong to no run


def _outside_runs(s: Session, paths: Collection[str] | None) -> list[Finding]:
    """Return what is wrong with what is no run's; of indexes only those among the ``paths``, None for all."""
    indexes = [path for path in s.found.indexes if paths is None or path in paths]
    return [*_incomplete_tensors(s), *_beside_indexes(indexes), *find_lost_texts(s)]


def _incomplete_tensors(s: Session) -> Iterator[Finding]:
    """Tensors of which the files of a directory do not hold all pieces."""
    if s.places:
        from ckpt_tools.formats.common.tensor_pieces import incomplete

        for home, files in s.places.items():
            yield from (replace(f, path=home) for f in incomplete(files.values()))


def _beside_indexes(indexes: Iterable[str]) -> Iterator[Finding]:
    """What is wrong with the lists of checkpoints that some formats keep beside their index files."""
    homes = set[tuple[str, str]]()
    for path in indexes:
        home, name = os.path.split(path)
        homes |= {(home, of) for of in format_names.allowed(name) if name.endswith(format_of(of).suffixes)}
    for home, of in sorted(homes):
        yield from format_of(of).beside(home, NOTES)


# --- of the files of one run


def _beside_each_other(run: _Run) -> list[Finding]:
    """Ask the rules about files, add to the reports what they say of files, and return the rest."""
    facts = SavesFacts(
        layouts=run.session.layouts,
        saves=run.finished,
        files=run.parts,
        reports=run.reports,
        contents=FileContents(run.session),
        expected=run.expected,
    )
    of_saves = list[Finding]()
    for hit, f in find_hits(facts):
        if not hit.of_file:
            of_saves.append(f)
            continue
        run.add(hit.path, f)
        if f.severity is Severity.ERROR:
            run.contradicted.add(hit.path)
    return of_saves


def _unlike_run(run: _Run) -> Iterator[FileFinding]:
    """Files saved in another way than most of the run."""
    yield from unlike_run([(p, run.session.known(p)) for p in run.parts])


def _copied(run: _Run) -> Iterator[FileFinding]:
    """Files copied over those of another step, rank or role."""
    if not run.tree or run.level < Level.CONTENT:
        return
    members = (p for c in run.finished for p in run.session.members(c).parts)
    candidates = [p for p in members if p.path in run.reports and p.path not in run.contradicted]
    for copy in EqualFiles(run.session).find_copies(candidates):
        yield copy.path, copy.finding


# --- of the checkpoints of one run


def _completeness(run: _Run) -> Iterator[Finding]:
    """What each checkpoint lacks, or has twice."""
    layouts, expected = run.session.layouts, run.expected
    for c in run.checkpoints:
        if c.unfinished:
            yield _begun(run.session, c)
            continue
        gaps = _gaps(run, c, expected)
        if _serious(gaps):
            run.incomplete.add(c.key)
        yield from gaps
        if run.tree:
            yield from find_losses(c, expected)
        yield from completeness.doubled(c, layouts.of(c))
        if any(axis == "dp" for p in c.parts for axis, _ in p.coords):
            yield from completeness.leftovers(c, layouts.of(c), expected.sizes_in_files(c))


def _serious(gaps: Iterable[Finding]) -> bool:
    return any(f.severity is not Severity.NOTE for f in gaps)


def _gaps(run: _Run, c: Checkpoint, expected: completeness.Expected) -> list[Finding]:
    """What a checkpoint lacks: one finding that says so where it may still be written."""
    if not run.tree:
        return []
    gaps = find_gaps(c, expected) or [*without_model(run.session, c)]
    torn = [p for p in c.parts if _is_torn(run.session.known(p))]
    if not (torn or _serious(gaps)) or not run.session.unfinished(c, run.finished):
        return gaps
    _soften(run.session, torn)
    text = "; ".join(f.message for f in gaps) or f"{len(torn)} of its files end early"
    ranks = next((f.ranks for f in gaps if f.ranks), ())
    return [unfinished.describe_written(c.path, text, hint_of(run.session, c), ranks)]


def _is_torn(report: Report) -> bool:
    return any(f.code in TORN and f.severity is Severity.ERROR for f in report.findings)


def _begun(s: Session, c: Checkpoint) -> Finding:
    """A save without the file that is written last:
    damage where the tracker names it, else it never finished.
    """
    home = c.parts[0].home or c.path
    if tracker := declared(s, c):
        says = f"{tracker.rpartition('/')[2]} names this checkpoint"
        return missing_part.describe_declared(says, missing(s.layouts.of(c)), home)
    _soften(s, c.parts)
    return unfinished.describe_begun(c, s.layouts.of(c), hint_of(s, c))


def _soften(s: Session, torn: Iterable[Part]) -> None:
    """What a save that never finished left half written is no damage of a checkpoint."""
    for p in torn:
        report = s.reports.get(p.path)
        if report and report.verdict is Verdict.BROKEN:
            softer = tuple(
                replace(f, severity=Severity.WARNING) if f.code in TORN else f for f in report.findings
            )
            s.reports[p.path] = replace(report, findings=softer, verdict=worst(softer))


def _zeroed(run: _Run) -> Iterator[FileFinding]:
    """Raw tensors that are nothing but zeros, unlike those of their siblings."""
    siblings = Siblings(run.finished)
    for c in run.finished if run.zeros else ():
        whole = run.session.members(c)
        yield from ((f.path or c.path, f) for f in zeroed(run.session, whole, siblings.beside(c)))


def _hollow(run: _Run) -> Iterator[FileFinding]:
    """Files of models and optimizers without tensors, without elements, or of zeros."""
    siblings = Siblings(run.finished)
    for c in run.finished:
        yield from ((f.path, f) for f in hollow(run.session, c, siblings.beside(c)))


def _lost(run: _Run) -> Iterator[Finding]:
    """Files of checkpoints that their siblings have."""
    siblings = Siblings(run.finished)
    for c in run.finished if run.tree else ():
        gone = list(lost(run.session, c, siblings.beside(c)))
        if run.level > Level.PRESENCE:
            gone += unlike_list(run.session, c)
        if any(f.severity is Severity.ERROR for f in gone):
            run.incomplete.add(c.key)
        yield from gone


def _headless(run: _Run) -> Iterator[Finding]:
    """Directories that were checkpoints of the run until their indexes were lost, or before they had one."""
    if run.tree and run.finished and run.session.found.strange:
        newest = max(run.finished, key=lambda c: (c.order, c.mtime_ns))
        yield from headless(run.session, run.session.members(newest))


def _begun_later(run: _Run) -> Iterator[Finding]:
    """Directories called as later saves in which there is none."""
    if run.tree and run.finished:
        yield from begun_later(run.session, run.finished[-1])


def _framework_notes(run: _Run) -> Iterator[Finding]:
    """What the framework's own notes beside the checkpoints get wrong about them."""
    if run.tree and run.finished:
        yield from run.session.layouts.of(run.finished[0]).crosscheck(run.finished, NOTES)


_OF_FILES: tuple[Callable[[_Run], Iterator[FileFinding]], ...] = (
    _unlike_run,
    _copied,
    _zeroed,
    _hollow,
)
_OF_CHECKPOINTS: tuple[Callable[[_Run], Iterator[Finding]], ...] = (
    _completeness,
    _lost,
    _headless,
    _begun_later,
    _framework_notes,
)
