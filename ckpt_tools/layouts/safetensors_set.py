"""A sharded model: ``model-0000i-of-0000n.safetensors`` (or ``pytorch_model-….bin``) with ``model.safetensors.index.json``, the whole directory one checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpt_tools.findings import finding
from ckpt_tools.layouts.common.layout import Layout, Piece
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.report import Report

_HOUR_NS = 3_600_000_000_000


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Finding]]:
    """Shards that count differently, and an index that was written long after the files it names."""
    shards = [p for p, _ in parts if p.role == "model"]
    totals = {dict(p.coords)["of"] for p in shards}
    index = next((p for p, _ in parts if p.role == "index"), None)
    for p in shards:
        at, of = dict(p.coords)["shard"], dict(p.coords)["of"]
        if not 1 <= at <= of:
            yield p.path, finding("extra-file", f"it is shard {at} of {of}")
    if index and len(totals) > 1:
        for p in shards:
            of = dict(p.coords)["of"]
            if sum(dict(other.coords)["of"] == of for other in shards) < of:
                yield (
                    p.path,
                    finding(
                        "extra-file", f"it is of a set of {of} that is not all there, beside a whole one"
                    ),
                )
    if index is None and len(totals) > 1:
        text = f"shards of sets of {' and '.join(str(n) for n in sorted(totals))} lie beside each other, and no index says which belong together"
        yield shards[0].path, finding("missing-part", text)
    if index and shards and index.mtime_ns > max(p.mtime_ns for p in shards) + _HOUR_NS:
        text = "it was written more than an hour after the newest of its shards"
        yield index.path, finding("newer-index", text, severity=Severity.NOTE)


def _resume(checkpoint: Checkpoint, path: str | None) -> Resume:
    return Resume(checkpoint.path)  # from_pretrained(path)


def _pieces() -> Iterator[Piece]:
    for suffix, formats, mark in (
        ("safetensors", ("safetensors",), ""),
        ("bin", ("torch_zip", "torch_legacy"), "_bin"),
    ):
        yield Piece(
            f"index{mark}",
            "index",
            f"{{prefix}}.{suffix}.index.json",
            ("safetensors_index",),
            shared=True,
            here=True,
        )
        yield Piece(
            f"shard{mark}",
            "model",
            f"{{prefix}}-{{shard:05d}}-of-{{of:05d}}.{suffix}",
            formats,
            shared=True,
            here=True,
        )


LAYOUT = Layout(
    name="sharded-safetensors",
    title="Sharded safetensors or torch model",
    pieces=tuple(_pieces()),
    resume=_resume,
    check=_check,
    needs=("index",),
    reshardable=True,
    compare_steps=False,
    reference="huggingface_hub serialization: save_torch_state_dict writes the shards, then the index",
    limits=("nothing tells the step, and nothing but the index tells which shards belong together",),
)
