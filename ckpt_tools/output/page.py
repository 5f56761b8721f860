"""A page of text and tables for people, coloured by rich on a terminal."""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from msgspec import Struct

from ckpt_tools.findings import fill_hint
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.report import Level
from ckpt_tools.output.words import percent, printable, wrap_line

T = TypeVar("T")

FEW = 50
"""Rows up to which a list is shown whole; a longer list shows only what needs attention, unless --verbose."""

_HINTS = 4
"""The most hints with different texts that are shown for one finding code."""

STYLE = {
    "ok": "green",
    "suspect": "yellow",
    "broken": "bold red",
    "unknown": "magenta",
    "note": "cyan",
    "warning": "yellow",
    "error": "bold red",
    "allowed": "green",
    "needs-trust": "yellow",
    "dangerous": "bold red",
}
"""Styles of verdicts, severities and trust words; all other cells are plain."""


WORST = (Verdict.BROKEN, Verdict.UNKNOWN, Verdict.SUSPECT, Verdict.OK)
"""Verdicts in the order in which they need attention."""


class View(Struct, frozen=True):
    """How a page is shown: ``width`` in columns (None: no wrapping); ages are measured from ``now``."""

    color: bool = False
    width: int | None = None
    verbose: bool = False
    now: float = 0.0
    warnings_fail: bool = False

    def first(self, items: Sequence[T]) -> Sequence[T]:
        """Return the first FEW items; all if ``verbose``."""
        return items if self.verbose else items[:FEW]


PLAIN = View()


