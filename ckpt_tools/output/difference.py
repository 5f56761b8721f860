"""A difference -> a table for people, or one JSON object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from ckpt_tools import __version__
from ckpt_tools.model.finding import Severity, Verdict
from ckpt_tools.model.report import Level, Report
from ckpt_tools.model.store_checksum import NAMES
from ckpt_tools.output import json as as_json
from ckpt_tools.output.page import FEW, PLAIN, Page, View
from ckpt_tools.output.words import plural, size, speed
from ckpt_tools.storage.urls import common, is_url

if TYPE_CHECKING:
    from ckpt_tools.comparison.difference import Difference, FileDifference, TensorDifference, TensorSide

WORDS = ("same", "changed", "reshaped", "added", "removed", "not-compared")
"""What becomes of a tensor, in the order of the summary."""


def json(result: Difference) -> str:
    """The JSON of ``ckpt diff``."""
    return as_json.dump(
        {
            "schema": "ckpt-tools/diff/v1",
            "tool_version": __version__,
            "a": as_json.absolute(result.a),
            "b": as_json.absolute(result.b),
            "level": str(result.level),
            "same": not result.differs and result.complete,
            "summary": {
                "files": _counts(f.change for f in result.files),
                "tensors": _counts(t.change for f in result.files for t in f.tensors),
                "bytes_read": result.bytes_read,
                "seconds": round(result.seconds, 6),
            },
            "files": [_file(f) for f in result.files],
            "findings": [as_json.finding(f, across=True) for f in result.findings],
        }
    )


def _counts(changes: Iterable[object]) -> as_json.Object:
    found = Counter(map(str, changes))
    return {word.replace("-", "_"): found[word] for word in WORDS}


def _file(f: FileDifference) -> as_json.Object:
    return {
        "name": f.name,
        "change": str(f.change),
        "a": _report(f.a),
        "b": _report(f.b),
        "bytes_same": f.bytes_same,
        "store_checksum": f.by_store or None,
        "tensors": [
            {"name": t.name, "change": str(t.change), "a": _tensor(t.a), "b": _tensor(t.b)} for t in f.tensors
        ],
        "metadata": [
            {"key": m.key, "change": str(m.change), "a": as_json.scalar(m.a), "b": as_json.scalar(m.b)}
            for m in f.metadata
        ],
    }


def _report(r: Report | None) -> as_json.Object | None:
    if r is None:
        return None
    told = as_json.fields(r, "path", "format", "size", "verdict")
    return {**told, "findings": [as_json.finding(f) for f in r.findings]}


def _tensor(t: TensorSide | None) -> as_json.Object | None:
    if t is None:
        return None
    return {"dtype": t.dtype, "shape": list(t.shape), "nbytes": t.nbytes, "digest": t.digest}


# -- for people ----------------------------------------------------------------------------------------------


def render(result: Difference, view: View = PLAIN) -> str:
    """Files that are not the same, then what differs in them, then the counts; ``view.verbose`` lists
    everything.
    """
    page = Page(view)
    page.text(*_answer(result))
    page.text("")
    listed = [f for f in result.files if view.verbose or len(result.files) <= FEW or str(f.change) != "same"]
    if listed:
        rows = [(str(f.change), _contents(f), _size(f.a), _size(f.b), f.name) for f in listed]
        right = ("size in A", "size in B")
        page.table(("change", "tensors", *right, "file"), rows, right, below=("file", "tensors"))
    hidden = _details(page, "tensor", list(_tensors(result, view.verbose)), result)
    hidden += _details(page, "metadata", list(_metadata(result)), result)
    _findings(page, result)
    _summary(page, result)
    if hidden or len(listed) < len(result.files):
        page.text("not all are listed (--verbose lists them)", "dim")
    return page.done()


class _Detail(NamedTuple):
    """One thing that differs in a file, and what it is on either side; ``type`` is what both sides are."""

    file: str
    change: str
    name: str
    type: str
    a: str
    b: str


def _tensors(result: Difference, verbose: bool) -> Iterator[_Detail]:
    for f in result.files:
        for t in f.tensors if f.a and f.b else ():
            if verbose or str(t.change) != "same":
                yield _Detail(f.name, str(t.change), t.name, *_ends(t))


def _metadata(result: Difference) -> Iterator[_Detail]:
    for f in result.files:
        for m in f.metadata:
            a, b = _value(m.a, m.change, "added"), _value(m.b, m.change, "removed")
            yield _Detail(f.name, str(m.change), m.key, "", a, b)


def _details(page: Page, what: str, details: Sequence[_Detail], result: Difference) -> int:
    """A table of the first details of each file, and how many are left out."""
    listed = page.first(details)
    several = len(result.files) > 1
    for file in dict.fromkeys(d.file for d in listed):
        page.text("")
        if several:
            page.text(file, "bold", whole=True)
        rows = [(d.change, d.name, d.type, d.a, d.b) for d in listed if d.file == file]
        page.table(("change", what, "type", "in A", "in B"), rows, below=(what, "in B", "in A"))
    return len(details) - len(listed)


def _findings(page: Page, result: Difference) -> None:
    found = [
        replace(f, path=f.path or r.path)
        for r in result.reports
        for f in r.findings
        if page.view.verbose or f.severity is not Severity.NOTE
    ]
    above = common([result.a, result.b])
    page.findings(list(dict.fromkeys([*result.findings, *found])), above if len(above) > 1 else " ")


def _contents(f: FileDifference) -> str:
    words = _words(Counter(str(t.change) for t in f.tensors))
    whole = "" if f.bytes_same is None else "same bytes" if f.bytes_same else "other bytes"
    if f.by_store:
        whole += f" ({NAMES[f.by_store]} of the store)"
    return "; ".join(filter(None, (words, whole))) or "–"


def _words(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{counts[word]:,} {word.replace('-', ' ')}" for word in WORDS if counts[word])


def _size(r: Report | None) -> str:
    return "–" if r is None else size(r.size)


def _ends(t: TensorDifference) -> tuple[str, str, str]:
    """What both sides are, and what each of them is."""
    a, b = (f"{s.dtype} {'×'.join(map(str, s.shape)) or 'scalar'}" if s else "–" for s in (t.a, t.b))
    if str(t.change) == "changed" and t.a and t.b and a == b:
        return a, (t.a.digest or "")[:8], (t.b.digest or "")[:8]
    return "", a, b


def _value(value: object, change: object, absent: str) -> str:
    return "–" if str(change) == absent else str(value)


def _summary(page: Page, result: Difference) -> None:
    page.text("")
    for root, reports in ((result.a, [f.a for f in result.files]), (result.b, [f.b for f in result.files])):
        if damaged := sum(r is not None and r.verdict is Verdict.BROKEN for r in reports):
            more = f"'ckpt verify {quote(root)}' says more"
            page.text(f"{plural(damaged, 'damaged file')} in {root}: {more}", "bold red")
    files = Counter(str(f.change) for f in result.files)
    tensors = Counter(str(t.change) for f in result.files for t in f.tensors)
    for what, counts in (("file", files), ("tensor", tensors)):
        words = _words(counts)
        page.text(f"{plural(sum(counts.values()), what)}{f': {words}' if words else ''}", "dim")
    if tensors["not-compared"]:
        page.text(
            "not compared: the bytes of tensors that have no known place in their file, and tensors that a"
            " damaged or encrypted file hides",
            "dim",
        )
    page.text(f"{speed(result.bytes_read, result.seconds)} at level {result.level}", "dim")


def _answer(result: Difference) -> tuple[str, str]:
    """Whether they differ, and the style to say it in."""
    if result.differs:
        return "they differ", "bold red"
    if not result.complete:
        return "no difference found, but not everything could be compared", "yellow"
    if by_store := _by_store(result):
        return by_store, "green"
    if result.level >= Level.CONTENT:
        return "the same", "green"
    return "the same names, types, shapes and metadata (--level content compares the bytes too)", "green"


def _by_store(result: Difference) -> str:
    """Where the checksums of stores alone say that all bytes are the same."""
    if not result.files or not all(f.by_store and f.bytes_same for f in result.files):
        return ""
    names = ", ".join(NAMES[name] for name in sorted({f.by_store for f in result.files}))
    one = len(result.files) == 1
    if is_url(result.a) and is_url(result.b):
        what = "the objects are the same"
    else:
        what = "the upload is the file" if one else "the uploads are the files"
    return f"{what}, byte for byte: by {names} of the store"
