"""The one place where the stages meet: roots and questions in, scans, verifications and load plans out."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from ckpt_tools.cache.verdicts import Cache, Note
from ckpt_tools.crosscheck.crosscheck import across as across_files
from ckpt_tools.crosscheck.trackers import as_told
from ckpt_tools.discovery import completeness
from ckpt_tools.discovery import group as grouping
from ckpt_tools.errors import CannotLook, CkptError, NoCheckpoint, UsageError
from ckpt_tools.findings import finding
from ckpt_tools.formats import Anatomy
from ckpt_tools.layouts import Layouts
from ckpt_tools.model.answers import FileReport, Scan, Summary, Verification
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Verdict, blind, worst
from ckpt_tools.model.plan import LoadPlan, Resume
from ckpt_tools.model.report import Level, Report
from ckpt_tools.model.selection import ReadOptions, Selection
from ckpt_tools.planning import decision_log
from ckpt_tools.reading.opening import open_session
from ckpt_tools.reading.prefetch import prefetch
from ckpt_tools.reading.session import Progress, Session
from ckpt_tools.reading.unseen import not_seen, unread_files
from ckpt_tools.storage import counted
from ckpt_tools.storage.paths import Path, Paths, names, one, several
from ckpt_tools.storage.stalls import limited
from ckpt_tools.storage.trust import OURS, Trust

if TYPE_CHECKING:
    from ckpt_tools.planning.planner import Planner
    from ckpt_tools.reading.engines import Engine
    from ckpt_tools.reading.sampling import Asked
    from ckpt_tools.settings.sample_size import Share

__all__ = ["Progress", "latest", "plan", "scan", "show", "verify"]


def scan(root: Path = ".", selection: Selection | None = None) -> Scan:
    """What checkpoints are below ``root``, from directory listings (and a structure pass where names do not tell the step).

    Of ``selection`` count its filters (layout, run, prefix, kind, max_step), order, world_size, save_interval, key_file and jobs.
    Raises CannotLook when ``root`` cannot be listed.
    """
    selection = selection or Selection()
    options = ReadOptions(
        jobs=selection.jobs,
        settle=selection.settle,
        key_file=selection.key_file,
        exclude=selection.exclude,
        trust=selection.trust,
    )
    s = open_session(one(root), options, listing=True)
    rows = [as_told(s, c) for c in _listed(s, selection)]
    checkpoints = [c for c, _ in rows]
    expected = {
        run: n
        for (_, run), members in s.runs(checkpoints).items()
        if (n := selection.world_size or completeness.expected_ranks(members))
    }
    findings = [
        *not_seen(s),
        *unread_files(s),
        *s.notes,
        *(f for _, damage in rows for f in damage),
        *(
            finding("unfinished-save", "a temporary file of a save that never finished", path=p)
            for p in s.found.unfinished
        ),
    ]
    return Scan(
        s.root,
        tuple(checkpoints),
        expected,
        tuple(findings),
        len(s.found.bare),
        s.found.unrecognised,
        len(s.found.excluded.paths),
    )


def _listed(s: Session, selection: Selection) -> list[Checkpoint]:
    """The checkpoints that the filters leave, newest first by modification time, or by step where that is asked for."""
    from ckpt_tools.crosscheck.steps import step_in_contents
    from ckpt_tools.planning.choose import rank
    from ckpt_tools.planning.filters import belongs

    everything, most = grouping.group(s.parts, s.layouts, selection.save_interval), selection.max_step

    def wanted(c: Checkpoint) -> bool:
        if not belongs(c, selection) or selection.kind not in (None, c.kind):
            return False
        step = c.step if c.step is not None or most is None else step_in_contents(s, c, everything)
        return most is None or (step is not None and step <= most)

    left = [c for c in everything if wanted(c)]
    return rank(left, "step") if selection.order == "step" else left


def verify(
    paths: Paths = ".",
    level: Level = Level.CONTENT,
    *,
    jobs: int = 0,
    require: Iterable[str] = (),
    trust_global: Sequence[str] = (),
    settle: float = 120.0,
    progress: Progress | None = None,
    key_file: str | None = None,
    explain: bool = False,
    cache: bool = False,
    max_age: float = 0.0,
    note: Note | None = None,
    io: str = "auto",
    limit_rate: float | None = None,
    sample: Share | str | None = None,
    max_duration: float | None = None,
    engine: Engine | None = None,
    trust: Trust = OURS,
    layouts: Layouts | None = None,
) -> Verification:
    """Look at every checkpoint file at or below ``paths`` (one path, or several), and across the files of every checkpoint and run.

    ``trust_global`` are patterns of names that pickles may call although no list has them.
    ``key_file`` holds the key of MindSpore's encrypted files; with ``explain`` each report has a map of the file's bytes. With ``cache`` the verdicts are kept for
    later runs, and those not older than ``max_age`` seconds are used: with 0 everything is read. ``note`` is told what is wrong with the cache.
    ``io`` says how contents are read (auto, pread, mmap, direct), ``limit_rate`` how many bytes per second at most.
    With a ``sample`` ("2/7", "10%", "50GiB"), or for ``max_duration`` seconds, a part of the contents is read, the least recently checked first: that is remembered with ``cache``.
    ``trust`` says whose key file and cache count beside this user's own.
    ``layouts`` are those that names are compared with, None for those that are built in.
    With an ``engine`` (``ckpt_tools.reading.engines``) its workers read, who must see the files under the same paths; the answer is the same.
    Raises CannotLook when a path does not exist or cannot be listed, and when the engine is gone; UsageError for no path at all, and when a part of the contents
    is asked for at another level.
    """
    started = time.perf_counter()
    asked = _asked(sample, max_duration, level)
    options = ReadOptions(
        jobs=jobs,
        io=io,
        limit_rate=limit_rate,
        cache=cache,
        max_age=max_age,
        settle=settle,
        require=names(require),
        trust_global=tuple(trust_global),
        key_file=key_file,
        explain=explain,
        trust=trust,
        progress=progress,
        note=note,
        layouts=layouts,
    )
    partial = set[str]()
    files: list[FileReport] = []
    across: list[Finding] = []
    unrecognised = bytes_read = 0
    roots = [os.path.abspath(p) for p in several(paths)]
    for root in dict.fromkeys(roots):
        with (
            limited(asked.seconds if asked else None),
            counted() as read,
            remembering(root, cache, max_age, note, trust) as kept,
        ):
            s = open_session(root, replace(options, budget=asked.seconds if asked else None), cache=kept)
            s.add_members()
            s.bytes_total = sum(max(0, p.size) for p in s.parts) + sum(max(0, b.size) for b in s.found.bare)
            if asked is not None:
                from ckpt_tools.reading.sampling import Sampling

                Sampling(asked, s, kept, engine).read(level)
                partial |= s.reader.partial
            else:
                prefetch(s, s.parts, level, bare=True, engine=engine)
            for part in s.parts:
                s.report(part, level)
            bare = []
            for path, _, _, seen in s.found.bare:
                report = s.report_file(path, level, seen)
                if report.format is None and not report.findings:
                    unrecognised += 1
                else:
                    bare.append(path)
                    s.reports[path] = report
            across += [
                *not_seen(s),
                *s.notes,
                *(
                    finding("unfinished-save", "a temporary file of a save that never finished", path=p)
                    for p in s.found.unfinished
                ),
            ]
            across += (
                finding("not-needed", "TensorFlow's graph: it holds no state", path=p)
                for p in s.found.unneeded
            )
            across += across_files(
                s, s.found.tree, level if asked is None else Level.STRUCTURE
            )  # copies are compared to their ends
        inspected = [FileReport(p, s.reports[p.path]) for p in s.parts] + [
            FileReport(None, s.reports[path]) for path in bare
        ]
        if not inspected:  # beside others that were it would be lost in their good news
            across.append(
                finding(
                    "not-inspected",
                    "no checkpoint file that ckpt knows is there: nothing was inspected",
                    path=root,
                )
            )
        files += inspected
        unrecognised += s.found.unrecognised
        bytes_read += read.bytes
    files = list({f.report.path: f for f in files}.values())
    verdicts = [f.report.verdict for f in files]
    counts = {v: verdicts.count(v) for v in Verdict}
    total = worst(across)
    if (
        not files
        or Verdict.UNKNOWN in verdicts
        or blind(across)
        or any(f.code == "not-inspected" for f in across)
    ):
        verdict = Verdict.UNKNOWN
    elif Verdict.BROKEN in (*verdicts, total):
        verdict = Verdict.BROKEN
    else:
        verdict = Verdict.SUSPECT if Verdict.SUSPECT in (*verdicts, total) else Verdict.OK
    summary = Summary(
        len(files), sum(max(0, f.report.size) for f in files), bytes_read, round(time.perf_counter() - started, 6),
        counts[Verdict.OK], counts[Verdict.SUSPECT], counts[Verdict.BROKEN], counts[Verdict.UNKNOWN],
        sum(f.report.level < level and f.report.verdict is not Verdict.BROKEN and f.report.path not in partial for f in files), unrecognised,
    )  # fmt: skip
    top = os.path.commonpath(roots) if len(roots) > 1 else roots[0]
    if asked is not None and note is not None and (why := asked.why_nothing()):
        note(why)
    return Verification(
        top, verdict, level, summary, tuple(files), tuple(across), asked.told() if asked else None
    )


def _asked(sample: Share | str | None, max_duration: float | None, level: Level) -> Asked | None:
    """The part of the contents to read; None for all."""
    if sample is None and max_duration is None:
        return None
    from ckpt_tools.reading.sampling import Asked
    from ckpt_tools.settings.sample_size import share

    try:
        return Asked(share(sample) if isinstance(sample, str) else sample, max_duration, level)
    except ValueError as e:
        raise UsageError(f"sample: {e}", 'say sample="1/7"') from e


def show(
    path: Path,
    level: Level = Level.STRUCTURE,
    *,
    key_file: str | None = None,
    explain: bool = False,
    trust: Trust = OURS,
    layouts: Layouts | None = None,
) -> tuple[Report, Anatomy]:
    """One file and what is in it, read together with the indexes beside it."""
    path = one(path, "path")
    s = open_session(path, ReadOptions(key_file=key_file, explain=explain, trust=trust, layouts=layouts))
    seen = next((p.findings for p in s.parts), next((b.findings for b in s.found.bare), ()))
    return s.inspect(os.path.abspath(path), level, seen)


@contextmanager
def remembering(
    root: str, wanted: bool, max_age: float, note: Note | None, trust: Trust = OURS
) -> Iterator[Cache | None]:
    """The cache of verdicts for questions about ``root``, None unless ``wanted``; as in ``Cache``."""
    cache = Cache(os.path.abspath(root), max_age, note, trust=trust) if wanted else None
    try:
        yield cache
    finally:
        if cache is not None:
            cache.close()


def plan(
    root: Path = ".",
    selection: Selection | None = None,
    *,
    progress: Progress | None = None,
    note: Note | None = None,
) -> LoadPlan:
    """The whole load plan. Raises CkptError subclasses; those of a failed choice carry ``.plan`` with the rejected candidates.

    ``note`` is told, in one sentence, why verdicts of earlier runs cannot be used. Nothing is written but the cache, where ``selection.cache`` asks for it.
    """
    from ckpt_tools.planning.planner import (
        Planner,
    )  # verify, which also runs by the file, starts sooner without it

    root, selection = one(root), selection or Selection()
    if selection.plan_dir is not None:  # else it counts only where nothing is found
        decision_log.place(selection.plan_dir, root)
    with (
        limited(selection.budget),
        counted() as read,
        remembering(root, selection.cache, selection.max_age, note, selection.trust) as cache,
    ):
        try:
            made = _planned(Planner(root, selection, progress, cache), root, selection)
        except CkptError as error:
            if error.plan is not None:
                error.plan = replace(error.plan, bytes_read=read.bytes)
            raise
    return replace(made, bytes_read=read.bytes)


def _planned(planner: Planner, root: str, selection: Selection) -> LoadPlan:
    """The plan; one without a checkpoint only where that is allowed, and where no earlier start had one. With ``strict`` nothing in it is unknown."""
    try:
        made = planner.plan()
    except NoCheckpoint as error:  # that something is gone says more
        decision_log.first_launch(root, selection, error.plan)
        raise
    if made.checkpoint is None:
        decision_log.first_launch(root, selection, made)
    if selection.strict and made.below_level:
        raise _unknown(made, selection)
    return made


def _unknown(made: LoadPlan, selection: Selection) -> CannotLook:
    text = f"{made.below_level} of the files to load could not be looked at as deeply as --level {selection.level} asks, which --strict takes for unknown"
    none = replace(made, checkpoint=None, resume=Resume(None), ranks=(), shared=())
    return CannotLook(
        text, "the plan without --strict says which, and how deeply; --budget gives it more time", plan=none
    )


def latest(
    root: Path = ".",
    selection: Selection | None = None,
    *,
    progress: Progress | None = None,
    note: Note | None = None,
) -> LoadPlan:
    """The plan narrowed to ``selection.rank``, else to the rank that the launcher gave this process; the fingerprint stays that of the whole plan.

    Raises as ``plan`` does, and UsageError when the rank is outside the world, or unknown while ranks load different files.
    """
    from ckpt_tools import launchers

    selection = selection or Selection()
    started = launchers.detect(os.environ)
    if started and started.skip and selection.rank is None:
        raise UsageError(started.unclear, started.hint)
    full = plan(root, selection, progress=progress, note=note)
    if full.checkpoint is None:
        return full
    mine = (
        selection.rank
        if selection.rank is not None
        else started.rank.value
        if started and started.rank
        else None
    )
    if mine is None:
        if len({tuple(f.path for f in r.files) for r in full.ranks}) > 1:
            unclear, hint = (
                (started.unclear, started.hint)
                if started and started.unclear
                else ("", "pass --rank N, or set CKPT_RANK")
            )
            message = f"{len(full.ranks)} ranks load different files, and which rank is asking is unknown"
            raise UsageError(f"{message}: {unclear}" if unclear else message, hint)
        mine = full.ranks[0].rank if full.ranks else 0
    return narrowed(full, mine)


def narrowed(full: LoadPlan, mine: int) -> LoadPlan:
    """The plan with the files of one rank alone; of a set that every rank loads the same one. Raises UsageError when the rank is outside the world."""
    if full.checkpoint is None or (full.shared and not full.ranks):
        return full
    ranks = tuple(r for r in full.ranks if r.rank == mine)
    if not ranks:
        raise UsageError(
            f"rank {mine} is outside the world of {full.world_size} ranks",
            "say --world-size N, and --replicas all if every rank loads the same file",
        )
    files = ranks[0].files
    resume = full.resume if full.resume.path or len(files) != 1 else replace(full.resume, path=files[0].path)
    return replace(full, ranks=ranks, resume=resume)
