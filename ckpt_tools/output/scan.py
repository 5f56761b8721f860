"""A scan -> a table of its checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ckpt_tools.discovery.completeness import ranks_present
from ckpt_tools.layouts import BUILT_IN
from ckpt_tools.model.answers import Scan
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.output.page import FEW, PLAIN, Page, View, epoch, excluded, known, relative
from ckpt_tools.output.words import plural, size, span


class _Column(NamedTuple):
    header: str
    cell: Callable[[Checkpoint], str]
    right: bool = False


_DULL = {"epoch": "–", "run": ".", "ranks": "–"}
_MANY = 12
"""Runs of which each is listed with all its checkpoints, if those are few."""


def render(scan: Scan, view: View = PLAIN) -> str:
    """The checkpoints in their order, the findings, and what else lies there."""
    page = Page(view)
    runs = _runs(scan)
    if len(runs) > _MANY and len(scan.checkpoints) > FEW and not view.verbose:
        _newest(page, runs, view.now)
    elif scan.checkpoints:
        columns = _columns(scan, view)
        page.table(
            [column.header for column in columns],
            [[column.cell(c) for column in columns] for c in scan.checkpoints],
            right=[column.header for column in columns if column.right],
            below=("path", "run", "layout", "kind"),
            dull=_DULL,
        )
    page.findings(scan.findings, scan.root)
    page.gap()
    page.text(_counts(scan), "dim")
    return page.done()


def _counts(scan: Scan) -> str:
    """How many checkpoints there are, what else, and what to do where there is no checkpoint."""
    counts = [plural(len(scan.checkpoints), "checkpoint")]
    if scan.bare:
        counts.append(plural(scan.bare, "file") + " of a known format outside any layout")
    if scan.unrecognised:
        counts.append(plural(scan.unrecognised, "other file"))
    if scan.excluded:
        counts.append(excluded(scan.excluded))
    if scan.checkpoints:
        return ", ".join(counts)
    if not scan.bare + scan.unrecognised:
        return ", ".join([*counts, "0 other files"])
    return f"{', '.join(counts)} (if they are checkpoints: docs/adding-a-layout.md)"


def _columns(scan: Scan, view: View) -> list[_Column]:
    columns = [
        _Column("step", lambda c: known(c.step), right=True),
        _Column("epoch", epoch, right=True),
        _Column("kind", kind),
        _Column("layout", lambda c: c.layout),
        _Column("run", lambda c: c.run or "."),
        _Column("ranks", lambda c: ranks(c, scan), right=True),
        _Column("files", lambda c: f"{len(c.parts):,}", right=True),
        _Column("size", total_size, right=True),
        _Column("age", lambda c: span(view.now - c.mtime_ns / 1e9), right=True),
    ]
    if any(map(counts_saves, scan.checkpoints)):
        columns.append(_Column("save", lambda c: known(c.generation if counts_saves(c) else None)))
    restarts = {c.generation for c in scan.checkpoints if c.generation is not None and not counts_saves(c)}
    if len(restarts) > 1:
        columns.append(_Column("restart", lambda c: known(None if counts_saves(c) else c.generation)))
    columns.append(_Column("path", lambda c: c.path if view.verbose else relative(c.path, scan.root)))
    return columns


def _runs(scan: Scan) -> dict[tuple[str, str], list[Checkpoint]]:
    """The checkpoints of each run, in their order."""
    out = dict[tuple[str, str], list[Checkpoint]]()
    for c in scan.checkpoints:
        out.setdefault((c.run, c.layout), []).append(c)
    return out


def _newest(page: Page, runs: Mapping[tuple[str, str], Sequence[Checkpoint]], now: float) -> None:
    """Each run in a line: how many checkpoints it has, and the one that was saved last."""
    rows = []
    for (run, layout), checkpoints in runs.items():
        last = max(checkpoints, key=lambda c: c.mtime_ns)
        age = span(now - last.mtime_ns / 1e9)
        count = f"{len(checkpoints):,}"
        rows.append((layout, count, total_size(*checkpoints), age, last.label, run or "."))
    right = ("checkpoints", "size", "age")
    page.table(("layout", *right, "last", "run"), rows, right=right, below=("run",))
    page.text("")
    page.text(f"{plural(len(runs), 'run')}: --run RUN lists one, --verbose all of all", "dim")


def kind(c: Checkpoint) -> str:
    return f"{c.kind}, unfinished" if c.unfinished else str(c.kind)


def counts_saves(c: Checkpoint) -> bool:
    """Whether the number in its names counts saves, and not restarts: what else is known is from inside."""
    by_name = [p for p in c.parts[:1] if p.step is None and p.epoch is None]
    return c.counted or (c.generation is not None and bool(by_name))


def ranks(c: Checkpoint, scan: Scan) -> str:
    """How many ranks are present of how many that are expected."""
    present = ranks_present(c, (scan.layouts or BUILT_IN).of(c))
    expected = scan.expected.get(c.run)
    return known(present) if expected is None else f"{known(present)}/{expected}"


def total_size(*checkpoints: Checkpoint) -> str:
    return size(sum(max(0, p.size) for c in checkpoints for p in c.parts))
