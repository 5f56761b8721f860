"""All checkpoints of a report: the files of each, what was found in them, what became of it in a plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ckpt_tools.model.answers import FileReport
from ckpt_tools.model.checkpoint import Checkpoint, CheckpointKey
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.finding import worst as judged
from ckpt_tools.model.plan import Rejected
from ckpt_tools.output.json import Object, finding, outcomes
from ckpt_tools.output.report.gathered import Gathered, causes, worst_of

MOST = 2_000
"""Checkpoints that are listed, the newest."""
REASONS = 8
"""Findings of one checkpoint that are listed."""


class Row(Struct, frozen=True):
    """One checkpoint with the ``root`` it lies below (an index), its ``outcome`` in the plan that considered
    it ("" where none did) and the findings for which it lost.
    """

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

    def of(self, checkpoint: Checkpoint | None) -> int | None:
        """Where a checkpoint is; None for one that is not listed."""
        return None if checkpoint is None else self.by_key.get(checkpoint.key)

    def at(self, path: str) -> int | None:
        """The checkpoint that a finding at ``path`` is about, as far as one alone may be meant."""
        found = self.by_file.get(path)
        return found if found is not None else self.by_path.get(path)


def table(given: Gathered) -> Table:
    """Every checkpoint that any answer names, newest first."""
    found: dict[CheckpointKey, Row] = {}
    for at, c in _named(given):
        found.setdefault(c.key, Row(c, at))
    for start in given.starts:
        plan = start.plan
        for candidate, outcome in outcomes(plan) if plan else ():
            c = candidate
            if plan and plan.checkpoint and plan.checkpoint.key == candidate.key:
                c = plan.checkpoint  # of equal copies the path is that of the one that is loaded
            at = _index(given.roots, plan.root if plan else start.root)
            found[c.key] = replace(
                found.get(c.key) or Row(c, at), checkpoint=_told(found, c), outcome=outcome
            )
        for lost in plan.rejected if plan else ():
            found[lost.checkpoint.key] = _lost(found, lost, _index(given.roots, start.root))
    if not found and given.verification:
        found = {c.key: Row(c, 0) for c in _from_files(given.verification.files)}
    rows = sorted(found.values(), key=lambda row: (-row.checkpoint.mtime_ns, row.checkpoint.path))
    return _indexed(tuple(rows[:MOST]), len(rows) - len(rows[:MOST]))


def _named(given: Gathered) -> Iterator[tuple[int, Checkpoint]]:
    for scan in given.scans:
        at = _index(given.roots, scan.root)
        yield from ((at, c) for c in scan.checkpoints)


def _index(roots: Sequence[str], root: str) -> int:
    return roots.index(root) if root in roots else 0


def _told(found: Mapping[CheckpointKey, Row], c: Checkpoint) -> Checkpoint:
    """A candidate knows its step, which may be in its contents; a listing knows whether it is finished."""
    row = found.get(c.key)
    return replace(c, unfinished=row.checkpoint.unfinished) if row else c


def _lost(found: Mapping[CheckpointKey, Row], lost: Rejected, root: int) -> Row:
    row = found.get(lost.checkpoint.key) or Row(lost.checkpoint, root)
    return replace(row, outcome="rejected", lost=lost.findings)


def _from_files(files: Iterable[FileReport]) -> Iterator[Checkpoint]:
    """The checkpoints that files are of, where nobody has listed them: files of one save have equal words."""
    saves: dict[tuple[Any, ...], list[FileReport]] = defaultdict(list)
    for entry in files:
        if p := entry.part:
            saves[p.layout, p.run, p.kind, p.step, p.epoch, p.step_in_epoch, p.generation].append(entry)
    for (layout, run, kind, step, epoch, in_epoch, generation), members in saves.items():
        parts = tuple(entry.part for entry in members if entry.part)
        yield Checkpoint(
            layout=layout,
            run=run,
            kind=kind,
            parts=parts,
            path=parts[0].home or parts[0].base,
            mtime_ns=max(p.mtime_ns for p in parts),
            step=step,
            epoch=epoch,
            step_in_epoch=in_epoch,
            generation=generation,
        )


def _indexed(rows: tuple[Row, ...], omitted: int) -> Table:
    by_path = defaultdict[str, list[int]](list)
    for i, row in enumerate(rows):
        by_path[row.checkpoint.path].append(i)
    return Table(
        rows,
        omitted,
        {row.checkpoint.key: i for i, row in enumerate(rows)},
        {p.path: i for i, row in enumerate(rows) for p in row.checkpoint.parts},
        {path: members[0] for path, members in by_path.items() if len(members) == 1},
    )


def objects(given: Gathered, of: Table) -> list[Object]:
    """One object for each checkpoint, as the report has it."""
    files = given.verification.files if given.verification else ()
    inside: list[list[FileReport]] = [[] for _ in of.rows]
    for entry in files:
        if (at := of.by_file.get(entry.report.path)) is not None:
            inside[at].append(entry)
    beside: list[list[Finding]] = [[] for _ in of.rows]
    for f in given.verification.findings if given.verification else ():
        if (at := of.at(f.path)) is not None:
            beside[at].append(f)
    expected = {(_index(given.roots, s.root), run): n for s in given.scans for run, n in s.expected.items()}
    return [
        _object(row, inside[i], tuple(beside[i]), expected.get((row.root, row.checkpoint.run)))
        for i, row in enumerate(of.rows)
    ]


def _object(
    row: Row, files: Sequence[FileReport], beside: tuple[Finding, ...], expected: int | None
) -> Object:
    c = row.checkpoint
    size = sum(max(0, entry.report.size) for entry in files)
    covered = sum(max(0, entry.report.size) * entry.report.coverage for entry in files)
    said = {(f.path, f.code) for f in (*row.lost, *beside)}
    within = (f for f in _within(files) if (f.path, f.code) not in said)
    why = causes((*row.lost, *beside, *within))
    return {
        "root": row.root,
        "run": c.run,
        "layout": c.layout,
        "kind": str(c.kind),
        "label": c.label,
        "step": c.step,
        "epoch": c.epoch,
        "step_in_epoch": c.step_in_epoch,
        "path": c.path,
        "mtime": round(c.mtime_ns / 1e9, 3),
        "unfinished": c.unfinished,
        "files": len(c.parts),
        "size": sum(max(p.size, 0) for p in c.parts),
        "ranks_present": len({p.rank for p in c.parts if p.rank is not None}) or None,
        "ranks_expected": expected,
        "verdict": str(_verdict(row, files, beside)),
        "coverage": round(covered / size, 6) if size else None,
        "outcome": row.outcome or None,
        "findings": [finding(f, across=True) for f in why[:REASONS]],
        "findings_omitted": max(0, len(why) - REASONS),
    }


def _within(files: Iterable[FileReport]) -> Iterator[Finding]:
    """What was found in files, without notes."""
    for entry in files:
        if entry.report.verdict is not Verdict.OK:
            bad = (f for f in entry.report.findings if f.severity is not Severity.NOTE)
            yield from (replace(f, path=entry.report.path) for f in bad)


def _verdict(row: Row, files: Sequence[FileReport], beside: tuple[Finding, ...]) -> Verdict:
    verdicts = {entry.report.verdict for entry in files}
    if beside or row.lost:
        verdicts.add(judged(beside + row.lost))
    worst = worst_of(verdicts)
    if row.outcome == "chosen":  # usable all the same: a replica's file stands in for a damaged one
        return Verdict.OK if not verdicts else Verdict.SUSPECT if worst is Verdict.BROKEN else worst
    return worst
