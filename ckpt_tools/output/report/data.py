"""The document of a report: all that its page shows, as plain data that JSON can hold (docs/json.md)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from ckpt_tools import __version__
from ckpt_tools.findings import CODES
from ckpt_tools.model.answers import FileReport, Tracker
from ckpt_tools.model.checkpoint import Checkpoint, CheckpointKey
from ckpt_tools.model.finding import Finding, Severity, Verdict, worst
from ckpt_tools.model.part import Kind
from ckpt_tools.model.plan import LoadPlan, Resume
from ckpt_tools.model.report import Level, Region, Report
from ckpt_tools.output.json import COUNTS, Object, fields, finding, list_findings, outcomes, rollback, scalar
from ckpt_tools.output.page import WORST
from ckpt_tools.output.report.advice import Gathered, Start, advise, advise_start, list_causes, pick_worst

MOST = 2_000
"""Checkpoints that are listed, the newest."""
REASONS = 8
"""Findings of one checkpoint that are listed."""
LONG = 2.5
"""Times the usual pause between two saves from which on a pause is a gap."""
ENOUGH = 3
"""Pauses of a run from which on there is a usual one."""
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


def document(given: Gathered) -> Object:
    table, v = make_table(given), given.verification
    entries: Sequence[FileReport] = v.files
    if len(v.files) > FILES:
        entries = sorted(v.files, key=lambda entry: WORST.index(entry.report.verdict))[:FILES]
    at = {entry.report.path: i for i, entry in enumerate(entries)}
    counts = ("files", "bytes", "bytes_read", "seconds", "ok", "suspect", "broken", "unknown")
    return {
        "schema": "ckpt-tools/report/v1",
        "tool_version": __version__,
        "made_at": round(given.made_at, 3),
        "roots": list(given.roots),
        **fields(v, "verdict", "level"),
        "exit_code": given.exit_code,
        "next": advise(given).shown,
        "summary": fields(v.summary, *counts, "below_level", "unrecognised"),
        "starts": [_describe_start(start, table) for start in given.starts],
        "starts_omitted": given.runs_omitted,
        "checkpoints": _list_checkpoints(given, table),
        "checkpoints_omitted": table.omitted,
        "timeline": timeline(table.rows),
        "trackers": [_describe_tracker(t, given, table) for scan in given.scans for t in scan.trackers],
        "coverage": _add_coverage(v.files),
        "codes": _count_codes([*v.in_files, *v.findings]),
        "findings": _list_findings([*v.in_files, *v.findings], table, at),
        "damage": [_map_bytes(entries[i].report, i, given) for i in find_damaged(entries)],
        "tensors": _list_tensors(entries),
        "files": _list_files(entries, table),
        "files_omitted": len(v.files) - len(entries),
    }


def find_damaged(entries: Sequence[FileReport]) -> list[int]:
    """Return the indexes of at most STRIPS broken or suspect files, the broken ones first."""
    bad = [i for i, entry in enumerate(entries) if entry.report.verdict in (Verdict.BROKEN, Verdict.SUSPECT)]
    return sorted(bad, key=lambda i: WORST.index(entries[i].report.verdict))[:STRIPS]


def timeline(rows: Sequence[Row]) -> Object:
    """Return where training went back, and where no save was made for long, as indexes of checkpoints."""
    runs = defaultdict[tuple[int, str, str], list[int]](list)
    for i, row in enumerate(rows):
        c = row.checkpoint
        if c.mtime_ns > 0 and c.step is not None and c.kind in (Kind.PERIODIC, Kind.DYING_GASP):
            runs[row.root, c.layout, c.run].append(i)
    back, gaps = list[Object](), list[Object]()
    for members in runs.values():
        members.sort(key=lambda i: (rows[i].checkpoint.mtime_ns, rows[i].checkpoint.order))
        steps = {i: rows[i].checkpoint.step or 0 for i in members}
        times = {i: rows[i].checkpoint.mtime_ns / 1e9 for i in members}
        pairs = list(pairwise(members))
        back += [{"from": a, "to": b, "steps": steps[a] - steps[b]} for a, b in pairs if steps[b] < steps[a]]
        pauses = [times[b] - times[a] for a, b in pairs]
        usual = median(pauses) if len(pauses) >= ENOUGH else 0
        for (a, b), pause in zip(pairs, pauses, strict=True):
            if 0 < LONG * usual < pause:
                gaps.append({"from": a, "to": b, "seconds": round(pause, 3), "usual": round(usual, 3)})
    return {"rollbacks": back, "gaps": gaps}


def _describe_start(start: Start, table: Table) -> Object:
    error, plan = start.error, start.plan or LoadPlan(start.root, None, Resume(None))
    rejected = plan.rejected[:LOST]
    return {
        "root": start.root,
        "run": start.run,
        **advise_start(start).shown,
        "checkpoint": table.find(plan.checkpoint),
        "resume_step": plan.resume_step,
        "state": plan.state or None,
        "path": plan.resume.path,
        "arguments": list(plan.resume.args),
        "world_size": plan.world_size,
        "ranks": len(plan.by_rank),
        "rollback": rollback(plan.rollback) if plan.rollback else None,
        "rejected": [{"checkpoint": table.find(r.checkpoint), **_limit(r.findings)} for r in rejected],
        "rejected_omitted": max(0, len(plan.rejected) - LOST),
        "ahead": [i for c in plan.ahead if (i := table.find(c)) is not None][:LOST],
        "warnings": list_findings(plan.warnings[:LOST]),
        "substituted": sum(f.substituted for rank, f in plan.loads if rank is not None),
        "error": None if error is None else {"message": str(error), "exit_code": error.exit_code},
    }


def _describe_tracker(t: Tracker, given: Gathered, table: Table) -> Object:
    wrong = [f for f in given.verification.findings if f.path == t.path]
    findings = list_findings(wrong[:REASONS])
    return {"path": t.path, "says": t.says, "checkpoint": table.find(t.names), "findings": findings}


def _list_files(entries: Sequence[FileReport], table: Table) -> Object:
    reports, parts = [entry.report for entry in entries], [entry.part for entry in entries]
    return {
        "path": [r.path for r in reports],
        "checkpoint": [table.by_path.get(r.path) for r in reports],
        "rank": [p.rank if p else None for p in parts],
        "place": [" ".join(f"{axis} {n}" for axis, n in p.coords) if p else "" for p in parts],
        "role": [p.role if p else "" for p in parts],
        **_list_verdicts(reports),
    }


def _list_verdicts(reports: Sequence[Report]) -> Object:
    return {
        "format": [r.format or "" for r in reports],
        "size": [r.size for r in reports],
        "mtime": [r.mtime_ns // 10**9 for r in reports],
        "verdict": [str(r.verdict) for r in reports],
        "level": [str(r.level) for r in reports],
        "coverage": [round(r.coverage, 4) for r in reports],
        "codes": [" ".join(dict.fromkeys(f.code for f in _sort(r.findings))) for r in reports],
    }


def _sort(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda f: -f.severity)


def _add_coverage(files: Iterable[FileReport]) -> list[Object]:
    """Return for each format how many bytes a stored checksum protects; none of a file that was not read."""
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


def _count_codes(findings: Iterable[Finding]) -> list[Object]:
    counts = Counter[str]()
    severity: dict[str, Severity] = {}
    for f in findings:
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


def _list_findings(findings: Iterable[Finding], table: Table, at: Mapping[str, int]) -> list[Object]:
    """Return the worst FINDINGS findings with their file and checkpoint; notes change no verdict."""
    worse = _sort(f for f in findings if f.severity is not Severity.NOTE)
    return [
        {**finding(f, across=True), "file": at.get(f.path), "checkpoint": table.by_path.get(f.path)}
        for f in worse[:FINDINGS]
    ]


def _map_bytes(report: Report, index: int, given: Gathered) -> Object:
    regions = report.regions or given.maps.get(report.path, ())
    return {
        "file": index,
        "size": report.size,
        "regions": [[r.offset, r.length, r.what, str(r.guard)] for r in _join_regions(regions, report.size)],
        "regions_omitted": max(0, len(regions) - REGIONS),
        **_limit(_sort(report.findings), across=False),
    }


def _join_regions(regions: Sequence[Region], size: int) -> list[Region]:
    """Return at most REGIONS ranges that tile the same bytes: a short one is joined to its neighbour."""
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


def _list_tensors(entries: Sequence[FileReport]) -> Object:
    found = [(i, s) for i, entry in enumerate(entries) for s in entry.report.stats]
    order = sorted(found, key=lambda item: -(item[1].nan + item[1].inf + item[1].absurd))[:TENSORS]
    listed = [
        {
            "file": i,
            **fields(s, "name", "dtype", *COUNTS),
            "min": scalar(s.min),
            "max": scalar(s.max),
            "magnitudes": s.magnitudes,
        }
        for i, s in order
    ]
    return {"total": len(found), "listed": listed}


# ---- The checkpoints: the files of each, what was found in them, what became of it in a plan.


class Row(Struct, frozen=True):
    """One checkpoint, the index of its ``root``, its ``outcome`` in a plan ("" for none), and why it lost."""

    checkpoint: Checkpoint
    root: int
    outcome: str = ""
    lost: tuple[Finding, ...] = ()


class Table(Struct, frozen=True):
    """The checkpoints of a report in one order, and where each is in it: ``by_path`` of its files and, if it
    is no other's, of its own path.
    """

    rows: tuple[Row, ...]
    omitted: int
    by_key: Mapping[CheckpointKey, int]
    by_path: Mapping[str, int]

    def find(self, checkpoint: Checkpoint | None) -> int | None:
        """Return the index of a checkpoint; None if it is not listed."""
        return None if checkpoint is None else self.by_key.get(checkpoint.key)


def make_table(given: Gathered) -> Table:
    """Return the newest MOST checkpoints of all scans and plans."""
    found: dict[CheckpointKey, Row] = {}
    for scan in given.scans:
        for c in scan.checkpoints:
            found.setdefault(c.key, Row(c, _index(given.roots, scan.root)))
    for start in given.starts:
        if start.plan:
            _add_plan(found, start.plan, _index(given.roots, start.plan.root))
    every = sorted(found.values(), key=lambda row: (-row.checkpoint.mtime_ns, row.checkpoint.path))
    rows = tuple(every[:MOST])
    counts = Counter(row.checkpoint.path for row in rows)
    by_path = {r.checkpoint.path: i for i, r in enumerate(rows) if counts[r.checkpoint.path] == 1}
    by_path |= {p.path: i for i, row in enumerate(rows) for p in row.checkpoint.parts}
    by_key = {row.checkpoint.key: i for i, row in enumerate(rows)}
    return Table(rows, len(every) - len(rows), by_key, by_path)


def _add_plan(found: dict[CheckpointKey, Row], plan: LoadPlan, root: int) -> None:
    for candidate, outcome in outcomes(plan):
        c, row = candidate, found.get(candidate.key)
        if plan.checkpoint and plan.checkpoint.key == candidate.key:
            c = plan.checkpoint  # of equal copies the path is that of the one that is loaded
        # A candidate knows its step, which may be in its contents; a listing whether it is finished.
        c = replace(c, unfinished=row.checkpoint.unfinished) if row else c
        found[c.key] = replace(row or Row(c, root), checkpoint=c, outcome=outcome)
    for lost in plan.rejected:
        row = found.get(lost.checkpoint.key) or Row(lost.checkpoint, root)
        found[lost.checkpoint.key] = replace(row, outcome="rejected", lost=lost.findings)


def _index(roots: Sequence[str], root: str) -> int:
    return roots.index(root) if root in roots else 0


def _list_checkpoints(given: Gathered, table: Table) -> list[Object]:
    """Return the JSON object of each checkpoint of the table, with what was found in it and in its files."""
    v = given.verification
    files: list[list[FileReport]] = [[] for _ in table.rows]
    for entry in v.files:
        if (i := table.by_path.get(entry.report.path)) is not None:
            files[i].append(entry)
    findings: list[list[Finding]] = [[] for _ in table.rows]
    for f in v.findings:
        if (i := table.by_path.get(f.path)) is not None:
            findings[i].append(f)
    expected = {(_index(given.roots, s.root), run): n for s in given.scans for run, n in s.expected.items()}
    return [
        _describe_row(row, files[i], tuple(findings[i]), expected.get((row.root, row.checkpoint.run)))
        for i, row in enumerate(table.rows)
    ]


def _describe_row(
    row: Row, files: Sequence[FileReport], beside: tuple[Finding, ...], expected: int | None
) -> Object:
    """Return the JSON object of a checkpoint with these files; ``beside`` are findings on no one file."""
    c = row.checkpoint
    size = sum(max(0, entry.report.size) for entry in files)
    covered = sum(max(0, entry.report.size) * entry.report.coverage for entry in files)
    listed = {(f.path, f.code) for f in (*row.lost, *beside)}
    inside = [f for f in _list_damage(files) if (f.path, f.code) not in listed]
    return {
        "root": row.root,
        **fields(c, "run", "layout", "kind", "label", "step", "epoch", "step_in_epoch", "path", "unfinished"),
        "mtime": round(c.mtime_ns / 1e9, 3),
        "files": len(c.parts),
        "size": sum(max(p.size, 0) for p in c.parts),
        "ranks_present": len({p.rank for p in c.parts if p.rank is not None}) or None,
        "ranks_expected": expected,
        "verdict": str(_judge(row, files, beside)),
        "coverage": round(covered / size, 6) if size else None,
        "outcome": row.outcome or None,
        **_limit(list_causes((*row.lost, *beside, *inside))),
    }


def _list_damage(files: Sequence[FileReport]) -> list[Finding]:
    bad = [entry.report for entry in files if entry.report.verdict is not Verdict.OK]
    return [f.at(r.path) for r in bad for f in r.findings if f.severity is not Severity.NOTE]


def _judge(row: Row, files: Sequence[FileReport], beside: tuple[Finding, ...]) -> Verdict:
    """Return the worst verdict on a checkpoint: of its files, by findings ``beside`` them, by why it lost."""
    verdicts = {entry.report.verdict for entry in files}
    if beside or row.lost:
        verdicts.add(worst(beside + row.lost))
    verdict = pick_worst(verdicts)
    if row.outcome == "chosen":  # usable all the same: a replica's file stands in for a damaged one
        return Verdict.OK if not verdicts else Verdict.SUSPECT if verdict is Verdict.BROKEN else verdict
    return verdict


def _limit(found: Sequence[Finding], *, across: bool = True) -> Object:
    """Return the first REASONS findings and how many more there are; ``across`` adds the path of each."""
    listed = [finding(f, across=across) for f in found[:REASONS]]
    return {"findings": listed, "findings_omitted": max(0, len(found) - REASONS)}
