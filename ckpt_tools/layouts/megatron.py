"""Megatron-LM's legacy (torch.save) checkpoints, with the Ascend per-rank variant that dying jobs write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ckpt_tools.layouts.common.layout import Complete, Layout, Ranks, Tracker, whole
from ckpt_tools.layouts.common.piece import SHARDED, Piece, Readers, Stage, nest
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.report import Report

FORMATS = ("torch_zip", "torch_legacy")
MODEL = Readers(replicated_over=("dp", "cp"))
_ZERO = Readers(sharded=True, replicated_over=("dp", "cp"))
MP = "mp_rank_{tp:02d}[_{pp:03d}][_{ep:03d}]"


def _pieces() -> Iterator[Piece]:
    model = Piece("", "model", "", FORMATS, readers=MODEL, unasked=True)
    optimizer = Piece("", "optimizer", "", FORMATS, readers=SHARDED, unasked=True)
    model_ms, optimizer_ms = (
        replace(piece, formats=("mindspore_ckpt",), unasked=False)
        for piece in (model, replace(optimizer, readers=_ZERO))
    )
    model_rank, optim_rank = replace(MODEL, everyone_saves=True), replace(SHARDED, everyone_saves=True)
    for piece, name, template in (
        (model, "model", f"{MP}/model_optim_rng.pt"),
        (replace(optimizer, readers=_ZERO), "distrib_optim", f"{MP}/distrib_optim.pt"),
        (model, "model_rng", f"{MP}/model_rng.pt"),
        (optimizer, "optim", "mp_rank_{tp:02d}[_{pp:03d}]_{dp:03d}/optim.pt"),
        (optimizer, "layer_wise", f"{MP}/layer_wise_optimizer_{{dp}}.pt"),
        (replace(model, readers=model_rank), "model_rank", f"{MP}/model_optim_rng_{{rank}}.pt"),
        (replace(optimizer, readers=optim_rank), "distrib_optim_rank", f"{MP}/distrib_optim_{{rank}}.pt"),
        (model_ms, "model_ckpt", f"{MP}/model_optim_rng.ckpt"),
        (optimizer_ms, "optim_ckpt", f"{MP}/distrib_optim.ckpt"),
    ):
        yield replace(piece, name=name, template=template)


def read_tracker(data: bytes) -> int | str | None:
    """Megatron-LM's ``latest_checkpointed_iteration.txt``: a number, or the word release."""
    text = data.strip()  # Megatron strips as well, so a newline is harmless
    if text == b"release":
        return "release"
    return int(text) if text.isdigit() and len(text) <= 18 else None


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    """Files of another iteration than their directory says.

    In some versions args.iteration is what the job started from: it counts only where the file has no own
    one.
    """
    for part, report in parts:
        key = "iteration" if "iteration" in report.metadata else "args.iteration"
        said = whole(report.metadata.get(key))
        if said is not None and part.step is not None and said != part.step:
            text = f"the directory says iteration {part.step}, the file says {said} ({key})"
            yield part.path, Flaw("step-mismatch", text)


def resume(checkpoint: Checkpoint, _path: str | None) -> Resume:
    """Megatron-LM's arguments: the directory above the iterations, and the iteration."""
    base = checkpoint.parts[0].base
    if checkpoint.kind is Kind.RELEASE:
        return Resume(base, ("--load", base))  # Megatron finds release/ through its tracker
    return Resume(base, ("--load", base, "--ckpt-step", str(checkpoint.step)))


LAYOUT = Layout(
    name="megatron",
    title="Megatron-LM legacy",
    pieces=(
        *nest("iter_{step:07d}", _pieces()),
        *nest("iter_{step:07d}_tmp", _pieces(), "_gasp", kind=Kind.DYING_GASP, stage=Stage.UNDER_WAY),
        *nest("release", _pieces(), "_release", kind=Kind.RELEASE),
    ),
    resume=resume,
    ranks=Ranks(own_files=True),
    complete=Complete(
        needs=("model",),
        one_of=(
            ("model", "model_rng"),
            ("distrib_optim", "optim", "layer_wise"),
            ("model_rank", "distrib_optim"),  # which is called after its rank, too, where the model is
            ("model_rank", "optim"),
        ),
    ),
    tracker=Tracker(file="latest_checkpointed_iteration.txt", read=read_tracker),
    check=_check,
    reference=(
        "Megatron-LM megatron/training/checkpointing.py get_checkpoint_name(), read_metadata(); Ascend "
        "ModelLink per-rank names; MindIO's adaptor tft_dump.py get_checkpoint_name(), tft_rename_callback();"
        " MindSpeed-Core-MS tools/converter (.ckpt)"
    ),
    limits=(
        "mp_rank_00_001 is pipeline stage 1 or expert 1: the file's own args decide",
        "optim.pt carries no iteration of its own, so a swapped one shows only in its tensors",
    ),
)