class Page:
    """Collects text and tables. No word is cut, so that a path can be copied whole from a terminal."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.file = io.StringIO()

    def text(self, text: str, style: str = "", *, whole: bool = False, gap: bool = False) -> None:
        """Add a paragraph, wrapped between words; ``whole`` keeps it on one line, for texts to be copied.
        ``gap`` adds a blank line above it.
        """
        if gap:
            self.gap()
        line = printable(text)
        for row in [line] if whole else _wrap(line, self.view.width, hang=2):
            self._write_line([(row, style)])

    def table(
        self,
        headers: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        right: Sequence[str] = (),
        below: Sequence[str] = (),
        dull: Mapping[str, str] = MappingProxyType({}),
        title: str = "",
    ) -> None:
        """Add rows of cells below ``headers`` and a ``title``, set apart from what is above; nothing if there
        are no rows. Columns in ``right`` are right-aligned. If the table is wider than the terminal, columns
        in ``below`` move below their rows, one after the other, until it fits. A column is left out if each
        cell is empty or equals the column's ``dull`` value.
        """
        cells = [[printable(cell) for cell in row] for row in rows]
        if not cells:
            return
        self.gap()
        if title:
            self.text(title, "bold", whole=True)
        widths = _measure(headers, cells, dull)
        moved = _choose_moved(widths, [headers.index(header) for header in below], self.view.width)
        for row in (headers, *cells):
            line = []
            for i in sorted(widths.keys() - moved):
                text = row[i].rjust(widths[i]) if headers[i] in right else row[i].ljust(widths[i])
                line.append((f"{text}  ", "bold" if row is headers else STYLE.get(row[i], "")))
            self._write_line(line)
            for cell in (row[i] for i in sorted(moved) if row is not headers and row[i]):
                for text in _wrap(f"    {cell}", self.view.width):
                    self._write_line([(text, "")])

    def _write_line(self, parts: Sequence[tuple[str, str]]) -> None:
        """Add a line of (text, style) pairs; styles count only with ``view.color``."""
        if self.view.color:
            from rich.style import Style

            parts = [(Style.parse(style).render(text), "") for text, style in parts]
        self.file.write("".join(text for text, _ in parts).rstrip() + "\n")

    def gap(self) -> None:
        if self.file.tell():
            self._write_line([])

    def findings(self, findings: Iterable[Finding], root: str) -> None:
        """Show findings, the worst first: those of one message together, below them the hint that they share;
        at last what follows from them.
        """
        found = sorted(findings, key=lambda f: -f.severity)  # else in the order found
        if not found:
            return
        self.gap()
        by_hint: dict[str, dict[tuple[Severity, str, str], list[Finding]]] = {}
        for f in (f for f in found if not f.follows):
            alike = by_hint.setdefault(fill_hint(f.hint, f.path, root), {})
            alike.setdefault((f.severity, f.code, f.message), []).append(f)
        hints, hidden = Counter[str](), 0
        for hint, groups in by_hint.items():
            for alike_findings in groups.values():
                self._show_alike(alike_findings, root)
            code = next(reversed(groups))[1]
            hints[code] += 1
            if hint and (hints[code] <= _HINTS or self.view.verbose):
                self.text(f"  hint: {hint}", "cyan")
            hidden += bool(hint) and hints[code] > _HINTS
        if hidden and not self.view.verbose:
            self.text(f"  hint: {hidden:,} more like these (-v)", "dim")
        for f in found:
            if f.follows:
                self.text(f"so {f.message}", STYLE[str(f.severity)])

    def _show_alike(self, findings: Sequence[Finding], root: str) -> None:
        """Show findings of one message: a line for each place (of notes the first), then the message."""
        first = findings[0]
        places = dict.fromkeys(_name_place(f, root) for f in findings)
        is_long = first.severity is Severity.NOTE and not self.view.verbose and len(places) > 1
        for place in [next(iter(places))] if is_long else places:
            more = f" and {len(places) - 1:,} more" if is_long else ""
            self.text(f"{first.severity}: {place}{more}", STYLE[str(first.severity)], whole=True)
        code = first.code
        if self.view.verbose:
            from ckpt_tools.planning.rules.catalogue import find_rule  # imports each rule

            code = " ".join(filter(None, (code, find_rule(first))))
        self.text(f"  {first.message} [{code}]")

    def done(self) -> str:
        return "".join(f"{line.rstrip()}\n" for line in self.file.getvalue().splitlines())


def _measure(
    headers: Sequence[str], cells: Sequence[Sequence[str]], dull: Mapping[str, str]
) -> dict[int, int]:
    """Return the widths of the columns to show, by index; columns of empty or ``dull`` cells are left out."""
    columns = {i: [row[i] for row in cells] for i in range(len(headers))}
    shown = [i for i, header in enumerate(headers) if not {"", dull.get(header)}.issuperset(columns[i])]
    return {i: max(map(len, (headers[i], *columns[i]))) for i in shown}


def _choose_moved(widths: Mapping[int, int], order: Sequence[int], width: int | None) -> set[int]:
    """Return the indices of the columns that must move below the rows for the others to fit in ``width``."""
    moved = set[int]()
    for i in (i for i in order if i in widths):
        if width is None or sum(w + 2 for at, w in widths.items() if at not in moved) - 2 <= width:
            break
        moved.add(i)
    return moved


def _wrap(line: str, width: int | None, hang: int = 0) -> list[str]:
    """Return lines that fit in ``width``; below an indented line, ``hang`` more blanks. No word is cut."""
    if width is None or len(line) <= width:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()))
    return wrap_line(line.strip(), width, indent, indent + " " * (hang if indent else 0))


def _name_place(f: Finding, root: str) -> str:
    return (cut_root(f.path, root) or root) + ("" if f.offset is None else f" at byte {f.offset:,}")


def cut_root(path: str, root: str) -> str:
    """Return ``path`` without the leading ``root``; unchanged if it does not lie below ``root``."""
    base = root if root.endswith(os.sep) else root + os.sep
    return path[len(base) :] if path.startswith(base) and len(path) > len(base) else path


def to_cell(value: object) -> str:
    return "–" if value is None else str(value)


def say_epoch(c: Checkpoint) -> str:
    """Return the epoch, followed by ``_S`` if the checkpoint was saved at step S within it."""
    return to_cell(c.epoch) if c.step_in_epoch is None else f"{to_cell(c.epoch)}_{c.step_in_epoch}"


def say_hidden(count: int) -> str:
    return f"{count:,} {'entry' if count == 1 else 'entries'} hidden by --exclude"


DEPTHS = {
    Level.PRESENCE: "names and sizes alone",
    Level.STRUCTURE: "structure, not the contents",
    Level.CONTENT: "all contents",
    Level.VALUES: "all contents, and the numbers in them",
    Level.LOAD: "all contents, and each file was loaded",
}


def say_checks(level: Level, coverage: float) -> str:
    """Return how deeply a file was checked. Only bytes that a stored checksum covers show a flipped bit."""
    if level < Level.CONTENT:
        return DEPTHS[level]
    return f"checksums of {percent(coverage)} of the bytes" if coverage else "no checksum in this format"
