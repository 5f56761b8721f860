"""What is in one file -> tables: its metadata, tensors and pickle globals, and what protects each byte."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from ckpt_tools.formats import Anatomy, format_of
from ckpt_tools.model.report import Guard, Report, Stats
from ckpt_tools.output.json import COUNTS
from ckpt_tools.output.page import PLAIN, STYLE, Page, View, cut_root, say_checks, to_cell
from ckpt_tools.output.words import percent, plural, size


def render(report: Report, anatomy: Anatomy, trust: Mapping[str, str], view: View = PLAIN) -> str:
    """Return the page of ``ckpt show``; ``trust`` has for each pickle global what loading it would mean."""
    page = Page(view)
    page.text(report.path, "bold")
    checked = say_checks(report.level, report.coverage)
    text = f"{report.verdict}: {report.format or 'unknown format'}, {size(report.size)}, {checked}"
    page.text(text, STYLE[str(report.verdict)])
    values = [(key, str(value)) for key, value in report.metadata.items()]
    page.table(("metadata", "value"), values, below=("value",))
    if tensors := anatomy.tensors:
        rows = [
            (t.name, t.dtype, "×".join(map(str, t.shape)) or "scalar", size(t.nbytes), to_cell(t.offset))
            for t in page.view.first(tensors)
        ]
        headers = ("tensor", "type", "shape", "size", "offset")
        page.table(headers, rows, right=("size", "offset"), below=("tensor",))
        _count_all(page, "tensor", len(tensors), sum(t.nbytes for t in tensors), len(rows))
    elif report.format and report.level and format_of(report.format).loader is not None:
        page.text("0 tensors", "dim", gap=True)
    if files := anatomy.files:
        sealed = [(f.path, size(f.size), f.digest) for f in page.view.first(files)]
        page.table(("sealed file", "size", "digest"), sealed, right=("size",), below=("digest",))
        _count_all(page, "file", len(files), sum(f.size for f in files), len(sealed))
    _list_stats(page, report.stats)
    names = [(name, trust.get(name, "unknown")) for name in anatomy.globals]
    page.table(("pickle global", "loading it is"), names, below=("pickle global",))
    page.findings(report.findings, report.path)
    show_bytes(page, report, os.path.dirname(report.path))
    return page.done()


def _list_stats(page: Page, stats: Sequence[Stats]) -> None:
    headers = (*COUNTS, "min", "max")
    rows = [
        (s.name, *(f"{getattr(s, n):,}" for n in COUNTS), _format_number(s.min), _format_number(s.max))
        for s in page.view.first(stats)
    ]
    page.table(("numbers of", *headers), rows, right=headers, below=("numbers of",))


def _count_all(page: Page, noun: str, count: int, nbytes: int, listed: int) -> None:
    """Add a line below a table: how many items there are, their size, and how many are not ``listed``."""
    more = f"; {count - listed:,} not listed (--verbose lists them)" if count > listed else ""
    page.text(f"{plural(count, noun)}, {size(nbytes)}{more}", "dim")


def _format_number(value: float | None) -> str:
    return "–" if value is None else f"{value:.6g}"


def show_bytes(page: Page, report: Report, root: str) -> None:
    """Add a table of the byte regions of a file with what guards each, and the share of each guard."""
    if not report.regions:
        return
    rows = [(f"{r.offset:,}", f"{r.length:,}", str(r.guard), r.what) for r in report.regions]
    headers = ("offset", "bytes", "guard", "what")
    title = cut_root(report.path, root)
    page.table(headers, rows, right=("offset", "bytes"), below=("what",), title=title)
    totals = [(guard, sum(r.length for r in report.regions if r.guard is guard)) for guard in Guard]
    shares = [f"{guard}: {n:,} bytes ({percent(n / report.size)})" for guard, n in totals if n]
    page.text(", ".join(shares), "dim")
