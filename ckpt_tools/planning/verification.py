"""One verification: files below roots read to a level and compared; and one scan, as ``ckpt ls`` lists it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from ckpt_tools import formats
from ckpt_tools.cache import Cache, open_cache
from ckpt_tools.discovery import completeness
from ckpt_tools.discovery import group as grouping
from ckpt_tools.discovery.unrecognised import list_unknown, strip_packing
from ckpt_tools.findings import NOT_SEEN
from ckpt_tools.layouts import Layout, as_int
from ckpt_tools.model.answers import FileReport, Scan, Summary, Verification
from ckpt_tools.model.checkpoint import Checkpoint, CheckpointKey
from ckpt_tools.model.finding import Finding, Verdict, blind, worst
from ckpt_tools.model.part import Kind
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import ReadOptions, Selection
from ckpt_tools.planning import seals
from ckpt_tools.planning.choice_warnings import describe_state
from ckpt_tools.planning.choose import allows, belongs
from ckpt_tools.planning.engine import add_finding, check_together
from ckpt_tools.planning.lost_files import find_hollow_exports
from ckpt_tools.planning.order import find_positions, get_step, order_saves
from ckpt_tools.planning.rules.save import file_verdict, missing_part, unfinished
from ckpt_tools.planning.rules.tree import nothing_there
from ckpt_tools.planning.rules.tree.first_launch_leftovers import say_hidden
from ckpt_tools.planning.trackers import find_declared, find_hint, find_trackers
from ckpt_tools.reading.opening import open_session
from ckpt_tools.reading.scheduler import prefetch
from ckpt_tools.reading.session import Progress, Session, Told
from ckpt_tools.reading.unseen import list_unlisted, list_unread, unread_files
from ckpt_tools.storage import count_read
from ckpt_tools.storage.stalls import limit_time
from ckpt_tools.storage.urls import find_common, is_url

if TYPE_CHECKING:
    from ckpt_tools.reading.engines import Engine
    from ckpt_tools.reading.sampling import Asked


class Interrupted(KeyboardInterrupt):
    """SIGINT arrived: ``files`` are the reports on files that were read to their ends, ``of`` so many."""

    def __init__(self, root: str, files: Sequence[FileReport], of: int) -> None:
        super().__init__()
        self.root, self.files, self.of = root, tuple(files), of


class Verifier(NamedTuple):
    """How to verify: the ``level``, a ``sample`` of the files (None: all), and workers (None: here)."""

    level: Level
    options: ReadOptions
    sample: Asked | None = None
    engine: Engine | None = None

    def verify(self, roots: Sequence[str]) -> Verification:
        """Return the verification of all files at or below the roots, which are absolute paths."""
        started = time.perf_counter()
        found = [self._verify_root(root) for root in dict.fromkeys(roots)]
        files = tuple({f.report.path: f for one in found for f in one.files}.values())
        findings = tuple(f for one in found for f in one.findings)
        summary = self._summarize(files, found, time.perf_counter() - started)
        sample, note = self.sample, self.options.note
        if sample is not None and note is not None and (why := sample.why_nothing()):
            note(why)
        return Verification(
            root=find_common(roots) if len(roots) > 1 else roots[0],
            verdict=_find_worst(files, findings),
            level=self.level,
            summary=summary,
            files=files,
            findings=findings,
            sample=sample.told() if sample else None,
        )

    def _verify_root(self, root: str) -> _Root:
        """Return the result of one root: files are read, then saves, directories and seals are compared."""
        seconds, options = self.sample.seconds if self.sample else None, self.options
        # If stores vouch for contents, these are not read.
        depth = Level.STRUCTURE if options.by_store else self.level
        with (
            limit_time(seconds),
            count_read() as read,
            open_cache(root, options.cache, options.max_age, options.note, options.trust) as cache,
        ):
            s = open_session(root, replace(options, budget=seconds), cache=cache)
            s.add_members()
            s.bytes_total = sum(max(0, p.size) for p in s.parts) + sum(max(0, b.size) for b in s.found.bare)
            s.reader.files_total = len(s.parts) + len(s.found.bare)
            try:
                self._read_parts(s, cache, depth)
            except KeyboardInterrupt:
                raise Interrupted(root, self._read_so_far(s), s.reader.files_total) from None
            bare = _read_bare(s, depth)
            unrecognised = len(s.found.bare) - len(bare) + s.found.unrecognised
            s.indexes.seals.read_all()  # before unread files are reported
            findings = [*list_unlisted(s), *s.notes, *map(unfinished.describe_temporary, s.found.unfinished)]
            findings += map(file_verdict.describe_unneeded, s.found.unneeded)
            # Files that are read in part are still compared to their ends, to find copies.
            deep = depth if self.sample is None else Level.STRUCTURE
            findings += check_together(s, s.found.tree, deep)
            for f in list(find_hollow_exports(s)):
                add_finding(s, f.path, f)
            findings += _find_nothing_to_load(s, findings, bare)
            of_seals, about_seals = seals.check(s, self.level)
            findings += about_seals
        # comparisons may have added findings to the reports on files that no layout has
        bare = [replace(f, report=s.reports.get(f.report.path, f.report)) for f in (*bare, *of_seals)]
        files = [*(FileReport(p, s.known(p)) for p in s.parts), *bare]
        findings += list_unread(s, _find_unseen(files, findings))
        if not files and worst(findings) is not Verdict.BROKEN:
            # else the good verdicts of other roots would hide it
            name = os.path.basename(root)
            findings.append(nothing_there.describe_nothing(root, packed=strip_packing(name) != name))
        return _Root(files, findings, frozenset(s.reader.partial), unrecognised, read.bytes)

    def _read_parts(self, s: Session, cache: Cache | None, depth: Level) -> None:
        """Read every part, so that it has a report: by sample, else many at once. Stores' seals go first."""
        if self.options.by_store:
            from ckpt_tools.reading.by_store import prove  # few stores have seals

            prove(s)
        if self.sample is not None:
            self.sample.read(s, cache)
        else:
            prefetch(s, s.parts, depth, bare=True, engine=self.engine)
        for part in s.parts:
            s.report(part, depth)

    def _read_so_far(self, s: Session) -> list[FileReport]:
        """Return reports on files that were read to the level, or far enough to find damage."""
        found = [FileReport(p, s.known(p)) for p in s.parts if p.path in s.reports]
        return [f for f in found if f.report.level >= self.level or f.report.verdict is Verdict.BROKEN]

    def _summarize(self, files: Sequence[FileReport], found: Sequence[_Root], seconds: float) -> Summary:
        """Return counts of files by verdict, and of bytes, over all roots."""
        partial = frozenset[str]().union(*(one.partial for one in found))
        verdicts = [f.report.verdict for f in files]
        reports = [f.report for f in files if f.report.path not in partial]
        return Summary(
            files=len(files),
            bytes=sum(max(0, f.report.size) for f in files),
            bytes_read=sum(one.bytes_read for one in found),
            seconds=round(seconds, 6),
            ok=verdicts.count(Verdict.OK),
            suspect=verdicts.count(Verdict.SUSPECT),
            broken=verdicts.count(Verdict.BROKEN),
            unknown=verdicts.count(Verdict.UNKNOWN),
            below_level=sum(r.level < self.level and r.verdict is not Verdict.BROKEN for r in reports),
            unrecognised=sum(one.unrecognised for one in found),
        )


