"""A difference -> a table for people, or one JSON object."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ckpt_tools import __version__
from ckpt_tools.model.finding import Severity, Verdict
from ckpt_tools.model.report import Level, Report
from ckpt_tools.output import json as emit_json
from ckpt_tools.output.table import FEW, _Page
from ckpt_tools.output.words import plural, size

if TYPE_CHECKING:
    from ckpt_tools.comparison.difference import Difference, FileDifference, TensorDifference, TensorSide

WORDS = ("same", "changed", "reshaped", "added", "removed", "not-compared")
"""What becomes of a tensor, in the order of the summary."""


def json(result: Difference) -> str:
    """The JSON of ``ckpt diff``."""
    return emit_json.dump(
        {
            "schema": "ckpt-tools/diff/v1",
            "tool_version": __version__,
            "a": emit_json.absolute(result.a),
            "b": emit_json.absolute(result.b),
            "level": str(result.level),
            "same": not result.differs and result.complete,
            "summary": {
                "files": _counts(f.change for f in result.files),
                "tensors": _counts(t.change for f in result.files for t in f.tensors),
                "bytes_read": result.bytes_read,
                "seconds": round(result.seconds, 6),
            },
            "files": [_file(f) for f in result.files],
            "findings": [emit_json.finding(f, across=True) for f in result.findings],
        }
    )


def _counts(changes: Iterable[object]) -> emit_json.Object:
    found = Counter(map(str, changes))
    return {word.replace("-", "_"): found[word] for word in WORDS}


def _file(f: FileDifference) -> emit_json.Object:
    return {
        "name": f.name,
        "change": str(f.change),
        "a": _report(f.a),
        "b": _report(f.b),
        "bytes_same": f.bytes_same,
        "tensors": [
            {"name": t.name, "change": str(t.change), "a": _tensor(t.a), "b": _tensor(t.b)} for t in f.tensors
        ],
        "metadata": [
            {"key": m.key, "change": str(m.change), "a": emit_json.scalar(m.a), "b": emit_json.scalar(m.b)}
            for m in f.metadata
        ],
    }


def _report(r: Report | None) -> emit_json.Object | None:
    if r is None:
        return None
    return {
        "path": emit_json.absolute(r.path),
        "format": r.format,
        "size": r.size,
        "verdict": str(r.verdict),
        "findings": [emit_json.finding(f) for f in r.findings],
    }


def _tensor(t: TensorSide | None) -> emit_json.Object | None:
    return (
        None
        if t is None
        else {"dtype": t.dtype, "shape": list(t.shape), "nbytes": t.nbytes, "digest": t.digest}
    )


# -- for people ----------------------------------------------------------------------------------------------


def table(result: Difference, *, color: bool = False, width: int | None = None, verbose: bool = False) -> str:
    """Files that are not the same, then what differs in them, then the counts.
    ``verbose`` lists everything.
    """
    page = _Page(color, width)
    listed = [f for f in result.files if verbose or len(result.files) <= FEW or str(f.change) != "same"]
    if listed:
        rows = [(str(f.change), _told(f), _size(f.a), _size(f.b), f.name) for f in listed]
        page.table(
            ("change", "tensors", "size in A", "size in B", "file"), rows, right=("size in A", "size in B")
        )
    several, hidden = len(result.files) > 1, 0
    tensors = [
        (f, t) for f in result.files if f.a and f.b for t in f.tensors if verbose or str(t.change) != "same"
    ]
    hidden += _some(
        page,
        ("change", "tensor", "in A", "in B"),
        [(f, (str(t.change), t.name, *_ends(t))) for f, t in tensors],
        several,
        verbose,
    )
    metadata = [
        (f, (str(m.change), m.key, _value(m.a, m.change, "added"), _value(m.b, m.change, "removed")))
        for f in result.files
        for m in f.metadata
    ]
    hidden += _some(page, ("change", "metadata", "in A", "in B"), metadata, several, verbose)
    found = [
        replace(f, path=f.path or r.path)
        for r in result.reports
        for f in r.findings
        if verbose or f.severity is not Severity.NOTE
    ]
    common = os.path.commonpath([result.a, result.b])
    page.findings(list(dict.fromkeys([*result.findings, *found])), common if len(common) > 1 else " ")
    _summary(page, result)
    if hidden or len(listed) < len(result.files):
        page.text("not all are listed (--verbose lists them)", "dim")
    return page.done()


def _some(
    page: _Page,
    headers: Sequence[str],
    rows: Sequence[tuple[FileDifference, Sequence[str]]],
    several: bool,
    verbose: bool,
) -> int:
    """A table of the first rows, and how many it leaves out."""
    shown = rows if verbose else rows[:FEW]
    if shown:
        page.text("")
        page.table(
            [*headers, *(["file"] if several else [])],
            [[*row, *([f.name] if several else [])] for f, row in shown],
        )
    return len(rows) - len(shown)


def _told(f: FileDifference) -> str:
    counts = Counter(str(t.change) for t in f.tensors)
    words = ", ".join(f"{counts[word]:,} {word.replace('-', ' ')}" for word in WORDS if counts[word])
    whole = "" if f.bytes_same is None else "same bytes" if f.bytes_same else "other bytes"
    return "; ".join(filter(None, (words, whole))) or "–"


def _size(r: Report | None) -> str:
    return "–" if r is None else size(r.size)


def _ends(t: TensorDifference) -> tuple[str, str]:
    a, b = (f"{s.dtype} {'×'.join(map(str, s.shape)) or 'scalar'}" if s else "–" for s in (t.a, t.b))
    if str(t.change) == "changed" and t.a and t.b:  # the same type and shape twice would say nothing
        a, b = (f"{text} {(s.digest or '')[:8]}" for text, s in ((a, t.a), (b, t.b)))
    return a, b


def _value(value: object, change: object, absent: str) -> str:
    return "–" if str(change) == absent else str(value)


def _summary(page: _Page, result: Difference) -> None:
    page.text("")
    if result.differs:
        page.text("they differ", "bold red")
    elif not result.complete:
        page.text("no difference found, but not everything could be compared", "yellow")
    else:
        page.text(
            (
                "the same"
                if result.level >= Level.CONTENT
                else "the same names, types, shapes and metadata (--level content compares the bytes too)"
            ),
            "green",
        )
    damaged = sum(r.verdict is Verdict.BROKEN for r in result.reports)
    if damaged:
        page.text(f"damage was found: 'ckpt verify' says more ({plural(damaged, 'file')})", "bold red")
    files, tensors = (
        Counter(str(f.change) for f in result.files),
        Counter(str(t.change) for f in result.files for t in f.tensors),
    )
    for what, counts in (("file", files), ("tensor", tensors)):
        words = ", ".join(f"{counts[word]:,} {word.replace('-', ' ')}" for word in WORDS if counts[word])
        page.text(f"{plural(sum(counts.values()), what)}{f': {words}' if words else ''}", "dim")
    if tensors["not-compared"]:
        page.text(
            "not compared: the bytes of tensors that have no known place in their file, and tensors that a"
            " damaged or encrypted file hides",
            "dim",
        )
    rate = f" ({size(result.bytes_read / result.seconds)}/s)" if result.seconds > 0.05 else ""
    page.text(
        f"{size(result.bytes_read)} read in {result.seconds:.1f} s{rate} at level {result.level}", "dim"
    )
