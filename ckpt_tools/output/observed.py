"""What an answer comes down to, whatever is printed of it: a sentence, and every finding with its path."""

from __future__ import annotations

import os

from msgspec import Struct

from ckpt_tools.findings import NOT_SEEN
from ckpt_tools.model.answers import Verification
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.output.failure import Failure
from ckpt_tools.output.page import View, cut_root
from ckpt_tools.output.sentence import sum_up
from ckpt_tools.output.words import plural, size


class Observed(Struct, frozen=True):
    """One answer in brief. ``findings`` have paths, worst first; ``empty``: no file was recognised."""

    title: str
    sentence: str
    findings: tuple[Finding, ...]
    failure: Failure | None = None
    empty: bool = False

    @property
    def error(self) -> str:
        """The sentence, and the hint of the failure if there is one."""
        return ". ".join(filter(None, (self.sentence, self.failure.hint if self.failure else "")))


def observe(document: Verification | LoadPlan | Failure, view: View) -> Observed:
    """Return the title, the sentence and the findings of a document; notes only if ``view.verbose``."""
    if isinstance(document, Verification):
        found = [*document.findings, *document.in_files]
    elif plan := document.plan if isinstance(document, Failure) else document:
        found = [f.at(r.checkpoint.path) for r in plan.rejected for f in r.findings]
        found += [f.at(plan.root) for f in plan.warnings]
    else:
        found = []
    listed = [f for f in found if view.verbose or f.severity is not Severity.NOTE]
    findings = tuple(sorted(listed, key=lambda f: -f.severity))
    if isinstance(document, Failure):
        return Observed(f"ckpt {document.command}: {document.code}", document.message, findings, document)
    if isinstance(document, Verification):
        title = f"ckpt verify: {document.verdict}"
        return Observed(title, count_files(document), findings, empty=not document.files)
    return Observed("ckpt plan", sum_up(document), findings)


def is_unseen(f: Finding) -> bool:
    """Return True if the finding says that a file was not checked: a problem whatever its severity."""
    return f.severity is not Severity.NOTE and (f.code in NOT_SEEN or f.code == "not-inspected")


def count_files(v: Verification) -> str:
    """Return a text such as ``3 files, 1.2 GiB: 2 ok, 1 broken``."""
    s = v.summary
    if not s.files:
        return "nothing is recognised"
    counts = ", ".join(f"{n:,} {word}" for word, n in s.verdicts.items() if n)
    return f"{plural(s.files, 'file')}, {size(s.bytes)}" + (f": {counts}" if counts else "")


def shorten(path: str) -> str:
    """Return a path without the current directory, which in CI is the repository's; as it is elsewhere."""
    return cut_root(path, here())


def here() -> str:
    """Return the current directory, or "/" if it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return "/"


def advise(f: Finding) -> str:
    return ". ".join(filter(None, (describe(f), f.hint)))


def describe(f: Finding) -> str:
    return f.message if f.offset is None else f"{f.message} (at byte {f.offset:,})"
