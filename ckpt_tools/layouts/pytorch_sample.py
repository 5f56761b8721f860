"""The PyTorch ImageNet sample: every node's first rank saves ``rank_R/checkpoint.pth.tar`` and copies it to ``model_best.pth.tar``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpt_tools.findings import finding
from ckpt_tools.layouts.common.layout import Layout, Metadata, Piece, Steps, whole
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.report import Report

FORMATS = ("torch_zip", "torch_legacy")


def _steps(part: Part, metadata: Metadata) -> Steps:
    step = next(
        (s for s in (whole(metadata.get(k)) for k in ("global_step", "step", "iteration")) if s is not None),
        None,
    )
    return step, whole(metadata.get("epoch")), None


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Finding]]:
    """All nodes save after the same epoch, and ``model_best`` is a copy: a file that is behind the others, or a best ahead of its origin, is not theirs."""
    epochs = {
        part.path: epoch
        for part, report in parts
        if (epoch := whole(report.metadata.get("epoch"))) is not None
    }
    for piece in ("checkpoint", "model_best"):
        same = [p for p, _ in parts if p.piece == piece and p.path in epochs]
        newest = max((epochs[p.path] for p in same), default=0)
        for p in same:
            if epochs[p.path] != newest:
                yield (
                    p.path,
                    finding(
                        "epoch-mismatch",
                        f"it holds epoch {epochs[p.path]}, another rank's {newest}",
                        severity=Severity.WARNING,
                    ),
                )
    origin = {p.rank: epochs[p.path] for p, _ in parts if p.piece == "checkpoint" and p.path in epochs}
    for p, _ in parts:
        if p.piece == "model_best" and epochs.get(p.path, 0) > origin.get(p.rank, 1 << 60):
            yield (
                p.path,
                finding(
                    "epoch-mismatch",
                    f"the best is of epoch {epochs[p.path]}, the checkpoint beside it of {origin[p.rank]}",
                    severity=Severity.WARNING,
                ),
            )


def _resume(checkpoint: Checkpoint, path: str | None) -> Resume:
    return Resume(path, ("--resume", path) if path else ())


LAYOUT = Layout(
    name="pytorch-sample",
    title="PyTorch data-parallel sample",
    pieces=(
        Piece(
            "checkpoint",
            "model",
            "rank_{rank}/checkpoint.pth.tar",
            FORMATS,
            replicated_over=("dp",),
            step_from="content",
        ),
        Piece(
            "model_best",
            "model",
            "rank_{rank}/model_best.pth.tar",
            FORMATS,
            kind=Kind.BEST,
            replicated_over=("dp",),
            step_from="content",
        ),
    ),
    resume=_resume,
    steps=_steps,
    check=_check,
    epoch_base=1,  # main.py saves 'epoch': epoch + 1, so the number counts finished epochs
    compare_steps=False,  # the names say no step, so siblings of one rank are not comparable in order
    reference="pytorch/examples imagenet/main.py save_checkpoint(): torch.save then shutil.copyfile; 'epoch' is epoch + 1",
    limits=(
        "names tell no epoch: it is read from each file before grouping",
        "the sample saves in place: a crash while saving leaves a truncated file and no older one of the same name",
    ),
)
