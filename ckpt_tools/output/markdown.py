"""An answer -> GitHub-flavoured Markdown: a summary with tables, for comments, step summaries and tickets.

Nothing in a name can end a cell, open a tag, link anywhere or call anybody.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from ckpt_tools.model.answers import Verification
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.plan import FileLoad, LoadPlan
from ckpt_tools.output.failure import Failure
from ckpt_tools.output.observed import counted, observed, place
from ckpt_tools.output.page import FEW, View, relative
from ckpt_tools.output.words import percent, printable, size, span

_MEANT = re.compile(r"[\\`*\[\]<>#|&~@$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|:(?=//)|www(?=\.)", re.IGNORECASE)
"""What Markdown, or GitHub on top of it, gives a meaning within a line."""
_PLAIN = re.compile(r"[A-Za-z0-9 ._/=,:()+-]*[A-Za-z0-9._/=,:()+-]")
"""What can stand in a code span as it is, in a table too."""


def render(document: Verification | LoadPlan | Failure, view: View) -> str:
    """A heading, a sentence, and tables."""
    if isinstance(document, Verification):
        lines = list(_verification(document, view))
    elif isinstance(document, LoadPlan):
        lines = list(_plan(document, view))
    else:
        lines = list(_failure(document, view))
    return "\n".join(lines) + "\n"


def text(words: str) -> str:
    """Words that mean nothing but themselves: a character with a meaning is said by its number."""
    return _MEANT.sub(lambda m: _number(m[0]), printable(words))


def _number(meant: str) -> str:
    if len(meant) > 1:  # www
        return f"{meant[:2]}&#{ord(meant[2])};"
    return f"&#{ord(meant)};" + ("&#8203;" if meant == "@" else "")  # @name would still tell somebody


def name(path: str) -> str:
    """A path or a code, as code where that is safe."""
    return f"`{path}`" if _PLAIN.fullmatch(path) and path == path.strip() else text(path)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> Iterator[str]:
    rows = list(rows)
    if rows:
        yield ""
        yield f"| {' | '.join(header)} |"
        yield f"|{'|'.join('---:' if word in right else '---' for word in header)}|"
        yield from (f"| {' | '.join(row)} |" for row in rows)


def _verification(v: Verification, view: View) -> Iterator[str]:
    s = v.summary
    yield f"### ckpt verify: {v.verdict}"
    yield ""
    read = f"{size(s.bytes_read)} read in {span(s.seconds)} at level {v.level}"
    yield f"{name(v.root)}: {text(counted(v))}; {read}"
    yield from _findings(observed(v, view).findings, v.root, view)
    bad = [f for f in (e.report for e in v.files) if view.verbose or str(f.verdict) != "ok"]
    listed = bad if view.verbose else bad[:FEW]
    yield from _table(
        ("verdict", "level", "coverage", "size", "file"),
        [
            (str(r.verdict), str(r.level), percent(r.coverage), size(r.size), name(relative(r.path, v.root)))
            for r in listed
        ],
        ("coverage", "size"),
    )
    yield from _left_out(len(bad) - len(listed), "file")


def _plan(plan: LoadPlan, view: View) -> Iterator[str]:
    c = plan.checkpoint
    yield f"### ckpt plan: {text(f'resume from {c.label}') if c else 'start from scratch'}"
    yield ""
    if c:
        facts = {
            "checkpoint": name(c.path),
            "kind": text(f"{c.kind}, {c.layout}"),
            "path": name(plan.resume.path or c.path),
            "arguments": name(" ".join(plan.resume.args)) if plan.resume.args else "",
            "ranks": str(plan.world_size) if plan.world_size is not None else "",
            "checked": f"{size(plan.bytes_verified)} read",
        }
        yield from list(_table(("", ""), [(k, v) for k, v in facts.items() if v]))[1:]
    else:
        yield f"There is no checkpoint in {name(plan.root)}."
    yield from _loads(plan, view)
    yield from _candidates(plan)
    yield from _findings(observed(plan, view).findings, plan.root, view)


def _loads(plan: LoadPlan, view: View) -> Iterator[str]:
    loads = [("all", f) for f in plan.shared] + [(str(r.rank), f) for r in plan.by_rank for f in r.files]
    listed = loads if view.verbose or len(loads) <= FEW else [x for x in loads if x[1].substituted][:FEW]
    yield from _table(
        ("rank", "role", "level", "coverage", "size", "file", "why"),
        [(rank, *_cells(f, plan.root)) for rank, f in listed],
        ("rank", "coverage", "size"),
    )
    yield from _left_out(len(loads) - len(listed), "file")


def _cells(f: FileLoad, root: str) -> Iterator[str]:
    yield from (text(f.role), str(f.level), percent(f.coverage), size(f.size))
    yield from (name(relative(f.path, root)), text(f.reason))


def _candidates(plan: LoadPlan) -> Iterator[str]:
    if plan.rejected:
        yield ""
        lost = [r.checkpoint for r in plan.rejected]
        named = "; ".join(f"{text(c.label)} ({name(relative(c.path, plan.root))})" for c in lost[:FEW])
        more = f" and {len(lost) - FEW:,} more" if len(lost) > FEW else ""
        yield f"**Not usable:** {named}{more}."


def _failure(failure: Failure, view: View) -> Iterator[str]:
    yield f"### ckpt {failure.command}: {failure.code} (exit code {failure.exit_code})"
    yield ""
    yield f"**Error:** {text(failure.message)}"
    if failure.hint:
        yield ""
        yield f"**What to do:** {text(failure.hint)}"
    if failure.plan:
        yield from _candidates(failure.plan)
        yield from _findings(observed(failure, view).findings, failure.plan.root, view)


def _findings(findings: Sequence[Finding], root: str, view: View) -> Iterator[str]:
    listed = findings if view.verbose else findings[:FEW]
    yield from _table(
        ("severity", "code", "where", "what"),
        [(str(f.severity), name(f.code), name(relative(f.path, root)), text(place(f))) for f in listed],
    )
    yield from _left_out(len(findings) - len(listed), "finding")
    by_hint: dict[str, dict[str, None]] = {}
    for f in listed:
        if f.hint and not f.follows:
            by_hint.setdefault(f.hint, {})[f.code] = None
    if by_hint:
        yield ""
    for hint, codes in by_hint.items():
        yield f"- {', '.join(map(name, codes))}: {text(hint)}"


def _left_out(count: int, noun: str) -> Iterator[str]:
    if count:
        yield ""
        yield f"{count:,} more {noun}{'s' if count > 1 else ''} not listed (`--verbose` lists all)."
