"""A scan -> a table of its checkpoints, or a tree of runs, the checkpoints of each, and their files."""

from __future__ import annotations

from collections import defaultdict

from ckpt_tools.discovery.completeness import count_ranks
from ckpt_tools.layouts import BUILT_IN
from ckpt_tools.model.answers import Scan
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.part import Part
from ckpt_tools.output.page import FEW, PLAIN, Page, View, cut_root, say_epoch, say_hidden, to_cell
from ckpt_tools.output.words import plural, size, span

_HEADERS = (
    *("step", "epoch", "kind", "state", "layout", "run", "ranks", "files", "size", "age", "save", "restart"),
    "path",
)
_DULL = {**dict.fromkeys(_HEADERS, "–"), "kind": "periodic", "run": "."}
_MANY = 12
"""With more runs than this, and more than FEW checkpoints, a table has a row per run, not per checkpoint."""


def render(scan: Scan, view: View = PLAIN) -> str:
    """Return a page: the checkpoints in the scan's order, the findings, and the counts of other files."""
    page, found, runs = Page(view), scan.checkpoints, _group_by_run(scan)
    if len(runs) > _MANY and len(found) > FEW and not view.verbose:
        _list_runs(page, runs, view.now)
    else:
        page.table(
            _HEADERS,
            [_list_cells(c, scan, view) for c in found],
            right=("step", "epoch", "ranks", "files", "size", "age"),
            below=("path", "run", "layout", "kind"),
            dull=_DULL,
        )
    page.findings(scan.findings, scan.root)
    counts = [plural(len(found), "checkpoint")]
    counts += [f"{plural(scan.bare, 'file')} of a known format outside any layout"] if scan.bare else []
    counts += [plural(scan.unrecognised, "other file")] if scan.unrecognised else []
    counts += [say_hidden(scan.excluded)] if scan.excluded else []
    if not (found or scan.bare or scan.unrecognised):
        counts.append("0 other files")
    is_clear = found or counts[-1] == "0 other files"
    advice = "" if is_clear else " (if they are checkpoints: docs/adding-a-layout.md)"
    page.text(", ".join(counts) + advice, "dim", gap=True)
    return page.done()


def _list_cells(c: Checkpoint, scan: Scan, view: View) -> tuple[str, ...]:
    """Return a checkpoint's row."""
    counts_saves = _counts_saves(c)
    return (
        to_cell(c.step),
        say_epoch(c),
        _describe_kind(c),
        scan.states.get(c.key) or to_cell(None),
        c.layout,
        c.run or ".",
        _count_ranks(c, scan),
        f"{len(c.parts):,}",
        _add_sizes(c),
        span(view.now - c.mtime_ns / 1e9),
        to_cell(c.generation if counts_saves else None),
        to_cell(None if counts_saves else c.generation or None),
        c.path if view.verbose else cut_root(c.path, scan.root),
    )


def _group_by_run(scan: Scan) -> dict[tuple[str, str], list[Checkpoint]]:
    found = defaultdict[tuple[str, str], list[Checkpoint]](list)
    for c in scan.checkpoints:
        found[c.layout, c.run].append(c)
    return found


def _list_runs(page: Page, runs: dict[tuple[str, str], list[Checkpoint]], now: float) -> None:
    rows = []
    for (layout, run), checkpoints in runs.items():
        last = max(checkpoints, key=lambda c: c.mtime_ns)
        counts = (f"{len(checkpoints):,}", _add_sizes(*checkpoints), span(now - last.mtime_ns / 1e9))
        rows.append((layout, *counts, last.label, run or "."))
    right = ("checkpoints", "size", "age")
    page.table(("layout", *right, "last", "run"), rows, right=right, below=("run",))
    text = f"{plural(len(runs), 'run')}: --run RUN lists one, --verbose all of all"
    page.text(text, "dim", gap=True)


def _describe_kind(c: Checkpoint) -> str:
    return f"{c.kind}, unfinished" if c.unfinished else str(c.kind)


def _counts_saves(c: Checkpoint) -> bool:
    """Return True if ``generation`` counts saves, not restarts: file names have no step or epoch with it."""
    by_name = [p for p in c.parts[:1] if p.step is None and p.epoch is None]
    return c.counted or (c.generation is not None and bool(by_name))


def _count_ranks(c: Checkpoint, scan: Scan) -> str:
    """Return how many ranks have files, and of how many, such as ``7/8``."""
    present = count_ranks(c, (scan.layouts or BUILT_IN).of(c))
    expected = scan.expected.get(c.run)
    return to_cell(present) if expected is None else f"{to_cell(present)}/{expected}"


def _add_sizes(*checkpoints: Checkpoint) -> str:
    return size(sum(max(0, p.size) for c in checkpoints for p in c.parts))


def draw(scan: Scan, view: View = PLAIN) -> str:
    """Return the runs, the checkpoints of each, and their files; ``view.verbose`` lists every file."""
    rows = list[tuple[str, ...]]()
    for (layout, run), checkpoints in _group_by_run(scan).items():
        rows.append((run or ".", layout, "", _add_sizes(*checkpoints), ""))
        for c in checkpoints:
            words = [c.label, *[f"epoch {say_epoch(c)}"] * (None not in (c.step, c.epoch))]
            if c.generation and not c.counted:
                words.append(f"{'save' if _counts_saves(c) else 'restart'} {c.generation}")
            what = _describe_kind(c).replace("periodic", scan.states.get(c.key) or "–")
            age = span(view.now - c.mtime_ns / 1e9)
            rows.append((f"  {', '.join(words)}", what, _count_ranks(c, scan), _add_sizes(c), age))
            shown = c.parts if view.verbose or len(c.parts) <= FEW else c.parts[: FEW - 1]
            rows += [_list_part_cells(p, c, view.now) for p in shown]
            if hidden := len(c.parts) - len(shown):
                rows.append((f"    {hidden:,} more files (--verbose lists them)", "", "", "", ""))
    page, headers = Page(view), ("checkpoint", "what", "ranks", "size", "age")
    page.table(headers, rows, right=("size", "age"))
    page.findings(scan.findings, scan.root)
    page.text(plural(len(scan.checkpoints), "checkpoint"), "dim", gap=True)
    return page.done()


def _list_part_cells(p: Part, c: Checkpoint, now: float) -> tuple[str, ...]:
    below = cut_root(p.path, c.path)
    name = below if below != p.path else cut_root(p.path, p.base)
    rank = [f"rank {p.rank}"] if p.rank is not None else []
    ranks = " ".join([*rank, *(f"{axis}={n}" for axis, n in p.coords)])
    return f"    {name}", p.role, ranks, size(p.size), span(now - p.mtime_ns / 1e9)
