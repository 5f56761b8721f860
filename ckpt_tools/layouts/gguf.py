"""GGUF models of llama.cpp: ``model.gguf``, or ``model-0000i-of-0000n.gguf`` as gguf-split cuts one up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from ckpt_tools.layouts.common.layout import Layout, whole
from ckpt_tools.layouts.common.piece import Piece
from ckpt_tools.model import ranges
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.report import Report

_Split = tuple[Part, Report]


def _check(parts: Sequence[_Split]) -> Iterator[tuple[str, Flaw]]:
    sets = defaultdict[tuple[str, int], list[_Split]](list)
    for part, report in parts:
        coords = dict(part.coords)
        if part.piece == "split":
            sets[part.base, coords["of"]].append((part, report))
            yield from _check_place(part, report, coords["shard"], coords["of"])
    for (_, of), splits in sets.items():
        there = [dict(part.coords)["shard"] for part, _ in splits]
        if missing := ranges.gaps((0, *there), of + 1):
            text = f"of its {of:,} splits these are not there: {ranges.words(missing)}"
            yield splits[0][0].path, Flaw("missing-rank", text)
        else:
            yield from _check_count(splits)


def _check_place(part: Part, report: Report, shard: int, of: int) -> Iterator[tuple[str, Flaw]]:
    """A split that was made as another one than its name says."""
    number, count = (whole(report.metadata.get(f"split.{key}")) for key in ("no", "count"))
    if number is not None and count is not None and (number + 1, count) != (shard, of):
        text = f"it was written as split {number + 1} of {count}"
        yield part.path, Flaw("rank-mismatch", text)


def _check_count(splits: Sequence[_Split]) -> Iterator[tuple[str, Flaw]]:
    """Splits of two models: the tensors of all are as many as each of them says."""
    said = {whole(report.metadata.get("split.tensors.count")) for _, report in splits}
    held = sum(report.tensors for _, report in splits)
    if None not in said and said != {held}:
        numbers = " and ".join(str(n) for n in sorted(n for n in said if n is not None))
        text = f"the {len(splits)} splits hold {held} tensors, and should hold {numbers}: not of one model"
        yield splits[0][0].path, Flaw("missing-tensor", text)


def _resume(checkpoint: Checkpoint, path: str | None) -> Resume:
    return Resume(path or min(part.path for part in checkpoint.parts))  # llama.cpp asks for the first split


LAYOUT = Layout(
    name="gguf",
    title="GGUF models",
    pieces=(
        Piece("split", "model", "{prefix}-{shard:05d}-of-{of:05d}.gguf", ("gguf",), kind=Kind.RELEASE),
        Piece("model", "model", "{prefix}.gguf", ("gguf",), kind=Kind.RELEASE),
    ),
    resume=_resume,
    check=_check,
    reshardable=True,
    reference="llama.cpp: tools/gguf-split; src/llama-model-loader.cpp (llama_split_path)",
    limits=("an export: it holds no optimizer, and nothing tells the step at which it was made",),
)
