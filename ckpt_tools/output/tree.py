"""A scan -> a tree for people: runs, the checkpoints of each, and their files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from ckpt_tools.model.answers import Scan
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.part import Part
from ckpt_tools.output.page import FEW, PLAIN, Page, View, epoch, relative
from ckpt_tools.output.scan import counts_saves, kind, ranks, total_size
from ckpt_tools.output.words import plural, size, span

T = TypeVar("T")


class _Row(NamedTuple):
    name: str
    what: str = ""
    ranks: str = ""
    size: str = ""
    age: str = ""


def render(scan: Scan, view: View = PLAIN) -> str:
    """Runs in the order of their newest checkpoints; ``view.verbose`` lists every file."""
    page = Page(view)
    if scan.checkpoints:
        headers = ("checkpoint", "what", "ranks", "size", "age")
        page.table(headers, _rows(scan, view), right=("size", "age"))
    page.findings(scan.findings, scan.root)
    page.text("")
    page.text(plural(len(scan.checkpoints), "checkpoint"), "dim")
    return page.done()


def _rows(scan: Scan, view: View) -> Iterator[_Row]:
    runs: dict[tuple[str, str], list[Checkpoint]] = defaultdict(list)
    for c in scan.checkpoints:
        runs[c.layout, c.run].append(c)
    for (layout, run), checkpoints in runs.items():
        yield _Row(run or ".", layout, size=total_size(*checkpoints))
        for c, branch, stem in _branches(checkpoints):
            age = span(view.now - c.mtime_ns / 1e9)
            yield _Row(f"{branch}{_step(c)}", kind(c), ranks(c, scan), total_size(c), age)
            for row, twig, _ in _branches(_files(c, view)):
                yield row._replace(name=f"{stem}{twig}{row.name}")


def _files(c: Checkpoint, view: View) -> list[_Row]:
    few = len(c.parts) <= FEW or view.verbose
    listed = c.parts if few else c.parts[: FEW - 1]
    rows = [
        _Row(_file(p, c), p.role, _place(p), size(p.size), span(view.now - p.mtime_ns / 1e9)) for p in listed
    ]
    if not few:
        rows.append(_Row(f"{len(c.parts) - len(listed):,} more files (--verbose lists them)"))
    return rows


def _branches(items: Sequence[T]) -> Iterator[tuple[T, str, str]]:
    """Each item with the line that leads to it, and the one that leads past it."""
    for i, item in enumerate(items, 1):
        yield (item, "├─ ", "│  ") if i < len(items) else (item, "└─ ", "   ")


def _step(c: Checkpoint) -> str:
    words = [c.label]
    words += [f"epoch {epoch(c)}"] if c.step is not None and c.epoch is not None else []
    if c.generation and not c.counted:
        words.append(f"{'save' if counts_saves(c) else 'restart'} {c.generation}")
    return ", ".join(words)


def _file(p: Part, c: Checkpoint) -> str:
    below = relative(p.path, c.path)
    return below if below != p.path else relative(p.path, p.base)


def _place(p: Part) -> str:
    rank = [f"rank {p.rank}"] if p.rank is not None else []
    return " ".join([*rank, *(f"{axis}={n}" for axis, n in p.coords)])
