"""One verification: every file below some roots read to a level, and compared with the others beside it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from ckpt_tools import formats
from ckpt_tools.cache import Cache, remembering
from ckpt_tools.discovery.group import group
from ckpt_tools.discovery.unrecognised import remains, unpacked
from ckpt_tools.findings import NOT_SEEN
from ckpt_tools.layouts import Layout
from ckpt_tools.model.answers import FileReport, Summary, Verification
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Verdict, blind, worst
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import ReadOptions
from ckpt_tools.planning import seals
from ckpt_tools.planning.engine import add_finding, check_together
from ckpt_tools.planning.lost_files import find_hollow_exports
from ckpt_tools.planning.rules.save import file_verdict, missing_part, unfinished
from ckpt_tools.planning.rules.tree import nothing_there
from ckpt_tools.planning.rules.tree.first_launch_leftovers import say_hidden
from ckpt_tools.planning.unfinished import find_hint
from ckpt_tools.reading.opening import open_session
from ckpt_tools.reading.prefetch import prefetch
from ckpt_tools.reading.session import Session
from ckpt_tools.reading.unseen import missed, not_seen
from ckpt_tools.storage import counted
from ckpt_tools.storage.stalls import limited
from ckpt_tools.storage.urls import common

if TYPE_CHECKING:
    from ckpt_tools.reading.engines import Engine
    from ckpt_tools.reading.sampling import Asked


class Interrupted(KeyboardInterrupt):
    """SIGINT arrived: the files that were read to their ends until then, of how many."""

    def __init__(self, root: str, files: Sequence[FileReport], of: int) -> None:
        super().__init__()
        self.root, self.files, self.of = root, tuple(files), of


class Verifier(NamedTuple):
    """How to verify: the ``level``, a sample of the files (None: all), and the workers (None: here)."""

    level: Level
    options: ReadOptions
    sample: Asked | None = None
    engine: Engine | None = None

    def verify(self, roots: Sequence[str]) -> Verification:
        """Every file at or below the roots, which are absolute paths."""
        started = time.perf_counter()
        found = [self._verify_root(root) for root in dict.fromkeys(roots)]
        files = tuple({f.report.path: f for one in found for f in one.files}.values())
        findings = tuple(f for one in found for f in one.findings)
        summary = self._summarize(files, found, time.perf_counter() - started)
        sample, note = self.sample, self.options.note
        if sample is not None and note is not None and (why := sample.why_nothing()):
            note(why)
        return Verification(
            root=common(roots) if len(roots) > 1 else roots[0],
            verdict=_find_worst(files, findings),
            level=self.level,
            summary=summary,
            files=files,
            findings=findings,
            sample=sample.told() if sample else None,
        )

    def _verify_root(self, root: str) -> _Root:
        seconds, options = self.sample.seconds if self.sample else None, self.options
        # What stores say of contents stands for reading these.
        depth = Level.STRUCTURE if options.by_store else self.level
        with (
            limited(seconds),
            counted() as read,
            remembering(root, options.cache, options.max_age, options.note, options.trust) as cache,
        ):
            s = open_session(root, replace(options, budget=seconds), cache=cache)
            s.add_members()
            s.bytes_total = sum(max(0, p.size) for p in s.parts) + sum(max(0, b.size) for b in s.found.bare)
            s.reader.files_total = len(s.parts) + len(s.found.bare)
            try:
                self._read(s, cache, depth)
            except KeyboardInterrupt:
                raise Interrupted(root, self._read_so_far(s), s.reader.files_total) from None
            bare = _read_bare(s, depth)
            unrecognised = len(s.found.bare) - len(bare) + s.found.unrecognised
            if s.indexes.seals is not None:
                s.indexes.seals.read_all()  # before it is said what could not be looked at
            findings = [*not_seen(s), *s.notes, *map(unfinished.describe_temporary, s.found.unfinished)]
            findings += map(file_verdict.describe_unneeded, s.found.unneeded)
            # Of what is read in part, copies are compared to their ends all the same.
            deep = depth if self.sample is None else Level.STRUCTURE
            findings += check_together(s, s.found.tree, deep)
            for f in list(find_hollow_exports(s)):
                add_finding(s, f.path, f)
            findings += _find_nothing_to_load(s, findings, bare)
            of_seals, about_seals = seals.check(s, self.level)
            findings += about_seals
        # what lies beside others may show something about a file that only its index names
        bare = [replace(f, report=s.reports.get(f.report.path, f.report)) for f in (*bare, *of_seals)]
        files = [*(FileReport(p, s.known(p)) for p in s.parts), *bare]
        findings += missed(s, _find_unseen(files, findings))
        if not files and worst(findings) is not Verdict.BROKEN:
            # beside others that were it would be lost in their good news
            name = os.path.basename(root)
            findings.append(nothing_there.describe_nothing(root, packed=unpacked(name) != name))
        return _Root(files, findings, frozenset(s.reader.partial), unrecognised, read.bytes)

    def _read(self, s: Session, cache: Cache | None, depth: Level) -> None:
        """Have a report on every part: a sample is drawn over all files, else many are read at once."""
        if self.options.by_store:
            from ckpt_tools.reading.unseen import prove  # few stores have seals

            prove(s)
        if self.sample is not None:
            from ckpt_tools.reading.sampling import Sampling

            Sampling(self.sample, s, cache).read(self.level)
        else:
            prefetch(s, s.parts, depth, bare=True, engine=self.engine)
        for part in s.parts:
            s.report(part, depth)

    def _read_so_far(self, s: Session) -> list[FileReport]:
        """What is known of files that were looked at as deeply as was asked, or far enough to find damage."""
        found = [FileReport(p, s.known(p)) for p in s.parts if p.path in s.reports]
        return [f for f in found if f.report.level >= self.level or f.report.verdict is Verdict.BROKEN]

    def _summarize(self, files: Sequence[FileReport], found: Sequence[_Root], seconds: float) -> Summary:
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
    """What came of one root: ``partial`` are the files of which a part of the contents was asked for."""

    files: list[FileReport]
    findings: list[Finding]
    partial: frozenset[str]
    unrecognised: int
    bytes_read: int


def _find_unseen(files: Sequence[FileReport], findings: Sequence[Finding]) -> set[str]:
    """The paths of which it is said that they could not be looked at."""
    unknown = {f.report.path for f in files if f.report.verdict is Verdict.UNKNOWN}
    return unknown | {f.path for f in findings if f.path and f.code in NOT_SEEN}


def _read_bare(s: Session, level: Level) -> list[FileReport]:
    """Reports on the files outside every layout that may be a checkpoint's."""
    out = list[FileReport]()
    for bare in s.found.bare:
        # What a store has said of it stands, also where that is not good news.
        have = None if s.evidence is None else s.reports.get(bare.path)
        report = have or s.report_file(bare.path, level, bare.findings)
        if report.format is not None or report.findings or report.level > level:
            s.reports[bare.path] = report
            out.append(FileReport(None, report))
    return out