class _Root(NamedTuple):
    """The result of one root. ``partial`` are paths of files whose contents were read in part only."""

    files: list[FileReport]
    findings: list[Finding]
    partial: frozenset[str]
    unrecognised: int
    bytes_read: int


def _find_unseen(files: Sequence[FileReport], findings: Sequence[Finding]) -> set[str]:
    """Return the paths of files that were not read, and of findings that say that something was not."""
    unknown = {f.report.path for f in files if f.report.verdict is Verdict.UNKNOWN}
    return unknown | {f.path for f in findings if f.path and f.code in NOT_SEEN}


def _read_bare(s: Session, level: Level) -> list[FileReport]:
    """Return reports on files outside every layout that may be a checkpoint's, by format or finding."""
    out = list[FileReport]()
    for bare in s.found.bare:
        # What a store has said of the file stands, good or bad.
        of_store = None if s.evidence is None else s.reports.get(bare.path)
        report = of_store or s.report_file(bare.path, level, bare.findings)
        if report.format is not None or report.findings or report.level > level:
            s.reports[bare.path] = report
            out.append(FileReport(None, report))
    return out


def _find_nothing_to_load(s: Session, findings: list[Finding], bare: list[FileReport]) -> Iterator[Finding]:
    """Yield that no job could load anything below ROOT, if no damage says so already."""
    formats_found = (f.report.format for f in bare if f.report.format)
    damaged = Verdict.BROKEN in {worst(findings), *(s.known(p).verdict for p in s.parts)}
    if not s.found.tree or damaged or any(map(formats.names.holds_state, formats_found)):
        return
    saves = grouping.group(s.parts, s.layouts)
    if not saves and (layout := _find_remains(s)):
        yield missing_part.describe_remains(layout.title, s.root, say_hidden(layout))

    def is_torn(c: Checkpoint) -> bool:
        codes = {f.code for p in c.parts for f in s.known(p).findings}
        return (c.unfinished or "unfinished-save" in codes) and not find_hint(s, c)

    if saves and all(map(is_torn, saves)):
        last = s.layouts.of(saves[-1])
        lost = say_hidden(last, last.complete.commit) or "bring back what they lack"
        yield unfinished.describe_none_whole(len(saves), s.root, lost)


