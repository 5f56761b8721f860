"""An answer -> JUnit XML as CI servers read it: a test case per file, per rank, or per candidate that lost.

The form is that of Jenkins' xunit plug-in (junit-10.xsd), which GitLab, Azure and others share.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from ckpt_tools.model.answers import Verification
from ckpt_tools.model.finding import Finding, Severity, Verdict, worst
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.output.failure import Failure
from ckpt_tools.output.observed import count_files, describe, is_unseen
from ckpt_tools.output.page import View, cut_root
from ckpt_tools.output.sentence import sum_up
from ckpt_tools.output.words import printable

FAILED, ERROR, SKIPPED = "failure", "error", "skipped"


class Case(NamedTuple):
    """One test case. ``outcome`` is "" if it passed; a passed case may have ``lines``, too."""

    classname: str
    name: str
    outcome: str = ""
    code: str = ""
    message: str = ""
    lines: Sequence[str] = ()


def render(document: Verification | LoadPlan | Failure, view: View) -> str:
    """Return the XML of one suite: damage is a failure, an unread file an error, a lost candidate skipped."""
    seconds = 0.0
    if isinstance(document, Verification):
        command, seconds, cases = "verify", document.summary.seconds, [*_list_files(document, view)]
    elif isinstance(document, LoadPlan):
        command, cases = "plan", [*_list_loads(document, view)]
    else:
        command, lines = document.command, [*filter(None, (document.message, document.hint))]
        cases = [Case(f"ckpt.{command}", "answer", ERROR, document.code, document.message, lines)]
        if document.plan:
            cases += _list_rejected(document.plan, FAILED)
    suite = Element("testsuite", name=f"ckpt {command}", tests=str(len(cases)))
    for outcome, name in ((FAILED, "failures"), (ERROR, "errors"), (SKIPPED, "skipped")):
        suite.set(name, str(sum(case.outcome == outcome for case in cases)))
    suite.set("time", f"{seconds:.3f}")
    for case in cases:
        at = SubElement(suite, "testcase", classname=_text(case.classname), name=_text(case.name), time="0")
        if case.outcome:
            child = SubElement(at, case.outcome, type=_text(case.code), message=_text(case.message))
            child.text = _text(*case.lines)
        elif case.lines:
            SubElement(at, "system-out").text = _text(*case.lines)
    indent(suite)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(suite, encoding="unicode")}\n'


def _text(*lines: str) -> str:
    """Return lines without characters that XML 1.0 cannot hold, that steer a terminal or break a line."""
    return re.sub("[\ufffe\uffff]", lambda m: f"\\u{ord(m[0]):04x}", "\n".join(map(printable, lines)))


def _describe(
    classname: str, name: str, outcome: str, findings: Sequence[Finding], *, notes: bool, code: str = ""
) -> Case:
    """Return the case of findings, whose message is that of the worst; ``code`` stands in for none."""
    found, lines = sorted(findings, key=lambda f: (-f.severity, f.follows)), []
    for f in found:
        if notes or f.severity is not Severity.NOTE:
            lines.append(f"{f.severity}: {f.code}: {describe(f)}")
            lines += [f"hint: {f.hint}"] if f.hint and not f.follows else []
    first = found[0] if found else None
    message = f"{first.code}: {describe(first)}" if first else code
    return Case(classname, name, outcome, first.code if first else code, message, lines)


def _list_files(v: Verification, view: View) -> Iterator[Case]:
    outcomes = {Verdict.BROKEN: FAILED, Verdict.UNKNOWN: ERROR}
    outcomes |= {Verdict.SUSPECT: FAILED} if view.warnings_fail else {}
    for entry in v.files:
        r = entry.report
        classname = f"ckpt.verify.{entry.part.layout if entry.part else r.format or 'file'}"
        outcome = outcomes.get(r.verdict, "")
        yield _describe(
            classname, cut_root(r.path, v.root), outcome, r.findings, notes=view.verbose, code=str(r.verdict)
        )
    by_path: dict[str, list[Finding]] = {}
    for f in v.findings:
        by_path.setdefault(f.path, []).append(f)
    for path, found in by_path.items():
        verdict = Verdict.UNKNOWN if any(map(is_unseen, found)) else worst(found)
        name = cut_root(path, v.root) or "."
        yield _describe("ckpt.verify.across", name, outcomes.get(verdict, ""), found, notes=view.verbose)
    if not (v.files or v.findings):  # CI servers take a suite without cases for a passed one
        yield Case("ckpt.verify", "answer", ERROR, "nothing-recognised", count_files(v))


def _list_loads(plan: LoadPlan, view: View) -> Iterator[Case]:
    failed = FAILED if view.warnings_fail else ""
    yield Case("ckpt.plan", "choice", lines=(sum_up(plan),))
    loads = {"every rank": plan.shared} if plan.shared else {}
    for who, files in {**loads, **{f"rank {r.rank}": r.files for r in plan.by_rank}}.items():
        lines = [": ".join(filter(None, (f.role, cut_root(f.path, plan.root), f.reason))) for f in files]
        yield Case("ckpt.plan", who, lines=lines)
    yield from _list_rejected(plan, failed or SKIPPED)
    for f in plan.warnings:
        if f.severity is not Severity.NOTE:
            name = f"{f.code}: {cut_root(f.path, plan.root)}" if f.path else f.code
            yield _describe("ckpt.plan.warnings", name, failed, (f,), notes=True)


def _list_rejected(plan: LoadPlan, outcome: str) -> Iterator[Case]:
    for rejected in plan.rejected:
        c = rejected.checkpoint
        name = f"{c.label} ({c.kind}): {cut_root(c.path, plan.root)}"
        yield _describe("ckpt.plan.rejected", name, outcome, rejected.findings, notes=True, code="rejected")
