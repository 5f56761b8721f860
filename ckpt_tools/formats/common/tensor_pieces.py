"""Tensors whose pieces lie in several files: whether all pieces of one save make up whole tensors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.tiling import untiled
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.tensor import Box


def incomplete(files: Iterable[Mapping[str, Box]]) -> Iterator[Finding]:
    """Tensors that the pieces in all files of one save do not fill;
    replicated tensors are in one file only.
    """
    pieces: dict[str, list[Box]] = defaultdict(list)
    for file in files:
        for name, box in file.items():
            pieces[name].append(box)
    for name, boxes in pieces.items():
        if what := _gap(boxes):
            text = f"the pieces of {name[:200]!r} {what}: a file of another save, or one that is missing"
            yield finding("bad-header", text)


def _gap(boxes: list[Box]) -> str:
    """How pieces fail to make up a tensor; "" where they do."""
    if len({len(box.start) for box in boxes}) > 1:
        return "differ in their number of dimensions"
    shape = tuple(max(ends) for ends in zip(*(box.stop for box in boxes), strict=True))
    bad = untiled(shape, boxes)
    if bad is None or bad.kind == "complex":
        return ""
    words = {"hole": "leave a hole", "overlap": "overlap"}
    return words.get(bad.kind, "differ in their number of dimensions")