def _find_remains(s: Session) -> Layout | None:
    """Return the layout whose files are left without a checkpoint; None without, or if unreadable."""
    try:
        paths = [os.path.relpath(path, s.root) for path in list_unknown(s.found, s.root)]
        return next(filter(None, map(s.layouts.trace, paths)), None)
    except OSError as e:
        s.unread[e.filename or s.root] = e.strerror or str(e)
        return None


def _find_worst(files: Sequence[FileReport], findings: tuple[Finding, ...]) -> Verdict:
    """Return the worst verdict; UNKNOWN goes before all, as a file that was not read may be broken."""
    verdicts = {f.report.verdict for f in files}
    unseen = blind(findings) or any(f.code == "not-inspected" for f in findings)
    nothing = not files and worst(findings) is not Verdict.BROKEN
    if nothing or Verdict.UNKNOWN in verdicts or unseen:
        return Verdict.UNKNOWN
    verdicts.add(worst(findings))
    return next((v for v in (Verdict.BROKEN, Verdict.SUSPECT) if v in verdicts), Verdict.OK)


_LOOKED_INTO = 32
"""How many checkpoints of a listing, the newest ones, are read for their step."""
_READ = 8
"""How many files of a checkpoint, or sibling checkpoints, are read at most."""
_COUNTERS = {"optimizer": "optimizer_step", "scheduler": "last_epoch"}
"""By role of a file: its entry that counts every step of training, in one unit over the whole run."""


def scan_root(root: str, selection: Selection, *, trackers: bool, progress: Progress | None) -> Scan:
    """List the checkpoints below a root; contents tell steps that names do not. Raises CannotLook."""
    options = ReadOptions(
        jobs=selection.jobs,
        settle=selection.settle,
        key_file=selection.key_file,
        exclude=selection.exclude,
        trust=selection.trust,
        layouts=selection.layouts,
        stores=selection.stores,
        progress=progress,
    )
    s = open_session(root, options, listing=True)
    rows = [(c, find_declared(s, c)) for c in _add_numbers_inside(s, _list_saves(s, selection))]
    checkpoints = [replace(c, unfinished=False) if declared else c for c, declared in rows]
    expected = {
        run: n
        for (_, run), members in s.runs(checkpoints).items()
        if (n := selection.world_size or completeness.expect_ranks(members, s.layouts))
    }
    damage = (f for _, f in rows if f)
    findings = [*list_unlisted(s), *unread_files(s), *s.notes, *damage, *_find_unfinished(s)]
    findings += list_unread(s, {f.path for f in findings if f.path and f.code in NOT_SEEN})
    return Scan(
        root=s.root,
        checkpoints=tuple(checkpoints),
        expected=expected,
        findings=tuple(findings),
        bare=len(s.bare_paths - {path for path, _ in _find_trackers(s, checkpoints)}),
        unrecognised=s.found.unrecognised,
        excluded=len(s.found.excluded.paths),
        layouts=s.layouts,
        trackers=tuple(find_trackers(s, checkpoints)) if trackers else (),
        states=_find_states(s, checkpoints, expected),
    )


def _find_states(s: Session, saves: list[Checkpoint], expected: dict[str, int]) -> dict[CheckpointKey, str]:
    """Return by save which state a job finds in it, by roles; reads the newest saves on a disk."""
    newest, states = {c.key for c in sorted(saves, key=lambda c: -c.mtime_ns)[:_LOOKED_INTO]}, {}
    for c in saves:
        parts = list({p.role: p for p in c.parts}.values())
        present = completeness.count_ranks(c, s.layouts.of(c))
        lost = any(p.size < 0 for p in c.parts)
        if c.unfinished or lost or (present is not None and present < expected.get(c.run, present)):
            states[c.key] = "partial"
        elif any(p.role == "optimizer" and p.size > 0 for p in parts):
            states[c.key] = "resumable"
        elif c.key in newest and not is_url(s.root):
            for p in parts:
                s.report(p, Level.STRUCTURE)
            states[c.key] = describe_state(parts, s)
    return states


