"""What ms-swift saves with Megatron: ``checkpoint-N/iter_000000N/`` as Megatron-core saves it, the tracker in
``checkpoint-N/``, and beside it the model as it is exported; ``checkpoint-N-merged/`` with LoRA.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ckpt_tools.layouts import megatron_core
from ckpt_tools.layouts.common.counters import named_steps
from ckpt_tools.layouts.common.layout import Complete, Layout, Metadata, resume_directory, whole
from ckpt_tools.layouts.common.piece import Claim, Piece, nest
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw, Severity, Verdict
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.report import Report

_HOME = "checkpoint-{step}"
_TRACKER = "latest_checkpointed_iteration.txt"


def _lost(c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Flaw]:
    """The indexes, unless only the model was saved: what all ranks share is there then, and an export."""
    roles = {p.role for p in c.parts}
    alone = "export" in roles and roles <= {"export", "common", "tracker"}
    if c.kind is not Kind.PERIODIC or alone:
        return
    for role, name in (("index", ".metadata"), ("metadata", "metadata.json")):
        if role not in roles and (role == "index" or "common" in roles):  # Megatron-FSDP saves neither
            yield Flaw("missing-part", f"there is no {name}: it was never finished, or lost it", path=c.path)
    yield from megatron_core.LAYOUT.lost(c, beside)


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    """Also that the tracker names the directory beside it, which is the only one that is asked for."""
    yield from megatron_core.LAYOUT.check(parts)
    trackers = [row for row in parts if row[0].role == "tracker"]
    yield from named_steps(trackers, _told, "the iteration in it")
    for p, r in trackers:
        named = _told(r.metadata) is not None or r.metadata.get("value") == "release"
        if not named and r.verdict is not Verdict.BROKEN:
            text = "it holds neither a number nor 'release': nothing is loaded by it"
            yield p.path, Flaw("bad-tracker", text, severity=Severity.ERROR)


def _told(metadata: Metadata) -> int | None:
    return whole(metadata.get("value"))


_EXPORT = Piece("", "export", "", required=False, loaded=False)
_SHARD, _INDEX = "model-{shard:05d}-of-{of:05d}.safetensors", "model.safetensors.index.json"
_BESIDE = (
    # the tracker, which all that is loaded goes by
    Piece("tracker", "tracker", _TRACKER, ("text_member",)),
    replace(_EXPORT, name="model", template="<model|adapter_model>.safetensors", formats=("safetensors",)),
    replace(_EXPORT, name="shard", template=_SHARD, formats=("safetensors",)),
    replace(_EXPORT, name="model_index", template=_INDEX, formats=("safetensors_index",)),
)


def _pieces() -> Iterator[Piece]:
    for piece in nest(f"{_HOME}/iter_{{step:07d}}", megatron_core.PIECES):
        yield replace(piece, required=piece.required and piece.role in ("index", "model"))
    yield from nest(_HOME, _BESIDE, claim=Claim.INSIDE)
    merged = f"{_HOME}-merged"
    common = Piece("merged", "common", f"{merged}/iter_{{step:07d}}/common.pt", kind=Kind.RELEASE)
    yield replace(common, formats=("torch_zip", "torch_legacy"), unasked=True)
    yield from nest(merged, _BESIDE, "_merged", kind=Kind.RELEASE, claim=Claim.INSIDE)


LAYOUT = Layout(
    name="ms-swift",
    title="ms-swift with Megatron",
    pieces=tuple(_pieces()),
    resume=resume_directory,  # what ``--model`` or, with LoRA, ``--adapters`` names.
    check=_check,
    lost=_lost,
    complete=Complete(commit="tracker"),
    reshardable=True,
    reference=(
        "ms-swift 4.6 swift/megatron/trainers/base.py save_checkpoint, "
        "swift/megatron/utils/megatron_lm_utils.py save_mcore_checkpoint"
    ),
    limits=("the link to the last checkpoint is not asked: it is written after the exports",),
)
