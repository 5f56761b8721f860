"""Findings -> annotations of GitHub Actions, one per line (docs.github.com, "Workflow commands")."""

from __future__ import annotations

import re

from ckpt_tools.model.answers import Verification
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.output.failure import Failure
from ckpt_tools.output.observed import advise, is_unseen, observe, shorten
from ckpt_tools.output.page import View
from ckpt_tools.output.words import printable

_COMMAND = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


def render(document: Verification | LoadPlan | Failure, view: View) -> str:
    """Return an annotation per finding, the worst first, at most FEW; the last line is the answer."""
    seen = observe(document, view)
    listed = view.first(seen.findings)
    lines = [_annotate(f) for f in listed]
    if len(listed) < len(seen.findings):
        more = f"{len(seen.findings) - len(listed):,} more findings are not annotated: --json has all"
        lines.append(f"::notice title={_escape_property(seen.title)}::{_escape_message(more)}")
    if seen.failure or seen.empty:
        lines.append(f"::error title={_escape_property(seen.title)}::{_escape_message(seen.error)}")
    else:
        # The runner finds commands of the older form ##[…] anywhere in a line that is no newer command.
        lines.append(printable(f"{seen.title}: {seen.sentence}").replace("##[", "## ["))
    return "".join(f"{line}\n" for line in lines)


def _annotate(f: Finding) -> str:
    # A line break in a file name is escaped as %0A, so that the runner finds the file; other control
    # characters of a name must not steer the log.
    file = re.sub(r"[^\r\n]+", lambda m: printable(m[0]), shorten(f.path))
    where = f"file={_escape_property(file)}," if f.path else ""
    command = "error" if is_unseen(f) else _COMMAND[f.severity]
    return f"::{command} {where}title={_escape_property(f'ckpt: {f.code}')}::{_escape_message(advise(f))}"


def _escape_message(text: str) -> str:
    """Return the text of an annotation, in which % begins an escape."""
    return printable(text).replace("%", "%25")


def _escape_property(text: str) -> str:
    """Return the value of an annotation's property, which a colon or a comma would end."""
    escapes = {"%": "%25", "\r": "%0D", "\n": "%0A", ":": "%3A", ",": "%2C"}
    return re.sub(r"[%\r\n:,]", lambda m: escapes[m[0]], text)