def _find_unfinished(s: Session) -> Iterator[Finding]:
    """Yield findings on temporary files, and on parts whose names say that they are unfinished."""
    yield from map(unfinished.describe_temporary, s.found.unfinished)
    for part in s.parts:
        yield from (replace(f, path=part.path) for f in part.findings if f.code == "unfinished-save")


def _list_saves(s: Session, selection: Selection) -> list[Checkpoint]:
    """Return the checkpoints that the filters leave, newest first by time, or by step if asked."""
    listed = grouping.group(s.parts, s.layouts, selection.save_interval)

    def find_step(c: Checkpoint) -> int | None:
        return read_step(s, c, listed) if c.step is None else c.step

    saves = [c for c in listed if belongs(c, selection) and allows(selection, c, find_step)]
    if selection.order != "step":
        return saves
    return order_saves(saves, "step", positions=find_positions(saves, s.layouts, lambda _: None))


def _find_trackers(s: Session, checkpoints: Sequence[Checkpoint]) -> Iterator[Told]:
    """Yield trackers beside the checkpoints that are files of a known format, with what they say."""
    for name, base in dict.fromkeys((c.layout, p.base) for c in checkpoints for p in c.parts[:1]):
        if s.layouts[name].tracker.state_copy:
            yield from s.trackers(name, base)


def _add_numbers_inside(s: Session, listed: list[Checkpoint]) -> list[Checkpoint]:
    """Return the saves; the newest get steps and epochs that only their files tell. Reads them."""
    saves = [c for c in listed if c.parts and not c.unfinished]
    saves = [c for c in saves if c.step is None or "{step" not in s.layouts.piece_of(c.parts[0]).template]
    newest = {c.key for c in sorted(saves, key=lambda c: -c.mtime_ns)[:_LOOKED_INTO]}

    def count(c: Checkpoint) -> int | None:
        few = len(listed) <= _LOOKED_INTO and c.parts and not c.unfinished
        return read_count(s, c, listed, Level.STRUCTURE) if few else None

    positions = find_positions(listed, s.layouts, count)

    def add_numbers(c: Checkpoint) -> Checkpoint:
        layout, epoch = s.layouts.of(c), c.epoch
        if epoch is None:
            epochs = (layout.steps(p, s.report(p, Level.STRUCTURE).metadata)[1] for p in c.parts[:_READ])
            epoch = next((n for n in epochs if n is not None), None)
        step = read_step(s, c, listed) if c.step is None else c.step
        return replace(c, step=get_step(step, c, positions), epoch=epoch)

    return [add_numbers(c) if c.key in newest else c for c in listed]


# ---- the step that contents tell


def read_step(
    s: Session, c: Checkpoint, checkpoints: Sequence[Checkpoint], level: Level = Level.STRUCTURE
) -> int | None:
    """Return the step that most files tell, else None; a dying gasp counts in its siblings' epoch."""
    layout = s.layouts.of(c)
    read = [(p, s.report(p, level).metadata) for p in c.parts[:_READ]]
    steps = [step for p, m in read if (step := layout.steps(p, m)[0]) is not None]
    if steps or c.kind is not Kind.DYING_GASP:
        return max(steps, key=steps.count, default=None)
    periodic = (o for o in checkpoints if o.run == c.run and o.kind is Kind.PERIODIC)
    nearest = sorted(periodic, key=lambda o: abs(o.mtime_ns - c.mtime_ns))[:_READ]
    siblings = [(o.parts[0], s.report(o.parts[0], level).metadata) for o in nearest]
    return next((step for p, _ in read if (step := layout.counting.place(p, siblings)) is not None), None)


def read_count(s: Session, c: Checkpoint, checkpoints: Sequence[Checkpoint], level: Level) -> int | None:
    """Return what files count over the whole run: the layout's entry, else optimizer steps; None without."""
    if c.kind is Kind.DYING_GASP:
        return read_step(s, c, checkpoints, level)
    if key := s.layouts.of(c).counting.restarts:
        counts = (as_int(s.report(p, level).metadata.get(key)) for p in c.parts[:_READ])
        steps = [count for count in counts if count is not None]
        return max(steps, key=steps.count, default=None)
    for role, counter in _COUNTERS.items():
        part = next((p for p in c.parts if p.role == role), c.parts[0] if len(c.parts) == 1 else None)
        if part and (count := as_int(s.report(part, level).metadata.get(counter))) is not None:
            return count
    return None
