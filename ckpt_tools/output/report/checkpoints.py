"""All checkpoints of a report: the files of each, what was found in them, what became of it in a plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ckpt_tools.model.answers import FileReport
from ckpt_tools.model.checkpoint import Checkpoint, CheckpointKey
from ckpt_tools.model.finding import Finding, Severity, Verdict, worst
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.output.json import Object, fields, finding, outcomes
from ckpt_tools.output.report.advice import Gathered, list_causes, pick_worst

MOST = 2_000
"""Checkpoints that are listed, the newest."""
REASONS = 8
"""Findings of one checkpoint that are listed."""


class Row(Struct, frozen=True):
    """One checkpoint, the index of its ``root``, its ``outcome`` in a plan ("" for none), and why it lost."""

    checkpoint: Checkpoint
    root: int
    outcome: str = ""
    lost: tuple[Finding, ...] = ()


class Table(Struct, frozen=True):
    """The checkpoints of a report in one order, and where each is in it."""

    rows: tuple[Row, ...]
    omitted: int
    by_key: Mapping[CheckpointKey, int]
    by_file: Mapping[str, int]
    by_path: Mapping[str, int]

    def find(self, checkpoint: Checkpoint | None) -> int | None:
        """Return the index of a checkpoint; None if it is not listed."""
        return None if checkpoint is None else self.by_key.get(checkpoint.key)

    def find_by_path(self, path: str) -> int | None:
        """Return the index of the only checkpoint with this file or path; None if there is no such one."""
        found = self.by_file.get(path)
        return found if found is not None else self.by_path.get(path)


def table(given: Gathered) -> Table:
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
    by_path = defaultdict[str, list[int]](list)
    for i, row in enumerate(rows):
        by_path[row.checkpoint.path].append(i)
    return Table(
        rows,
        len(every) - len(rows),
        {row.checkpoint.key: i for i, row in enumerate(rows)},
        {p.path: i for i, row in enumerate(rows) for p in row.checkpoint.parts},
        {path: members[0] for path, members in by_path.items() if len(members) == 1},
    )


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


def objects(given: Gathered, table: Table) -> list[Object]:
    """Return the JSON object of each checkpoint of the table, with what was found in it and in its files."""
    v = given.verification
    files: list[list[FileReport]] = [[] for _ in table.rows]
    for entry in v.files:
        if (i := table.by_file.get(entry.report.path)) is not None:
            files[i].append(entry)
    findings: list[list[Finding]] = [[] for _ in table.rows]
    for f in v.findings:
        if (i := table.find_by_path(f.path)) is not None:
            findings[i].append(f)
    expected = {(_index(given.roots, s.root), run): n for s in given.scans for run, n in s.expected.items()}
    return [
        _describe(row, files[i], tuple(findings[i]), expected.get((row.root, row.checkpoint.run)))
        for i, row in enumerate(table.rows)
    ]


def _describe(
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
        **fields(c, "run", "layout", "kind", "label", "step", "epoch", "step_in_epoch"),
        "path": c.path,
        "mtime": round(c.mtime_ns / 1e9, 3),
        "unfinished": c.unfinished,
        "files": len(c.parts),
        "size": sum(max(p.size, 0) for p in c.parts),
        "ranks_present": len({p.rank for p in c.parts if p.rank is not None}) or None,
        "ranks_expected": expected,
        "verdict": str(_judge(row, files, beside)),
        "coverage": round(covered / size, 6) if size else None,
        "outcome": row.outcome or None,
        **limit(list_causes((*row.lost, *beside, *inside))),
    }


def _list_damage(files: Sequence[FileReport]) -> list[Finding]:
    bad = [entry.report for entry in files if entry.report.verdict is not Verdict.OK]
    return [replace(f, path=r.path) for r in bad for f in r.findings if f.severity is not Severity.NOTE]


def _judge(row: Row, files: Sequence[FileReport], beside: tuple[Finding, ...]) -> Verdict:
    """Return the worst verdict on a checkpoint: of its files, by findings ``beside`` them, by why it lost."""
    verdicts = {entry.report.verdict for entry in files}
    if beside or row.lost:
        verdicts.add(worst(beside + row.lost))
    verdict = pick_worst(verdicts)
    if row.outcome == "chosen":  # usable all the same: a replica's file stands in for a damaged one
        return Verdict.OK if not verdicts else Verdict.SUSPECT if verdict is Verdict.BROKEN else verdict
    return verdict


def limit(found: Sequence[Finding], *, across: bool = True) -> Object:
    """Return the first REASONS findings and how many more there are; ``across`` adds the path of each."""
    listed = [finding(f, across=across) for f in found[:REASONS]]
    return {"findings": listed, "findings_omitted": max(0, len(found) - REASONS)}
