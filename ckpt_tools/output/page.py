"""A page of text and tables for people: by rich on a terminal, in plain columns (which cost no import) into a
file or a pipe.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.frozen import frozen
from ckpt_tools.output.words import printable

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")

FEW = 50
"""Rows up to which a list is shown whole; beyond, only what needs attention, unless --verbose."""

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
"""Words that say something about health; all other cells are plain."""


@frozen
class View:
    """How a page is shown. ``width`` None means no terminal: nothing is wrapped. ``verbose`` lists all;
    ages are measured from ``now``. ``warnings_fail`` where the exit code says so of warnings too.
    """

    color: bool = False
    width: int | None = None
    verbose: bool = False
    now: float = 0.0
    warnings_fail: bool = False


PLAIN = View()


class Page:
    """Collects text and tables. With neither colour nor a width nothing is cut, wrapped or coloured, and rich
    is not needed.
    """

    def __init__(self, view: View) -> None:
        self.view = view
        self.file = io.StringIO()
        self.console = _console(self.file, view) if view.color or view.width is not None else None

    def text(self, text: str, style: str = "") -> None:
        if self.console is None:
            self.file.write(printable(text) + "\n")
            return
        from rich.text import Text

        self.console.print(Text(printable(text), style=style))

    def table(self, headers: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> None:
        """Rows of cells below ``headers``; the columns in ``right`` are aligned there."""
        cells = [[printable(cell) for cell in row] for row in rows]
        if self.console is None:
            self._plain_table([headers, *cells], [header in right for header in headers])
            return
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_edge=False)
        for header in headers:
            table.add_column(header, justify="right" if header in right else "left", overflow="fold")
        for row in cells:
            table.add_row(*(Text(cell, style=STYLE.get(cell, "")) for cell in row))
        self.console.print(table)

    def _plain_table(self, rows: Sequence[Sequence[str]], right: Sequence[bool]) -> None:
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            columns = zip(row, widths, right, strict=True)
            line = "  ".join(cell.rjust(w) if r else cell.ljust(w) for cell, w, r in columns)
            self.file.write(line.rstrip() + "\n")

    def first(self, items: Sequence[T]) -> Sequence[T]:
        """The items that are listed."""
        return items if self.view.verbose else items[:FEW]

    def findings(self, findings: Sequence[Finding], root: str) -> None:
        """A table of findings, below it what follows from them, and what to do about each code once."""
        if not findings:
            return
        findings = sorted(findings, key=lambda f: -f.severity)  # errors first, else in the order found
        self.text("")
        self.table(
            ("severity", "code", "where", "what"),
            [(str(f.severity), f.code, _where(f, root), f.message) for f in findings if not f.follows],
        )
        for f in findings:
            if f.follows:
                self.text(f"so {f.message}", STYLE[str(f.severity)])
        codes_by_hint: dict[str, dict[str, None]] = {}
        for f in findings:
            if f.hint and not f.follows:
                codes_by_hint.setdefault(f.hint, {})[f.code] = None
        self.text("")
        for hint, codes in codes_by_hint.items():
            self.text(f"hint ({', '.join(codes)}): {hint}", "dim")

    def done(self) -> str:
        return "".join(f"{line.rstrip()}\n" for line in self.file.getvalue().splitlines())


def _console(file: io.StringIO, view: View) -> Console:
    from rich.console import Console

    # Markup, emoji and highlighting off: names come from untrusted files.
    return Console(
        file=file,
        width=view.width or 100_000,
        force_terminal=view.color,
        no_color=not view.color,
        color_system="standard" if view.color else None,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
        soft_wrap=view.width is None,
        force_interactive=False,
        _environ={},
    )


def _where(f: Finding, root: str) -> str:
    place = relative(f.path, root)
    return place if f.offset is None else f"{place} at byte {f.offset:,}".lstrip()


def relative(path: str, root: str) -> str:
    """``path`` below ``root`` as a person reads it; as it is when it lies elsewhere."""
    base = root if root.endswith(os.sep) else root + os.sep
    return path[len(base) :] if path.startswith(base) and len(path) > len(base) else path


def known(value: object) -> str:
    """A value that may be unknown, as a cell."""
    return "–" if value is None else str(value)


def epoch(c: Checkpoint) -> str:
    return known(c.epoch) if c.step_in_epoch is None else f"{known(c.epoch)}_{c.step_in_epoch}"


def excluded(count: int) -> str:
    """How many entries the caller has hidden."""
    return f"{count:,} {'entry' if count == 1 else 'entries'} hidden by --exclude"
