"""An answer -> GitHub-flavoured Markdown: a summary with tables, for comments, step summaries and tickets.

Nothing in a file name can end a cell, open a tag, make a link or notify a user.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ckpt_tools.model.answers import Verification
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.output.failure import Failure
from ckpt_tools.output.observed import count_files, describe, observe
from ckpt_tools.output.page import DEPTHS, View, cut_root
from ckpt_tools.output.plan import list_facts, list_loads
from ckpt_tools.output.sentence import sum_up
from ckpt_tools.output.verification import list_files
from ckpt_tools.output.words import printable, size, span

_MARKUP = re.compile(
    r"[\\`*\[\]<>#|&~@$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|:(?=//)|(?<=www)\.", re.IGNORECASE
)
"""Characters to which Markdown, or GitHub's additions to it, give a meaning within a line."""
_PLAIN = re.compile(r"[A-Za-z0-9 ._/=,:()+-]*[A-Za-z0-9._/=,:()+-]")
"""Texts that can stand unescaped in a code span, in a table cell too."""


def render(document: Verification | LoadPlan | Failure, view: View) -> str:
    if isinstance(document, Verification):
        lines = _show_files(document, view)
    elif isinstance(document, LoadPlan):
        lines = _show_plan(document, view)
    else:
        lines = _show_failure(document, view)
    return "\n".join(lines) + "\n"


def text(words: str) -> str:
    """Return a text in which each character with a meaning in Markdown is a reference such as ``&#42;``."""

    def escape(m: re.Match[str]) -> str:
        return f"&#{ord(m[0])};" + ("&#8203;" if m[0] == "@" else "")  # else @name notifies a user

    return _MARKUP.sub(escape, printable(words))


def name(path: str) -> str:
    """Return a path as a code span, or as escaped text if a code span cannot hold it."""
    return f"`{path}`" if _PLAIN.fullmatch(path) and path == path.strip() else text(path)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> Iterator[str]:
    """Yield the lines of a table, first a blank one; none without rows. ``right``: right-aligned columns."""
    if rows:
        yield ""
        yield f"| {' | '.join(header)} |"
        yield f"|{'|'.join('---:' if word in right else '---' for word in header)}|"
        yield from (f"| {' | '.join(row)} |" for row in rows)


def _show_files(v: Verification, view: View) -> Iterator[str]:
    s = v.summary
    yield f"### ckpt verify: {v.verdict}"
    yield ""
    read = f"{size(s.bytes_read)} read in {span(s.seconds)}, {DEPTHS[v.level]}"
    yield f"{name(v.root)}: {text(count_files(v))}; {read}"
    yield from _show_findings(v, v.root, view)
    if view.verbose:
        rows = [(*map(text, cells), name(path)) for *cells, path in list_files(v)]
        yield from _table(("verdict", "checked", "size", "format", "file"), rows, ("size",))


def _show_plan(plan: LoadPlan, view: View) -> Iterator[str]:
    c = plan.checkpoint
    yield f"### ckpt plan: {text(f'resume from {c.label}') if c else 'start from scratch'}"
    yield ""
    yield text(sum_up(plan))
    yield ""
    facts = [(key, name(value)) for key, value in list_facts(plan) if value]
    yield from list(_table(("", ""), facts))[1:]
    rows = [(*map(text, cells), name(file), text(note)) for *cells, file, note in list_loads(plan, view)]
    listed = view.first(rows)
    yield from _table(("rank", "role", "checked", "size", "file", "note"), listed, ("rank", "size"))
    yield from _count_hidden(len(plan.loads) - len(listed), "file")
    yield from _show_findings(plan, plan.root, view)


def _show_failure(failure: Failure, view: View) -> Iterator[str]:
    yield f"### ckpt {failure.command}: {failure.code} (exit code {failure.exit_code})"
    yield ""
    yield f"**Error:** {text(failure.message)}"
    if failure.hint:
        yield ""
        yield f"**What to do:** {text(failure.hint)}"
    if failure.plan:
        yield ""
        yield text(sum_up(failure.plan))
        yield from _show_findings(failure, failure.plan.root, view)


def _show_findings(document: Verification | LoadPlan | Failure, root: str, view: View) -> Iterator[str]:
    findings = observe(document, view).findings
    listed = view.first(findings)
    yield from _table(
        ("severity", "code", "where", "what"),
        [(str(f.severity), name(f.code), name(cut_root(f.path, root)), text(describe(f))) for f in listed],
    )
    yield from _count_hidden(len(findings) - len(listed), "finding")
    by_hint: dict[str, dict[str, None]] = {}
    for f in listed:
        if f.hint and not f.follows:
            by_hint.setdefault(f.hint, {})[f.code] = None
    if by_hint:
        yield ""
    for hint, codes in by_hint.items():
        yield f"- {', '.join(map(name, codes))}: {text(hint)}"


def _count_hidden(count: int, noun: str) -> Iterator[str]:
    """Yield the lines that say how many items are not listed; nothing if all are."""
    if count:
        yield ""
        yield f"{count:,} more {noun}{'s' if count > 1 else ''} not listed (`--verbose` lists all)."
