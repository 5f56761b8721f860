"""An answer -> rows for spreadsheets and data frames: a verification's files, a plan's files by rank."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence

from ckpt_tools.model.answers import Verification
from ckpt_tools.model.finding import Finding, Severity, worst
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.output.failure import Failure
from ckpt_tools.output.json import absolute
from ckpt_tools.output.observed import describe
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


def render(document: Verification | LoadPlan | Failure, _view: object) -> str:
    """Return a header line and the rows. A failure without a plan has no rows: the exit code reports it."""
    header: Sequence[str] = PLANNED
    rows: Iterable[Iterable[Cell]] = ()
    if isinstance(document, Verification):
        header, rows = VERIFIED, _list_files(document)
    elif plan := document.plan if isinstance(document, Failure) else document:
        rows = _list_loads(plan)
    elif isinstance(document, Failure) and document.command == "verify":
        header = VERIFIED
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(map(_cell, row) for row in rows)
    return out.getvalue()


def _cell(value: Cell) -> Cell:
    """Return a cell's value: a text on one line and never as a formula; None becomes an empty cell."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return value
    text = printable(value)
    # a spreadsheet would calculate such a text (owasp.org, "CSV Injection")
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def _list_files(v: Verification) -> Iterator[Iterable[Cell]]:
    """Yield a row per file, then a row per finding across files, in which a file's own columns are empty."""
    for entry in v.files:
        r, p = entry.report, entry.part
        part_cells = (p.layout, str(p.kind), p.rank, p.step, p.epoch, p.step_in_epoch) if p else (None,) * 6
        cells = (absolute(r.path), str(r.verdict), str(r.level), round(r.coverage, 6), r.size, r.format)
        yield (*cells, *part_cells, *_sum_up(r.findings))
    for f in v.findings:
        yield (absolute(f.path), str(worst([f])), *(None,) * 10, *_sum_up((f,)))


def _sum_up(findings: Iterable[Finding]) -> tuple[Cell, Cell, Cell]:
    """Return the codes of all warnings and errors, and the byte offset and message of the worst one."""
    found = sorted((f for f in findings if f.severity is not Severity.NOTE), key=lambda f: -f.severity)
    if not found:
        return "", None, ""
    return " ".join(dict.fromkeys(f.code for f in found)), found[0].offset, found[0].message


def _list_loads(plan: LoadPlan) -> Iterator[Iterable[Cell]]:
    kind = str(plan.checkpoint.kind) if plan.checkpoint else None
    for rank, f in plan.loads:
        cells = (rank, f.role, absolute(f.path), "load", plan.resume_step, kind, f.size, str(f.level))
        yield (*cells, round(f.coverage, 6), f.source_rank, f.substituted, f.node, "", f.reason)
    for rejected in plan.rejected:
        c = rejected.checkpoint
        codes = " ".join(dict.fromkeys(f.code for f in rejected.findings))
        reason = "; ".join(map(describe, rejected.findings))
        yield (None, None, absolute(c.path), "rejected", c.step, str(c.kind), *(None,) * 6, codes, reason)
