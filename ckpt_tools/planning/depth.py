"""How deeply the files to load were looked at, and what is said of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpt_tools.findings import finding
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.frozen import replace
from ckpt_tools.model.part import Part
from ckpt_tools.model.selection import Selection
from ckpt_tools.reading.session import Session


def below_level(parts: Sequence[Part], session: Session, selection: Selection) -> list[Part]:
    """The files that were not looked at as deeply as asked. An empty mark has nothing in it."""
    return [p for p in parts if p.size and session.reports[p.path].level < selection.level]


def warnings_of_files(parts: Sequence[Part], session: Session) -> Iterator[Finding]:
    """What their own reports warn of."""
    for p in parts:
        for f in session.reports[p.path].findings:
            if f.severity is Severity.WARNING:
                yield replace(f, path=f.path or p.path)


def warnings_of_depth(parts: Sequence[Part], session: Session, selection: Selection) -> Iterator[Finding]:
    """What the level or the budget left out."""
    level, not_read = selection.level, session.reader.unread
    unread = [p for p in parts if p.path in not_read]
    if unread:
        size = sum(p.size for p in unread)
        files = f"{len(unread)} of the {len(parts)} files to load, {size:,} bytes,"
        over = f"the budget of {selection.budget:g} s was over"
        text = f"{over} before {files} were read as deeply as --level {level} asks"
        yield finding("budget-spent", text, path=session.root)
    others = [p for p in below_level(parts, session, selection) if p.path not in not_read]
    if others:
        text = f"{len(others)} files were looked at less deeply than --level {level}"
        yield finding("below-level", text, path=session.root)
