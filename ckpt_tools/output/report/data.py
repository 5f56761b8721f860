"""The document of a report: all that its page shows, as plain data that JSON can hold (docs/json.md)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from statistics import median
from typing import Any

from ckpt_tools import __version__
from ckpt_tools.findings import CODES
from ckpt_tools.model.answers import FileReport, Tracker
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.part import Kind
from ckpt_tools.model.plan import LoadPlan, Resume
from ckpt_tools.model.report import Level, Region, Report
from ckpt_tools.output.json import COUNTS, Object, fields, finding, line, scalar
from ckpt_tools.output.report import checkpoints as rows_of
from ckpt_tools.output.report.advice import of_start, overall
from ckpt_tools.output.report.checkpoints import Row, Table
from ckpt_tools.output.report.gathered import WORST, Gathered, Start, worst_of

# ---- What the times of saves tell: where training went back, and where no save was made for long.


LONG = 2.5
"""Times the usual pause between two saves from which on a pause is a gap."""
ENOUGH = 3
"""Pauses of a run from which on there is a usual one."""


def timeline(rows: Sequence[Row]) -> Object:
    """Rollbacks and gaps of every run, as indexes of the checkpoints on both sides, in the order of time."""
    runs = defaultdict[tuple[int, str, str], list[int]](list)
    for i, row in enumerate(rows):
        c = row.checkpoint
        if c.mtime_ns > 0 and c.step is not None and c.kind in (Kind.PERIODIC, Kind.DYING_GASP):
            runs[row.root, c.layout, c.run].append(i)
    rollbacks, gaps = list[Object](), list[Object]()
    for members in runs.values():
        members.sort(key=lambda i: (rows[i].checkpoint.mtime_ns, rows[i].checkpoint.order))
        rollbacks += _rollbacks(rows, members)
        gaps += _gaps(rows, members)
    return {"rollbacks": rollbacks, "gaps": gaps}


def _rollbacks(rows: Sequence[Row], members: Sequence[int]) -> list[Object]:
    """Where a later save is of an earlier step."""
    steps = {i: rows[i].checkpoint.step or 0 for i in members}
    return [
        {"from": a, "to": b, "steps": steps[a] - steps[b]}
        for a, b in pairwise(members)
        if steps[b] < steps[a]
    ]


def _gaps(rows: Sequence[Row], members: Sequence[int]) -> list[Object]:
    """Pauses that are longer than usual."""
    times = {i: rows[i].checkpoint.mtime_ns / 1e9 for i in members}
    pauses = [times[b] - times[a] for a, b in pairwise(members)]
    if len(pauses) < ENOUGH or (usual := median(pauses)) <= 0:
        return []
    return [
        {"from": a, "to": b, "seconds": round(times[b] - times[a], 3), "usual": round(usual, 3)}
        for a, b in pairwise(members)
        if times[b] - times[a] > LONG * usual
    ]


FILES = 200_000
"""Files that are listed; beyond, those that need attention most."""
FINDINGS = 2_000
"""Findings that are listed one by one, the worst first; all are counted."""
STRIPS = 100
"""Damaged files whose bytes are mapped."""
REGIONS = 120
"""Ranges of bytes in one map: what is smaller than the rest is joined to its neighbour."""
TENSORS = 1_000
"""Tensors that are listed with their numbers, the odd ones first."""
LOST = 50
"""Checkpoints that one plan says it did not take."""

Columns = dict[str, list[Any]]


def document(given: Gathered) -> Object:
    """Everything about one report."""
    of = rows_of.table(given)
    entries = _listed(given)
    at = {entry.report.path: i for i, entry in enumerate(entries)}
    v = given.verification
    total = len(v.files) if v else 0
    return {
        "schema": "ckpt-tools/report/v1",
        "tool_version": __version__,
        "made_at": round(given.made_at, 3),
        "roots": list(given.roots),
        "verdict": str(_verdict(given)),
        "level": str(v.level) if v else None,
        "exit_code": given.exit_code,
        "next": overall(given).shown,
        "summary": _summary(given),
        "starts": [_start(start, of) for start in given.starts],
        "starts_omitted": given.runs_omitted,
        "checkpoints": rows_of.objects(given, of),
        "checkpoints_omitted": of.omitted,
        "timeline": timeline(of.rows),
        "trackers": [_tracker(t, given, of) for scan in given.scans for t in scan.trackers],
        "coverage": _coverage(v.files if v else ()),
        "codes": _codes(given),
        "findings": _findings(given, of, at),
        "damage": [_strip(entries[i].report, i, given) for i in damaged(entries)],
        "tensors": _tensors(entries),
        "files": _files(entries, of),
        "files_omitted": total - len(entries),
    }


def damaged(entries: Sequence[FileReport]) -> list[int]:
    """The files whose bytes are worth a look, the worst first."""
    bad = [i for i, entry in enumerate(entries) if entry.report.verdict in (Verdict.BROKEN, Verdict.SUSPECT)]
    return sorted(bad, key=lambda i: WORST.index(entries[i].report.verdict))[:STRIPS]


def _verdict(given: Gathered) -> Verdict:
    if given.verification:
        return given.verification.verdict
    return worst_of({of_start(start).verdict for start in given.starts})


def _listed(given: Gathered) -> Sequence[FileReport]:
    files = given.verification.files if given.verification else ()
    if len(files) <= FILES:
        return files
    return sorted(files, key=lambda entry: WORST.index(entry.report.verdict))[:FILES]


def _summary(given: Gathered) -> Object | None:
    if given.verification is None:
        return None
    counts = ("files", "bytes", "bytes_read", "seconds", "ok", "suspect", "broken", "unknown")
    return fields(given.verification.summary, *counts, "below_level", "unrecognised")


# -- what a job resumes from ---------------------------------------------------------------------------------


def _start(start: Start, of: Table) -> Object:
    """Return what a start resumes from, and why nothing goes before that; nothing where there is no plan."""
    error, plan = start.error, start.plan or LoadPlan(start.root, None, Resume(None))
    rejected = [
        {
            "checkpoint": of.of(lost.checkpoint),
            "findings": [finding(f, across=True) for f in lost.findings[: rows_of.REASONS]],
            "findings_omitted": max(0, len(lost.findings) - rows_of.REASONS),
        }
        for lost in plan.rejected[:LOST]
    ]
    rollback = None
    if back := plan.rollback:
        rollback = {"from": back.origin, "to": back.target, **fields(back, "save_interval", "why")}
    return {
        "root": start.root,
        "run": start.run,
        **of_start(start).shown,
        "checkpoint": of.of(plan.checkpoint),
        "resume_step": plan.resume_step,
        "path": plan.resume.path,
        "arguments": list(plan.resume.args),
        "world_size": plan.world_size,
        "ranks": len(plan.by_rank),
        "rollback": rollback,
        "rejected": rejected,
        "rejected_omitted": max(0, len(plan.rejected) - LOST),
        "ahead": [i for c in plan.ahead if (i := of.of(c)) is not None][:LOST],
        "warnings": [finding(f, across=True) for f in plan.warnings[:LOST]],
        "substituted": sum(f.substituted for r in plan.by_rank for f in r.files),
        "error": None if error is None else {"message": str(error), "exit_code": error.exit_code},
    }


def _tracker(t: Tracker, given: Gathered, of: Table) -> Object:
    """What a tracker says, and what is wrong with that."""
    v = given.verification
    wrong = [f for f in (v.findings if v else ()) if f.path == t.path]
    return {
        "path": t.path,
        "says": t.says,
        "checkpoint": of.of(t.names),
        "findings": [finding(f, across=True) for f in wrong[: rows_of.REASONS]],
    }


# -- files ---------------------------------------------------------------------------------------------------


def _files(entries: Sequence[FileReport], of: Table) -> Columns:
    """Return what is known of files before they are read, and what reading them said."""
    reports, parts = [entry.report for entry in entries], [entry.part for entry in entries]
    return {
        "path": [r.path for r in reports],
        "checkpoint": [of.by_file.get(r.path) for r in reports],
        "rank": [p.rank if p else None for p in parts],
        "place": [" ".join(f"{axis} {n}" for axis, n in p.coords) if p else "" for p in parts],
        "role": [p.role if p else "" for p in parts],
        **_verdicts(reports),
    }


def _verdicts(reports: Sequence[Report]) -> Columns:
    return {
        "format": [r.format or "" for r in reports],
        "size": [r.size for r in reports],
        "mtime": [r.mtime_ns // 10**9 for r in reports],
        "verdict": [str(r.verdict) for r in reports],
        "level": [str(r.level) for r in reports],
        "coverage": [round(r.coverage, 4) for r in reports],
        "codes": [" ".join(dict.fromkeys(f.code for f in _worst_first(r.findings))) for r in reports],
    }


def _worst_first(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda f: -f.severity)


def _coverage(files: Iterable[FileReport]) -> list[Object]:
    """For each format, how many of its bytes a stored checksum protects; what was not read counts as not."""
    sums: dict[str, list[float]] = {}
    for r in (entry.report for entry in files):
        row = sums.setdefault(r.format or "", [0, 0, 0.0])
        size = max(0, r.size)
        row[0] += 1
        row[1] += size
        row[2] += size * r.coverage if r.level >= Level.CONTENT else 0
    order = sorted(sums.items(), key=lambda item: (-item[1][1], item[0]))
    return [
        {"format": name, "files": n, "bytes": size, "protected": round(covered)}
        for name, (n, size, covered) in order
    ]


# -- findings ------------------------------------------------------------------------------------------------


def _all(given: Gathered) -> Iterator[tuple[str, Finding]]:
    """Each finding with the path that it is about."""
    v = given.verification
    for entry in v.files if v else ():
        yield from ((entry.report.path, f) for f in entry.report.findings)
    across = v.findings if v else chain.from_iterable(scan.findings for scan in given.scans)
    yield from ((f.path, f) for f in across)


def _codes(given: Gathered) -> list[Object]:
    """Each code that was found, the worst and the most frequent first; the severity is the worst it has."""
    counts = Counter[str]()
    severity: dict[str, Severity] = {}
    for _, f in _all(given):
        counts[f.code] += 1
        severity[f.code] = max(severity.get(f.code, Severity.NOTE), f.severity)
    order = sorted(counts, key=lambda code: (-severity[code], -counts[code], code))
    return [
        {
            "code": code,
            "severity": str(severity[code]),
            "count": counts[code],
            "title": CODES[code].title if code in CODES else "",
            "hint": CODES[code].hint if code in CODES else "",
        }
        for code in order
    ]


def _findings(given: Gathered, of: Table, at: Mapping[str, int]) -> list[Object]:
    """Findings one by one, notes left out: they are counted, and change no verdict."""
    worse = ((path, f) for path, f in _all(given) if f.severity is not Severity.NOTE)
    order = sorted(worse, key=lambda item: -item[1].severity)
    return [
        {**finding(f), "path": path, "file": at.get(path), "checkpoint": of.at(path)}
        for path, f in order[:FINDINGS]
    ]


def _strip(report: Report, at: int, given: Gathered) -> Object:
    """The bytes of one file, and where its damage lies."""
    regions = report.regions or given.maps.get(report.path, ())
    return {
        "file": at,
        "size": report.size,
        "regions": [[r.offset, r.length, r.what, str(r.guard)] for r in _joined(regions, report.size)],
        "regions_omitted": max(0, len(regions) - REGIONS),
        "findings": [finding(f) for f in _worst_first(report.findings)[: rows_of.REASONS]],
        "findings_omitted": max(0, len(report.findings) - rows_of.REASONS),
    }


def _joined(regions: Sequence[Region], size: int) -> list[Region]:
    """At most REGIONS ranges that tile the same bytes: a short one and its neighbour are one, and are what
    the longer of the two is.
    """
    if len(regions) <= REGIONS:
        return list(regions)
    short, out = size / (REGIONS - 1), list[Region]()
    for r in regions:
        if out and min(r.length, out[-1].length) < short:
            last = out[-1]
            longer = last if last.length >= r.length else r
            out[-1] = longer._replace(offset=last.offset, length=r.offset + r.length - last.offset)
        else:
            out.append(r)
    return out


# -- numbers in tensors --------------------------------------------------------------------------------------


def _tensors(entries: Sequence[FileReport]) -> Object:
    """The numbers in tensors, where the level was deep enough: the odd ones first, then as the files are."""
    found = [(i, s) for i, entry in enumerate(entries) for s in entry.report.stats]
    order = sorted(found, key=lambda item: -(item[1].nan + item[1].inf + item[1].absurd))
    numbers = ("name", "dtype", *COUNTS)
    listed = [
        {
            "file": i,
            **fields(s, *numbers),
            "min": scalar(s.min),
            "max": scalar(s.max),
            "magnitudes": s.magnitudes,
        }
        for i, s in order[:TENSORS]
    ]
    return {"total": len(found), "listed": listed}


def render(of: Mapping[str, object]) -> str:
    """The JSON text of a document, a line for each of its fields and ending in a line break."""
    return "{\n  " + ",\n  ".join(f"{line(key)}: {line(value)}" for key, value in of.items()) + "\n}\n"
