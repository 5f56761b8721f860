"""An answer -> JUnit XML as CI servers read it: a test case per file, per rank, or per candidate that lost.

The form is that of Jenkins' xunit plug-in (junit-10.xsd), which GitLab, Azure and others share.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
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
    if isinstance(document, Verification):
        command, seconds, cases = "verify", document.summary.seconds, [*_list_files(document, view)]
    elif isinstance(document, LoadPlan):
        command, seconds, cases = "plan", 0.0, [*_list_loads(document, view)]
    else:
        lines = [*filter(None, (document.message, document.hint))]
        case = Case(f"ckpt.{document.command}", "answer", ERROR, document.code, document.message, lines)
        command, seconds, cases = document.command, 0.0, [case]
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


def _list_files(v: Verification, view: View) -> Iterator[Case]:
    for entry in v.files:
        r = entry.report
        group = entry.part.layout if entry.part else r.format or "file"
        yield _judge(f"ckpt.verify.{group}", cut_root(r.path, v.root), r.verdict, r.findings, view)
    by_path: dict[str, list[Finding]] = {}
    for f in v.findings:
        by_path.setdefault(f.path, []).append(f)
    for path, found in by_path.items():
        verdict = Verdict.UNKNOWN if any(map(is_unseen, found)) else worst(found)
        yield _judge("ckpt.verify.across", cut_root(path, v.root) or ".", verdict, found, view)
    if not (v.files or v.findings):  # CI servers take a suite without cases for a passed one
        yield Case("ckpt.verify", "answer", ERROR, "nothing-recognised", count_files(v))


def _judge(classname: str, name: str, verdict: Verdict, findings: Iterable[Finding], view: View) -> Case:
    found = sorted(findings, key=lambda f: -f.severity)
    lines = _describe_all(f for f in found if view.verbose or f.severity is not Severity.NOTE)
    suspect = FAILED if view.warnings_fail else ""
    outcomes = {Verdict.BROKEN: FAILED, Verdict.UNKNOWN: ERROR, Verdict.SUSPECT: suspect}
    code, message = (found[0].code, describe(found[0])) if found else (str(verdict), "")
    message = f"{code}: {message}".rstrip(": ")
    return Case(classname, name, outcomes.get(verdict, ""), code, message, lines)


def _describe_all(findings: Iterable[Finding]) -> list[str]:
    lines = []
    for f in findings:
        lines.append(f"{f.severity}: {f.code}: {describe(f)}")
        lines += [f"hint: {f.hint}"] if f.hint and not f.follows else []
    return lines


def _list_loads(plan: LoadPlan, view: View) -> Iterator[Case]:
    failed = FAILED if view.warnings_fail else ""
    yield Case("ckpt.plan", "choice", lines=(sum_up(plan),))
    loads = {"every rank": plan.shared} if plan.shared else {}
    for who, files in {**loads, **{f"rank {r.rank}": r.files for r in plan.by_rank}}.items():
        lines = [
            f"{f.role}: {cut_root(f.path, plan.root)}{f' ({f.reason})' if f.reason else ''}" for f in files
        ]
        yield Case("ckpt.plan", who, lines=lines)
    yield from _list_rejected(plan, failed or SKIPPED)
    for f in plan.warnings:
        if f.severity is not Severity.NOTE:
            name = f"{f.code}: {cut_root(f.path, plan.root)}" if f.path else f.code
            yield Case("ckpt.plan.warnings", name, failed, f.code, describe(f), _describe_all((f,)))


def _list_rejected(plan: LoadPlan, outcome: str) -> Iterator[Case]:
    for rejected in plan.rejected:
        c = rejected.checkpoint
        found = sorted(rejected.findings, key=lambda f: (f.follows, -f.severity))
        code = found[0].code if found else "rejected"
        message = f"{code}: {describe(found[0])}" if found else code
        name = f"{c.label} ({c.kind}): {cut_root(c.path, plan.root)}"
        yield Case("ckpt.plan.rejected", name, outcome, code, message, _describe_all(found))
