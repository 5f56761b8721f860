"""An answer -> rows for spreadsheets and data frames: a verification's files, a plan's files by rank."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence

from ckpt_tools.model.answers import Verification
from ckpt_tools.model.finding import Finding, Severity, worst
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.output import json as as_json
from ckpt_tools.output.failure import Failure
from ckpt_tools.output.json import Object
from ckpt_tools.output.observed import describe
from ckpt_tools.output.words import printable

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
    rows: Iterable[Object] = ()
    if isinstance(document, Verification):
        header, rows = VERIFIED, _list_files(document)
    elif plan := document.plan if isinstance(document, Failure) else document:
        rows = _list_loads(plan)
    elif isinstance(document, Failure) and document.command == "verify":
        header = VERIFIED
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_cell(row.get(name)) for name in header] for row in rows)
    return out.getvalue()


def _cell(value: object) -> object:
    """Return a cell's value: a text on one line and never as a formula; None becomes an empty cell."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return value
    text = printable(value)
    # a spreadsheet would calculate such a text (owasp.org, "CSV Injection")
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def _list_files(v: Verification) -> Iterator[Object]:
    """Yield a row per file, as JSON has it, then a row per finding across files."""
    for entry in v.files:
        yield {**as_json.file(entry), **_sum_up(entry.report.findings)}
    for f in v.findings:
        yield {"path": as_json.absolute(f.path), "verdict": str(worst([f])), **_sum_up((f,))}


def _sum_up(findings: Iterable[Finding]) -> Object:
    """Return the codes of all warnings and errors, and the byte offset and message of the worst one."""
    found = sorted((f for f in findings if f.severity is not Severity.NOTE), key=lambda f: -f.severity)
    if not found:
        return {}
    codes = " ".join(dict.fromkeys(f.code for f in found))
    return {"codes": codes, "offset": found[0].offset, "message": found[0].message}


def _list_loads(plan: LoadPlan) -> Iterator[Object]:
    about: Object = {"outcome": "load", "step": plan.resume_step}
    about["kind"] = str(plan.checkpoint.kind) if plan.checkpoint else None
    for rank, f in plan.loads:
        yield {**as_json.load(f), **about, "rank": rank}
    for rejected in plan.rejected:
        codes = " ".join(dict.fromkeys(f.code for f in rejected.findings))
        reason = "; ".join(map(describe, rejected.findings))
        lost = as_json.fields(rejected.checkpoint, "path", "step", "kind")
        yield {**lost, "outcome": "rejected", "codes": codes, "reason": reason}
