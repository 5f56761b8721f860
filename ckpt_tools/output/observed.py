"""What an answer comes down to, whatever is printed of it: a sentence, and every finding with its path."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from ckpt_tools.findings import NOT_SEEN
from ckpt_tools.model.answers import Verification
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.output.failure import Failure
from ckpt_tools.output.page import View
from ckpt_tools.output.words import plural, size


class Observed(Struct, frozen=True):
    """``title`` and ``sentence`` say what came out; ``findings`` are the worst first, and each has the path
    of what it is about. Notes are among them only where everything is to be listed.
    ``empty`` where nothing was recognised.
    """

    title: str
    sentence: str
    root: str
    findings: tuple[Finding, ...]
    failure: Failure | None = None
    empty: bool = False


def observed(document: Verification | LoadPlan | Failure, view: View) -> Observed:
    """The same of every kind of document."""
    if isinstance(document, Failure):
        plan = document.plan
        return Observed(
            f"ckpt {document.command}: {document.code}",
            document.message,
            plan.root if plan else "",
            _worst_first(_of_plan(plan) if plan else (), view),
            document,
        )
    if isinstance(document, Verification):
        title = f"ckpt verify: {document.verdict}"
        findings = _worst_first(_of_files(document), view)
        empty = not document.files
        return Observed(title, counted(document), document.root, findings, empty=empty)
    return Observed("ckpt plan", chosen(document), document.root, _worst_first(_of_plan(document), view))


def unseen(f: Finding) -> bool:
    """Whether something was not looked at, which is never good news whatever the severity."""
    return f.severity is not Severity.NOTE and (f.code in NOT_SEEN or f.code == "not-inspected")


def counted(v: Verification) -> str:
    """``3 files, 1.2 GiB: 2 ok, 1 broken``."""
    s = v.summary
    if not s.files:
        return "nothing is recognised"
    verdicts = {"ok": s.ok, "suspect": s.suspect, "broken": s.broken, "unknown": s.unknown}
    counts = ", ".join(f"{n:,} {word}" for word, n in verdicts.items() if n)
    return f"{plural(s.files, 'file')}, {size(s.bytes)}" + (f": {counts}" if counts else "")


def chosen(plan: LoadPlan) -> str:
    """``resume from step 10 (periodic, megatron): /data/run/iter_0000010``."""
    c = plan.checkpoint
    if c is None:
        return "no checkpoint: training would start from scratch"
    return f"resume from {c.label} ({c.kind}, {c.layout}): {c.path}"


def below_here(path: str) -> str:
    """The path as it is seen from the current directory, where it lies below it: what a repository's files
    are called.
    """
    home = here().rstrip("/") + "/"
    return path[len(home) :] if path.startswith(home) and len(path) > len(home) else path


def here() -> str:
    """The current directory; the root where that is gone."""
    try:
        return os.getcwd()
    except OSError:
        return "/"


def place(f: Finding) -> str:
    """Its message with the byte that it is about."""
    return f.message if f.offset is None else f"{f.message} (at byte {f.offset:,})"


def _of_files(v: Verification) -> Iterator[Finding]:
    yield from v.findings
    for entry in v.files:
        for f in entry.report.findings:
            yield f if f.path else replace(f, path=entry.report.path)


def _of_plan(plan: LoadPlan) -> Iterator[Finding]:
    for rejected in plan.rejected:
        for f in rejected.findings:
            yield f if f.path else replace(f, path=rejected.checkpoint.path)
    for f in plan.warnings:
        yield f if f.path else replace(f, path=plan.root)


def _worst_first(findings: Iterable[Finding], view: View) -> tuple[Finding, ...]:
    listed = [f for f in findings if view.verbose or f.severity is not Severity.NOTE]
    return tuple(sorted(listed, key=lambda f: -f.severity))