def _find_nothing_to_load(
    s: Session, findings: Sequence[Finding], bare: Sequence[FileReport]
) -> Iterator[Finding]:
    """Yield that no job could load anything below ROOT, where no damage says so."""
    held = (f.report.format for f in bare if f.report.format)
    damaged = Verdict.BROKEN in {worst(list(findings)), *(s.known(p).verdict for p in s.parts)}
    if not s.found.tree or damaged or any(map(formats.names.holds_state, held)):
        return
    saves = group(s.parts, s.layouts)
    if not saves and (own := _find_remains(s)):
        yield missing_part.describe_remains(own.title, s.root, say_hidden(own))
    torn = all((c.unfinished or _lacks_index(s, c)) and not find_hint(s, c) for c in saves)
    if saves and torn:
        last = s.layouts.of(saves[-1])
        lost = say_hidden(last, last.complete.commit) or "bring back what they lack"
        yield unfinished.describe_none_whole(len(saves), s.root, lost)


def _find_remains(s: Session) -> Layout | None:
    try:
        return remains(s.found, s.root, s.layouts)
    except OSError as e:
        s.unread[e.filename or s.root] = e.strerror or str(e)
        return None


def _lacks_index(s: Session, c: Checkpoint) -> bool:
    return any(f.code == "unfinished-save" for p in c.parts for f in s.known(p).findings)


def _find_worst(files: Sequence[FileReport], findings: tuple[Finding, ...]) -> Verdict:
    """The worst of all; unknown wins, for what was not inspected may be anything."""
    verdicts = {f.report.verdict for f in files}
    unseen = blind(findings) or any(f.code == "not-inspected" for f in findings)
    nothing = not files and worst(findings) is not Verdict.BROKEN
    if nothing or Verdict.UNKNOWN in verdicts or unseen:
        return Verdict.UNKNOWN
    verdicts.add(worst(findings))
    return next((v for v in (Verdict.BROKEN, Verdict.SUSPECT) if v in verdicts), Verdict.OK)
