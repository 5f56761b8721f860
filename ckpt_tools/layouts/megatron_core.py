"""Megatron-core's distributed checkpoints: ``iter_N/`` with ``metadata.json``, ``.metadata``,
``__R_K.distcp`` and, up to mid-2026, ``common.pt``: since then what it held is ``common_state`` among the
entries of ``.metadata``, and ``metadata.json`` names no ``common_backend``.
The formats ``torch_dcp`` and ``fsdp_dtensor`` are torch's own DCP: ``.metadata`` is written last.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ckpt_tools.layouts.common.arrays import array
from ckpt_tools.layouts.common.counters import borrowed, last_word, named_steps
from ckpt_tools.layouts.common.layout import Beside, Complete, Layout, Metadata, Ranks, Tracker
from ckpt_tools.layouts.common.lost_files import lost
from ckpt_tools.layouts.common.piece import Changes, Piece, nest
from ckpt_tools.layouts.dcp import FORMATS, without_common
from ckpt_tools.layouts.megatron import read_tracker, resume
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.report import Report

_ARRAY = "array"


def _arrays(c: Checkpoint) -> frozenset[str]:
    return frozenset(p.path.removeprefix(f"{c.path}/") for p in c.parts if p.piece.startswith(_ARRAY))


def _lost(c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Flaw]:
    """Arrays of the format ``zarr``, which nothing lists; and the counters of Megatron-Bridge, without which
    its loader asks Megatron-LM's arguments, which it never saved.
    """
    for path in lost(c, beside, _arrays):
        text = f"there is no array {path.removesuffix('/.zarray')!r}, which the run's other checkpoints have"
        yield Flaw("missing-part", text, path=c.path)
    roles = {p.role for p in c.parts}
    if not beside and "run_config" in roles and "train_state" not in roles:
        text = (
            "there is no train_state.pt, which is saved with run_config.yaml and tells how far training was"
        )
        yield Flaw("missing-part", text, path=c.path)


def _iteration(metadata: Metadata) -> int | None:
    return last_word(
        {k: v for k, v in metadata.items() if "args." not in k and "optim" not in k}, ("iteration",)
    )


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    yield from without_common(parts)
    yield from without_metadata(parts)
    yield from named_steps(parts, _iteration, "iteration")
    yield from named_steps(parts, "step", role="train_state")
    yield from borrowed(parts, {"data": ("optimizer_step",), "prefixed": ("optimizer_step",)})


def without_metadata(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    """Saves of ``torch_dist`` whose metadata.json is not there: only its writer keeps a ``common_state``."""
    having = {p.folder.directory for p, _ in parts if p.name == "metadata.json"}
    said = set[str]()
    for part, report in parts:
        home = part.folder.directory
        lost = home not in having and any(key.startswith("common_state/") for key in report.metadata)
        if lost and home not in said:
            said.add(home)
            text = "metadata.json, which is written last, is not there: its loader asks for it"
            yield part.path, Flaw("missing-part", text)


def _pieces() -> Iterator[Piece]:
    plain = Piece("", "", "", FORMATS)
    torch = replace(plain, formats=("torch_zip", "torch_legacy"), unasked=True)
    data, sums = replace(plain, required=False), replace(plain, formats=("mcore_integrity",), loaded=False)
    mark = replace(data, formats=(), changes=Changes.MARK, loaded=False)
    for piece, name, role, file in (
        (replace(plain, formats=("json_member",)), "metadata_json", "metadata", "metadata.json"),
        (plain, "index", "index", ".metadata"),
        (replace(torch, required=False), "common", "common", "common.pt"),
        (data, "data", "model", "__{rank}_{shard}.distcp"),
        (data, "prefixed", "model", "{name}__{rank}_{shard}.distcp"),
        (sums, "integrity", "integrity", "integrity.json"),
        (torch, "train_state", "train_state", "train_state.pt"),
        (mark, "run_config", "run_config", "run_config.yaml"),
        (torch, "dataloader", "dataloader", "train_dataloader_dprank{dp:03d}.pt"),
    ):
        yield replace(piece, name=name, role=role, template=file)
    yield replace(array(_ARRAY, "{name}", sure=False), role="index")


PIECES = tuple(_pieces())
"""The files of a checkpoint in its directory."""
LAYOUT = Layout(
    name="megatron-core",
    title="Megatron-core distributed checkpoint",
    pieces=(
        *nest("iter_{step:07d}", PIECES),
        *nest("release", PIECES, "_release", kind=Kind.RELEASE),
    ),
    resume=resume,
    check=_check,
    lost=_lost,
    beside=Beside(written=re.compile(".*")),  # zarr.create(…, write_empty_chunks=True)
    tracker=Tracker(
        file="latest_checkpointed_iteration.txt", read=read_tracker, state_copy="latest_train_state.pt"
    ),
    ranks=Ranks(told_by="common"),
    complete=Complete(commit="metadata", commit_beside=("common",), commit_alone="index", needs=("index",)),
    reshardable=True,
    reference=(
        "Megatron-LM megatron/core/dist_checkpointing/serialization.py save(), strategies/{torch,zarr}.py; "
        "metadata.json is written last; Megatron-Bridge src/megatron/bridge/training/checkpointing.py "
        "(train_state.pt, latest_train_state.pt and run_config.yaml after it)"
    ),
    limits=(
        "of Megatron-Bridge's trackers 'ckpt repair --tracker' writes the text alone, which Bridge asks last",
        (
            "a data file of another iteration with the same sizes is seen through integrity.json, or while "
            "that iteration is there"
        ),
    ),
)
