"""An answer -> JUnit XML as CI servers read it: a test case per file, per rank, or per candidate that lost.

The form is that of Jenkins' xunit plug-in (junit-10.xsd), which GitLab, Azure and others share.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from msgspec import Struct

from ckpt_tools.model.answers import FileReport, Verification
from ckpt_tools.model.finding import Finding, Severity, Verdict, worst
from ckpt_tools.model.plan import FileLoad, LoadPlan
from ckpt_tools.output.failure import Failure
from ckpt_tools.output.observed import chosen, counted, place, unseen
from ckpt_tools.output.page import View, relative
from ckpt_tools.output.words import printable

FAILED, ERROR, SKIPPED = "failure", "error", "skipped"


class Case(Struct, frozen=True):
    """``outcome`` is empty for a case that passed; ``told`` is what it says all the same."""

    classname: str
    name: str
    outcome: str = ""
    code: str = ""
    message: str = ""
    told: str = ""


def render(document: Verification | LoadPlan | Failure, view: View) -> str:
    """One suite. Damage is a failure, what could not be looked at an error, a candidate that lost is skipped;
    where warnings count, so do they here.
    """
    seconds = document.summary.seconds if isinstance(document, Verification) else 0.0
    command = document.command if isinstance(document, Failure) else _command(document)
    cases = list(_cases(document, view))
    suite = Element("testsuite", name=f"ckpt {command}", tests=str(len(cases)))
    for outcome, name in ((FAILED, "failures"), (ERROR, "errors"), (SKIPPED, "skipped")):
        suite.set(name, str(sum(case.outcome == outcome for case in cases)))
    suite.set("time", f"{seconds:.3f}")
    for case in cases:
        _add(suite, case)
    indent(suite)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(suite, encoding="unicode")}\n'


def _command(document: Verification | LoadPlan) -> str:
    return "verify" if isinstance(document, Verification) else "plan"


def _add(suite: Element, case: Case) -> None:
    at = SubElement(suite, "testcase", classname=_text(case.classname), name=_text(case.name), time="0")
    if case.outcome:
        outcome = SubElement(at, case.outcome, type=_text(case.code), message=_text(case.message))
        outcome.text = _text(case.told)
    elif case.told:
        SubElement(at, "system-out").text = _text(case.told)


def _text(text: str) -> str:
    """What XML 1.0 can hold, and no terminal stumbles over; line breaks are our own."""
    lines = (printable(line) for line in text.split("\n"))
    return re.sub("[\ufffe\uffff]", lambda m: f"\\u{ord(m[0]):04x}", "\n".join(lines))


def _line(text: str) -> str:
    """Without line breaks: of a name that has some."""
    return text.replace("\n", "\\x0a")


def _cases(document: Verification | LoadPlan | Failure, view: View) -> Iterator[Case]:
    if isinstance(document, Verification):
        yield from (_file(entry, document.root, view) for entry in document.files)
        yield from _across(document, view)
        if not (document.files or document.findings):  # servers take a suite without cases for a good one
            yield Case("ckpt.verify", "answer", ERROR, "nothing-recognised", counted(document))
    elif isinstance(document, LoadPlan):
        yield Case("ckpt.plan", "choice", told=_line(chosen(document)))
        yield from _loads(document)
        yield from _rejected(document, FAILED if view.warnings_fail else SKIPPED)
        yield from _warnings(document, view)
    else:
        told = "\n".join(map(_line, filter(None, (document.message, document.hint))))
        message = _line(document.message)
        yield Case(f"ckpt.{document.command}", "answer", ERROR, document.code, message, told)
        if document.plan:
            yield from _rejected(document.plan, FAILED)


def _file(entry: FileReport, root: str, view: View) -> Case:
    r = entry.report
    of = entry.part.layout if entry.part else r.format or "file"
    return _judged(f"ckpt.verify.{of}", relative(r.path, root), r.verdict, r.findings, view)


def _across(v: Verification, view: View) -> Iterator[Case]:
    by_path: dict[str, list[Finding]] = {}
    for f in v.findings:
        by_path.setdefault(f.path, []).append(f)
    for path, found in by_path.items():
        verdict = Verdict.UNKNOWN if any(map(unseen, found)) else worst(found)
        yield _judged("ckpt.verify.across", relative(path, v.root) or ".", verdict, found, view)


def _judged(classname: str, name: str, verdict: Verdict, findings: Iterable[Finding], view: View) -> Case:
    found = sorted(findings, key=lambda f: -f.severity)
    told = _told(f for f in found if view.verbose or f.severity is not Severity.NOTE)
    outcome = {
        Verdict.BROKEN: FAILED,
        Verdict.UNKNOWN: ERROR,
        Verdict.SUSPECT: FAILED if view.warnings_fail else "",
    }.get(verdict, "")
    first = found[0] if found else None
    code, message = (first.code, place(first)) if first else (str(verdict), "")
    return Case(classname, _line(name), outcome, code, f"{code}: {_line(message)}".rstrip(": "), told)


def _told(findings: Iterable[Finding]) -> str:
    lines = []
    for f in findings:
        lines.append(f"{f.severity}: {f.code}: {_line(place(f))}")
        lines += [f"hint: {_line(f.hint)}"] if f.hint and not f.follows else []
    return "\n".join(lines)


def _loads(plan: LoadPlan) -> Iterator[Case]:
    if plan.shared:
        yield Case("ckpt.plan", "every rank", told=_files(plan.shared, plan.root))
    for rank in plan.by_rank:
        yield Case("ckpt.plan", f"rank {rank.rank}", told=_files(rank.files, plan.root))


def _files(files: Iterable[FileLoad], root: str) -> str:
    return "\n".join(
        _line(f"{f.role}: {relative(f.path, root)}" + (f" ({f.reason})" if f.reason else "")) for f in files
    )


def _rejected(plan: LoadPlan, outcome: str) -> Iterator[Case]:
    for rejected in plan.rejected:
        c = rejected.checkpoint
        found = sorted(rejected.findings, key=lambda f: (f.follows, -f.severity))
        code = found[0].code if found else "rejected"
        message = f"{code}: {_line(place(found[0]))}" if found else code
        name = _line(f"{c.label} ({c.kind}): {relative(c.path, plan.root)}")
        yield Case("ckpt.plan.rejected", name, outcome, code, message, _told(found))


def _warnings(plan: LoadPlan, view: View) -> Iterator[Case]:
    for f in plan.warnings:
        if f.severity is not Severity.NOTE:
            name = _line(f"{f.code}: {relative(f.path, plan.root)}" if f.path else f.code)
            outcome = FAILED if view.warnings_fail else ""
            yield Case("ckpt.plan.warnings", name, outcome, f.code, _line(place(f)), _told((f,)))
