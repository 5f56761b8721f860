"""Megatron-LM's legacy (torch.save) checkpoints, with the Ascend per-rank variant that dying jobs write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpt_tools.findings import finding
from ckpt_tools.layouts.common.layout import Layout, Piece, whole
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.report import Report

FORMATS = ("torch_zip", "torch_legacy")
MODEL = ("dp", "cp")
MP = "mp_rank_{tp:02d}[_{pp:03d}][_{ep:03d}]"


def _pieces(home: str, kind: Kind, mark: str) -> Iterator[Piece]:
    yield Piece(
        f"model{mark}", "model", f"{home}/{MP}/model_optim_rng.pt", FORMATS, kind, MODEL, unasked=True
    )
    yield Piece(
        f"distrib_optim{mark}",
        "optimizer",
        f"{home}/{MP}/distrib_optim.pt",
        FORMATS,
        kind,
        MODEL,
        sharded=True,
        unasked=True,
    )
    yield Piece(f"model_rng{mark}", "model", f"{home}/{MP}/model_rng.pt", FORMATS, kind, MODEL, unasked=True)
    yield Piece(
        f"optim{mark}",
        "optimizer",
        f"{home}/mp_rank_{{tp:02d}}[_{{pp:03d}}]_{{dp:03d}}/optim.pt",
        FORMATS,
        kind,
        sharded=True,
        unasked=True,
    )
    yield Piece(
        f"layer_wise{mark}",
        "optimizer",
        f"{home}/{MP}/layer_wise_optimizer_{{dp}}.pt",
        FORMATS,
        kind,
        sharded=True,
        unasked=True,
    )
    yield Piece(
        f"model_rank{mark}",
        "model",
        f"{home}/{MP}/model_optim_rng_{{rank}}.pt",
        FORMATS,
        kind,
        MODEL,
        everyone_saves=True,
        unasked=True,
    )
    yield Piece(
        f"distrib_optim_rank{mark}",
        "optimizer",
        f"{home}/{MP}/distrib_optim_{{rank}}.pt",
        FORMATS,
        kind,
        sharded=True,
        everyone_saves=True,
        unasked=True,
    )


def read_tracker(data: bytes) -> int | str | None:
    """Megatron-LM's ``latest_checkpointed_iteration.txt``: a number, or the word release."""
    text = data.strip()  # Megatron strips as well, so a newline is harmless
    if text == b"release":
        return "release"
    return int(text) if text.isdigit() and len(text) <= 18 else None


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Finding]]:
    for part, report in parts:
        m = report.metadata
        for key in ("iteration", "args.iteration"):
            said = whole(m.get(key))
            # args.iteration is what the job started from in some versions; only the file's own 'iteration' must agree
            if (
                said is not None
                and part.step is not None
                and said != part.step
                and (key == "iteration" or "iteration" not in m)
            ):
                yield (
                    part.path,
                    finding(
                        "step-mismatch",
                        f"the directory says iteration {part.step}, the file says {said} ({key})",
                    ),
                )
                break


def resume(checkpoint: Checkpoint, path: str | None) -> Resume:
    """Megatron-LM's arguments: the directory above the iterations, and the iteration."""
    base = checkpoint.parts[0].base
    if checkpoint.kind is Kind.RELEASE:
        return Resume(base, ("--load", base))  # Megatron finds release/ through its tracker
    return Resume(base, ("--load", base, "--ckpt-step", str(checkpoint.step)))


LAYOUT = Layout(
    name="megatron",
    title="Megatron-LM legacy",
    pieces=(*_pieces("iter_{step:07d}", Kind.PERIODIC, ""), *_pieces("release", Kind.RELEASE, "_release")),
    resume=resume,
    check=_check,
    tracker="latest_checkpointed_iteration.txt",
    read_tracker=read_tracker,
    reference="Megatron-LM megatron/training/checkpointing.py get_checkpoint_name(), read_metadata(); Ascend ModelLink per-rank names",
    limits=(
        "mp_rank_00_001 is pipeline stage 1 or expert 1: the file's own args decide",
        "optim.pt carries no iteration of its own, so a swapped one shows only in its tensors",
    ),
)
