"""A difference -> a table for people, or one JSON object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import takewhile
from math import isfinite
from shlex import quote

from ckpt_tools.comparison.difference import Change, Difference, FileDifference, TensorDifference
from ckpt_tools.model.finding import Severity, Verdict
from ckpt_tools.model.report import Level, Report
from ckpt_tools.model.seal import NAMES
from ckpt_tools.output.json import Object, absolute, document, fields, finding, list_findings, scalar
from ckpt_tools.output.page import DEPTHS, FEW, PLAIN, Page, View
from ckpt_tools.output.words import plural, size, speed
from ckpt_tools.storage.urls import find_common, is_url

_SIDE = ("dtype", "shape", "nbytes", "digest")


def json(result: Difference) -> str:
    files: list[Object] = [
        {
            **fields(f, "name", "change"),
            "a": _convert_report(f.a),
            "b": _convert_report(f.b),
            "bytes_same": f.bytes_same,
            "store_checksum": f.by_store or None,
            "tensors": [
                {
                    **fields(t, "name", "change"),
                    "a": fields(t.a, *_SIDE) if t.a else None,
                    "b": fields(t.b, *_SIDE) if t.b else None,
                    "largest_difference": scalar(t.largest),
                }
                for t in f.tensors
            ],
            "metadata": [
                {**fields(m, "key", "change"), "a": scalar(m.a), "b": scalar(m.b)} for m in f.metadata
            ],
        }
        for f in result.files
    ]
    body = {
        "a": absolute(result.a),
        "b": absolute(result.b),
        **fields(result, "level"),
        "same": not result.differs and result.complete,
        "summary": {
            "files": _count_changes(_count_files(result)),
            "tensors": _count_changes(result.tensors),
            **fields(result, "bytes_read", "seconds"),
        },
        "files": files,
        "findings": list_findings(result.findings),
    }
    return document("diff", body)


def _count_changes(counts: Mapping[Change, int]) -> Object:
    return {str(change).replace("-", "_"): counts[change] for change in Change}


def _count_files(result: Difference) -> Counter[Change]:
    return Counter(f.change for f in result.files)


def _convert_report(r: Report | None) -> Object | None:
    if r is None:
        return None
    return {**fields(r, "path", "format", "size", "verdict"), "findings": [finding(f) for f in r.findings]}


# -- for people ----------------------------------------------------------------------------------------------


def render(result: Difference, view: View = PLAIN) -> str:
    """Return a page: files that differ, their tensors and metadata, counts; ``view.verbose`` lists all."""
    page = Page(view)
    page.text(*_conclude(result))
    listed = [
        f for f in result.files if view.verbose or len(result.files) <= FEW or f.change is not Change.SAME
    ]
    headers = ("change", "tensors", "size in A", "size in B", "file")
    page.table(headers, map(_list_cells, listed), right=headers[2:4], below=("file", "tensors"))
    hidden = _list_details(page, "tensor", _list_tensors(result, view.verbose), result)
    hidden += _list_details(page, "metadata", _list_metadata(result), result)
    found = [f.at(r.path) for r in result.reports for f in r.findings]
    found = [f for f in found if view.verbose or f.severity is not Severity.NOTE]
    above = find_common([result.a, result.b])
    page.findings(list(dict.fromkeys([*result.findings, *found])), above if len(above) > 1 else " ")
    _sum_up(page, result)
    if hidden or len(listed) < len(result.files):
        page.text("not all are listed (--verbose lists them)", "dim")
    return page.done()


def _list_details(page: Page, what: str, details: Sequence[Sequence[str]], result: Difference) -> int:
    """Show a table per file of ``details`` (file name, then cells); return how many do not fit the page."""
    shown = page.view.first(details)
    for file in dict.fromkeys(name for name, *_ in shown):
        cells = [cells for name, *cells in shown if name == file]
        headers, title = ("change", what, "type", "in A", "in B"), file if len(result.files) > 1 else ""
        page.table(headers, cells, below=(what, "in B", "in A"), title=title)
    return len(details) - len(shown)


def _list_cells(f: FileDifference) -> Sequence[str]:
    """Return a file's row: change, tensors and bytes that differ, size in A, size in B, name."""
    counts = _join_counts(Counter(t.change for t in f.tensors))
    content = "" if f.bytes_same is None else "same bytes" if f.bytes_same else "other bytes"
    content += f" ({NAMES[f.by_store]} of the store)" if f.by_store else ""
    sizes = ("–" if r is None else size(r.size) for r in (f.a, f.b))
    return (str(f.change), "; ".join(filter(None, (counts, content))) or "–", *sizes, f.name)


def _list_tensors(result: Difference, verbose: bool) -> list[Sequence[str]]:
    """Return (file, change, tensor, type, in A, in B) for tensors of files on both sides that differ."""
    return [
        (f.name, str(t.change), t.name, *_describe_sides(t, verbose))
        for f in result.files
        for t in (f.tensors if f.a and f.b else ())
        if verbose or t.change is not Change.SAME
    ]


