"""An answer -> rows for spreadsheets and data frames: a verification's files, a plan's files by rank."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator

from ckpt_tools.model.answers import FileReport, Verification
from ckpt_tools.model.finding import Finding, Severity, worst
from ckpt_tools.model.plan import FileLoad, LoadPlan
from ckpt_tools.output.failure import Failure
from ckpt_tools.output.json import absolute
from ckpt_tools.output.observed import place
from ckpt_tools.output.page import View
from ckpt_tools.output.words import printable

Cell = object
VERIFIED = (
    *("path", "verdict", "level", "coverage", "size", "format", "layout", "kind", "rank", "step", "epoch"),
    *("step_in_epoch", "codes", "offset", "message"),
)
PLANNED = (
    *("rank", "role", "path", "outcome", "step", "kind", "size", "level", "coverage", "source_rank"),
    *("substituted", "node", "codes", "reason"),
)
_FORMULA = ("=", "+", "-", "@")
"""A text that begins so would be calculated by a spreadsheet (owasp.org, "CSV Injection")."""


def render(document: Verification | LoadPlan | Failure, view: View) -> str:  # noqa: ARG001 - as every output
    """A header, then the rows. A failure without a plan has no rows; its exit code tells."""
    if isinstance(document, Verification):
        return _table(VERIFIED, [*map(_file, document.files), *map(_across, document.findings)])
    plan = document.plan if isinstance(document, Failure) else document
    return _table(PLANNED, _loads(plan)) if plan or _plans(document) else _table(VERIFIED, ())


def _plans(document: LoadPlan | Failure) -> bool:
    return isinstance(document, LoadPlan) or document.command != "verify"


def _table(header: Iterable[str], rows: Iterable[Iterable[Cell]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(map(_cell, row) for row in rows)
    return out.getvalue()


def _cell(value: Cell) -> Cell:
    """Texts on one line each, and never a formula; what is unknown is empty."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def _file(entry: FileReport) -> Iterator[Cell]:
    r, p = entry.report, entry.part
    yield from (absolute(r.path), str(r.verdict), str(r.level), round(r.coverage, 6), r.size, r.format)
    of_part = (p.layout, str(p.kind), p.rank, p.step, p.epoch, p.step_in_epoch) if p else (None,) * 6
    yield from of_part
    yield from _said(r.findings)


def _across(f: Finding) -> Iterator[Cell]:
    """A finding across files, where there is no one file: only what it is about, and what it says."""
    yield from (absolute(f.path), str(worst([f])))
    yield from (None,) * 10
    yield from _said((f,))


def _said(findings: Iterable[Finding]) -> tuple[Cell, Cell, Cell]:
    """All codes, and of the worst finding its place and words."""
    found = sorted((f for f in findings if f.severity is not Severity.NOTE), key=lambda f: -f.severity)
    if not found:
        return "", None, ""
    return " ".join(dict.fromkeys(f.code for f in found)), found[0].offset, found[0].message


def _loads(plan: LoadPlan | None) -> Iterator[tuple[Cell, ...]]:
    if plan is None:
        return
    step = plan.resume_step
    kind = str(plan.checkpoint.kind) if plan.checkpoint else None
    loads: list[tuple[int | None, FileLoad]] = [(None, f) for f in plan.shared]
    loads += [(r.rank, f) for r in plan.by_rank for f in r.files]
    for rank, f in loads:
        yield (
            *(rank, f.role, absolute(f.path), "load", step, kind, f.size, str(f.level), round(f.coverage, 6)),
            *(f.source_rank, f.substituted, f.node, "", f.reason),
        )
    for rejected in plan.rejected:
        c = rejected.checkpoint
        codes = " ".join(dict.fromkeys(f.code for f in rejected.findings))
        reason = "; ".join(place(f) for f in rejected.findings)
        unknown = (None,) * 6
        yield (None, None, absolute(c.path), "rejected", c.step, str(c.kind), *unknown, codes, reason)
