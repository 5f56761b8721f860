"""Warnings about a choice of which no file is damaged: clocks, orders that disagree, saves that never
finished, files that were looked at less deeply than asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from ckpt_tools.discovery import completeness
from ckpt_tools.findings import WAIT, finding
from ckpt_tools.layouts import Layouts
from ckpt_tools.model import ranges
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.frozen import replace
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Choice
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning.choose import rank
from ckpt_tools.reading.session import Session

_SAVES = 5
"""Unfinished saves that have a line of their own, the newest ones; a job that dies in every save leaves
hundreds.
"""


def passed_over(
    choice: Choice, chosen: Checkpoint, ranked: Sequence[Checkpoint], named: set[str]
) -> Iterator[Finding]:
    """Exports that were written after the choice, unless they lost or are ``named`` already."""
    lost = {r.checkpoint.key for r in choice.rejected}
    for c in ranked:
        known = c.key in lost or not named.isdisjoint((c.path, *(p.path for p in c.parts)))
        if c.kind is Kind.RELEASE is not chosen.kind and c.mtime_ns >= chosen.mtime_ns and not known:
            text = f"it was written no earlier than {chosen.label}, but is an export"
            severity = Severity.WARNING if c.order > chosen.order else None
            yield finding("passed-over", text, path=c.path, severity=severity)


def left_out(choice: Choice, save_interval: int | None) -> Iterator[Finding]:
    """The newest of the regular saves that --save-interval leaves out behind an unusable dying gasp."""
    if choice.left_out:
        c, more = choice.left_out[0], len(choice.left_out) - 1
        text = f"--save-interval {save_interval} leaves out {c.label}" + (f" and {more} more" if more else "")
        text += ", not known to be of the last multiple of it before the dying gasp, or of an earlier step"
        yield finding("passed-over", text, path=c.path, severity=Severity.WARNING)


def unfinished(
    saves: Sequence[Checkpoint],
    chosen: Checkpoint | None,
    order: str,
    root: str,
    state: Callable[[Checkpoint], str],
    *,
    layouts: Layouts,
    unplaced: Iterable[Checkpoint] = (),
) -> Iterator[Finding]:
    """Saves that would go before the chosen checkpoint had they been finished, or are of a later step, and
    those that are ``unplaced``: nothing tells that they are not.

    All of them where none is chosen. ``order`` is "mtime" or "step", ``state`` says of a save that may still
    be written how far it is.
    """
    doubtful = {c.key for c in unplaced}
    newer = [c for c in saves if chosen is None or c.key in doubtful or _goes_before(c, chosen, order)]
    left = rank(newer, order)
    for c in left[:_SAVES]:
        is_newer = "may be" if c.key in doubtful else "is"
        than = "" if chosen is None else f" {is_newer} newer than the choice, but"
        text = f"{completeness.label(c)}{than} {completeness.why_unfinished(c, layouts.of(c))}"
        text += f": {progress}" if (progress := state(c)) else ""
        hint = WAIT if progress else ""
        yield finding(
            "unfinished-save", text, path=c.parts[0].home or c.path, hint=hint, rule="choice/unfinished-newer"
        )
    if more := left[_SAVES:]:
        text = f"{len(more):,} more saves like these never finished: {ranges.names(c.label for c in more)}"
        yield finding("unfinished-save", text, path=root, rule="choice/unfinished-newer")


def _goes_before(c: Checkpoint, chosen: Checkpoint, order: str) -> bool:
    if c.kind is Kind.RELEASE is not chosen.kind:  # another framework's release/ may be called so
        return c.mtime_ns >= chosen.mtime_ns
    later = c.layout == chosen.layout and c.order > chosen.order
    return later or rank([chosen, c], order)[0] is c


def below_level(parts: Sequence[Part], session: Session, selection: Selection) -> list[Part]:
    """The files that were not looked at as deeply as asked. An empty mark has nothing in it."""
    return [p for p in parts if p.size and session.known(p).level < selection.level]


def of_files(parts: Sequence[Part], session: Session) -> Iterator[Finding]:
    """What their own reports warn of."""
    for p in parts:
        for f in session.known(p).findings:
            if f.severity is Severity.WARNING:
                yield replace(f, path=f.path or p.path)


def of_depth(parts: Sequence[Part], session: Session, selection: Selection) -> Iterator[Finding]:
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
