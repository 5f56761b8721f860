"""A scan -> a tree for people: runs, the checkpoints of each, and their files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TypeVar

from ckpt_tools.discovery.completeness import ranks_present
from ckpt_tools.layouts import BUILT_IN
from ckpt_tools.model.answers import Scan
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.part import Part
from ckpt_tools.output.table import FEW, _epoch, _Page, _relative
from ckpt_tools.output.words import plural, size, span

T = TypeVar("T")
_Row = tuple[str, str, str, str, str]


def render(
    scan: Scan, *, color: bool = False, width: int | None = None, verbose: bool = False, now: float = 0.0
) -> str:
    """Runs in the order of their newest checkpoints. ``now`` is the time that ages are measured from;
    ``verbose`` lists every file.
    """
    page = _Page(color, width)
    if scan.checkpoints:
        page.table(
            ("checkpoint", "what", "ranks", "size", "age"),
            list(_rows(scan, verbose, now)),
            right=("size", "age"),
        )
    page.findings(scan.findings, scan.root)
    page.text("")
    page.text(plural(len(scan.checkpoints), "checkpoint"), "dim")
    return page.done()


def _rows(scan: Scan, verbose: bool, now: float) -> Iterator[_Row]:
    runs: dict[tuple[str, str], list[Checkpoint]] = defaultdict(list)
    layouts = scan.layouts or BUILT_IN
    for c in scan.checkpoints:
        runs[c.layout, c.run].append(c)
    for (layout, run), checkpoints in runs.items():
        total = sum(max(0, p.size) for c in checkpoints for p in c.parts)
        yield run or ".", layout, "", size(total), ""
        for c, branch, stem in _branches(checkpoints):
            expected, present = scan.expected.get(run), ranks_present(c, layouts.of(c))
            ranks = f"{'–' if present is None else present}/{'–' if expected is None else expected}"
            kind = f"{c.kind}, unfinished" if c.unfinished else str(c.kind)
            yield (
                f"{branch}{_step(c)}",
                kind,
                ranks,
                size(sum(max(0, p.size) for p in c.parts)),
                span(now - c.mtime_ns / 1e9),
            )
            few = len(c.parts) <= FEW or verbose
            shown = c.parts if few else c.parts[: FEW - 1]
            rows = [
                (_file(p, c), p.role, _place(p), size(p.size), span(now - p.mtime_ns / 1e9)) for p in shown
            ]
            if not few:
                rows.append(
                    (f"{len(c.parts) - len(shown):,} more files (--verbose lists them)", "", "", "", "")
                )
            for row, twig, _ in _branches(rows):
                yield (f"{stem}{twig}{row[0]}", *row[1:])


def _branches(items: Sequence[T]) -> Iterator[tuple[T, str, str]]:
    """Each item with the line that leads to it, and the one that leads past it."""
    for i, item in enumerate(items, 1):
        yield (item, "├─ ", "│  ") if i < len(items) else (item, "└─ ", "   ")


def _step(c: Checkpoint) -> str:
    words = [c.label]
    words += [f"epoch {_epoch(c)}"] if c.step is not None and c.epoch is not None else []
    words += [f"restart {c.generation}"] if c.generation and not c.counted else []
    return ", ".join(words)


def _file(p: Part, c: Checkpoint) -> str:
    below = _relative(p.path, c.path)
    return below if below != p.path else _relative(p.path, p.base)


def _place(p: Part) -> str:
    rank = [f"rank {p.rank}"] if p.rank is not None else []
    return " ".join([*rank, *(f"{axis}={n}" for axis, n in p.coords)])
