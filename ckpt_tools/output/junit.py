"""An answer -> JUnit XML as CI servers read it: a test case per file.

The form is that of Jenkins' xunit plug-in (junit-10.xsd), which GitLab, Azure and others share.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from ckpt_tools.model.answers import Verification
from ckpt_tools.model.finding import Finding, Severity, Verdict, worst
from ckpt_tools.output.failure import Failure
from ckpt_tools.output.observed import count_files, describe, is_unseen
from ckpt_tools.output.page import View, cut_root
from ckpt_tools.output.words import printable


class Case(NamedTuple):
    """One test case. ``outcome`` is "" if it passed; the first of the ``lines`` is its message."""

    classname: str
    name: str
    outcome: str = ""
    code: str = ""
    lines: Sequence[str] = ()


def render(document: Verification | Failure, view: View) -> str:
    """Return the XML of one suite: damage is a failure, an unread file or a failed command an error."""
    if isinstance(document, Verification):
        command, seconds, cases = "verify", document.summary.seconds, [*_list_cases(document, view)]
    else:
        command, seconds, lines = document.command, 0.0, [*filter(None, (document.message, document.hint))]
        cases = [Case(f"ckpt.{command}", "answer", "error", document.code, lines)]
    counts = {f"{word}s": str(sum(case.outcome == word for case in cases)) for word in ("failure", "error")}
    about = {"name": f"ckpt {command}", "tests": str(len(cases)), "time": f"{seconds:.3f}"}
    suite = Element("testsuite", {**about, **counts, "skipped": "0"})
    for case in cases:
        at = SubElement(suite, "testcase", classname=_text(case.classname), name=_text(case.name), time="0")
        if case.outcome:
            message = _text(*case.lines[:1]) or case.code
            SubElement(at, case.outcome, type=_text(case.code), message=message).text = _text(*case.lines)
        elif case.lines:
            SubElement(at, "system-out").text = _text(*case.lines)
    indent(suite)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(suite, encoding="unicode")}\n'


def _text(*lines: str) -> str:
    """Return lines without characters that XML 1.0 cannot hold, that steer a terminal or break a line."""
    return re.sub("[\ufffe\uffff]", lambda m: f"\\u{ord(m[0]):04x}", "\n".join(map(printable, lines)))


def _list_cases(v: Verification, view: View) -> Iterator[Case]:
    """Yield a case per file, and one per path that findings across files are about."""
    for entry in v.files:
        r, layout = entry.report, entry.part.layout if entry.part else None
        group = layout or r.format or "file"
        yield _judge(f"ckpt.verify.{group}", cut_root(r.path, v.root), r.verdict, r.findings, view)
    by_path: dict[str, list[Finding]] = {}
    for f in v.findings:
        by_path.setdefault(f.path, []).append(f)
    for path, found in by_path.items():
        verdict = Verdict.UNKNOWN if any(map(is_unseen, found)) else worst(found)
        yield _judge("ckpt.verify.across", cut_root(path, v.root) or ".", verdict, found, view)
    if not (v.files or v.findings):  # CI servers take a suite without cases for a passed one
        yield Case("ckpt.verify", "answer", "error", "nothing-recognised", (count_files(v),))


def _judge(classname: str, name: str, verdict: Verdict, findings: Iterable[Finding], view: View) -> Case:
    outcomes = {Verdict.BROKEN: "failure", Verdict.UNKNOWN: "error"}
    outcomes |= {Verdict.SUSPECT: "failure"} if view.warnings_fail else {}
    found, lines = sorted(findings, key=lambda f: -f.severity), []
    for f in found:
        if view.verbose or f.severity is not Severity.NOTE:
            lines.append(f"{f.severity}: {f.code}: {describe(f)}")
            lines += [f"hint: {f.hint}"] if f.hint and not f.follows else []
    return Case(classname, name, outcomes.get(verdict, ""), found[0].code if found else str(verdict), lines)
