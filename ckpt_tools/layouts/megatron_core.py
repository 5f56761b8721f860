"""Megatron-core's distributed checkpoints: ``iter_N/`` with ``metadata.json``, ``.metadata``,
``__R_K.distcp`` and, up to mid-2026, ``common.pt``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpt_tools.layouts.common.counters import borrowed, last_word, named_steps
from ckpt_tools.layouts.common.layout import Layout, Metadata, Piece
from ckpt_tools.layouts.dcp import FORMATS
from ckpt_tools.layouts.megatron import read_tracker, resume
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.report import Report


def _iteration(metadata: Metadata) -> int | None:
    return last_word(
        {k: v for k, v in metadata.items() if not k.startswith("args.") and "optim" not in k}, ("iteration",)
    )


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Finding]]:
    yield from named_steps(parts, _iteration, "iteration")
    yield from borrowed(parts, {"data": ("optimizer_step",), "prefixed": ("optimizer_step",)})


def _pieces(home: str, kind: Kind, mark: str) -> Iterator[Piece]:
    yield Piece(
        f"metadata_json{mark}", "metadata", f"{home}/metadata.json", ("json_member",), kind, shared=True
    )
    yield Piece(f"index{mark}", "index", f"{home}/.metadata", FORMATS, kind, shared=True)
    yield Piece(
        f"common{mark}",
        "common",
        f"{home}/common.pt",
        ("torch_zip", "torch_legacy"),
        kind,
        shared=True,
        unasked=True,
    )
    yield Piece(
        f"data{mark}",
        "model",
        f"{home}/__{{rank}}_{{shard}}.distcp",
        FORMATS,
        kind,
        shared=True,
        required=False,
    )
    yield Piece(
        f"prefixed{mark}",
        "model",
        f"{home}/{{name}}__{{rank}}_{{shard}}.distcp",
        FORMATS,
        kind,
        shared=True,
        required=False,
    )
    yield Piece(
        f"integrity{mark}",
        "integrity",
        f"{home}/integrity.json",
        ("mcore_integrity",),
        kind,
        shared=True,
        loaded=False,
    )


LAYOUT = Layout(
    name="megatron-core",
    title="Megatron-core distributed checkpoint",
    pieces=(*_pieces("iter_{step:07d}", Kind.PERIODIC, ""), *_pieces("release", Kind.RELEASE, "_release")),
    resume=resume,
    check=_check,
    tracker="latest_checkpointed_iteration.txt",
    read_tracker=read_tracker,
    sized_by="common",
    commit="metadata",
    needs=("index",),
    reshardable=True,
    compare_steps=False,
    reference=(
        "Megatron-LM megatron/core/dist_checkpointing/serialization.py save(), strategies/torch.py; "
        "metadata.json is written last"
    ),
    limits=(
        (
            "a data file of another iteration with the same sizes is seen through integrity.json, or while "
            "that iteration is there"
        ),
    ),
)