def _list_metadata(result: Difference) -> list[Sequence[str]]:
    rows = list[Sequence[str]]()
    for name, m in ((f.name, m) for f in result.files for m in f.metadata):
        a = "–" if m.change is Change.ADDED else str(m.a)
        b = "–" if m.change is Change.REMOVED else str(m.b)
        rows.append((name, str(m.change), m.key, "", a, b))
    return rows


def _join_counts(counts: Mapping[Change, int]) -> str:
    return ", ".join(f"{counts[c]:,} {str(c).replace('-', ' ')}" for c in Change if counts[c])


def _describe_sides(t: TensorDifference, verbose: bool) -> tuple[str, str, str]:
    """Return the cells type, in A, in B: digests if only values differ, else type and shape of each side."""
    a, b = (f"{s.dtype} {'×'.join(map(str, s.shape)) or 'scalar'}" if s else "–" for s in (t.a, t.b))
    if t.change is Change.CHANGED and t.a and t.b and a == b:
        digests = [(side.digest or "")[: 8 * verbose] for side in (t.a, t.b)]
        largest = "" if t.largest is None else f" largest difference {_say_number(t.largest)}"
        return a, digests[0], f"{digests[1]}{largest}".strip()
    return "", a, b


def _say_number(x: float) -> str:
    return f"{x:.3g}" if isfinite(x) else "infinite (NaN or infinity on one side)"


def _sum_up(page: Page, result: Difference) -> None:
    page.gap()
    for root, reports in ((result.a, [f.a for f in result.files]), (result.b, [f.b for f in result.files])):
        if damaged := sum(r is not None and r.verdict is Verdict.BROKEN for r in reports):
            more = f"'ckpt verify {quote(root)}' says more"
            page.text(f"{plural(damaged, 'damaged file')} in {root}: {more}", "bold red")
    for what, counts in (("file", _count_files(result)), ("tensor", result.tensors)):
        by_change = _join_counts(counts)
        page.text(f"{plural(sum(counts.values()), what)}{f': {by_change}' if by_change else ''}", "dim")
    if result.tensors[Change.NOT_COMPARED]:
        why = "tensors with no known place in their file, or in a damaged or encrypted file"
        page.text(f"not compared: {why}", "dim")
    page.text(f"{speed(result.bytes_read, result.seconds)}, {DEPTHS[result.level]}", "dim")


def _describe_change(result: Difference) -> str:
    """Return how many tensors (else files) differ, by how much, and whether only a prefix of names does."""
    what, counts = "tensor", result.tensors
    if not counts.keys() - {Change.SAME, Change.NOT_COMPARED}:
        what, counts = "file", _count_files(result)
    total, differing = plural(counts.total(), what), counts - Counter({Change.SAME: counts[Change.SAME]})
    text = f"they differ: {_join_counts(differing)} of {total}"
    known = [(t.largest, t.name) for f in result.files for t in f.tensors if t.largest is not None]
    if known:
        largest, name = max(known)
        text += f"; the largest difference is {_say_number(largest)}, in {name!r}"
    return text + _find_prefix(result)


def _select(result: Difference, change: Change) -> list[TensorDifference]:
    return [t for f in result.files for t in f.tensors if t.change is change]


def _find_prefix(result: Difference) -> str:
    """Return both prefixes if removed and added tensors differ in the prefix of names alone, else ""."""
    gone, new = _select(result, Change.REMOVED), _select(result, Change.ADDED)
    if not gone or [t.a.shape for t in gone if t.a] != [t.b.shape for t in new if t.b]:
        return ""
    old_name, new_name = gone[0].name, new[0].name
    pairs = zip(old_name[::-1], new_name[::-1], strict=False)
    suffix = [*takewhile(lambda pair: pair[0] == pair[1], pairs)]
    a, b = old_name[: len(old_name) - len(suffix)], new_name[: len(new_name) - len(suffix)]
    same = [b + t.name.removeprefix(a) for t in gone] == [t.name for t in new]
    return f": the same names with the prefix {b!r} instead of {a!r}" if same else ""


def _conclude(result: Difference) -> tuple[str, str]:
    """Return the first line of the page and its style."""
    if result.differs:
        return _describe_change(result), "bold red"
    if not result.complete:
        if result.tensors.keys() == {Change.NOT_COMPARED}:
            return "no tensor could be compared", "yellow"
        return "no difference found, but not everything could be compared", "yellow"
    if result.files and all(f.by_store and f.bytes_same for f in result.files):
        names = ", ".join(NAMES[name] for name in sorted({f.by_store for f in result.files}))
        what = "the upload is the file" if len(result.files) == 1 else "the uploads are the files"
        if is_url(result.a) and is_url(result.b):
            what = "the objects are the same"
        return f"{what}, byte for byte: by {names} of the store", "green"
    if result.level >= Level.CONTENT:
        return "the same", "green"
    return "the same names, types, shapes and metadata (--level content compares the bytes too)", "green"
