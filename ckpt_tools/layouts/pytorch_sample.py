"""The PyTorch ImageNet sample: every node's first rank saves ``rank_R/checkpoint.pth.tar`` and copies it to
``model_best.pth.tar``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ckpt_tools.layouts.common.layout import Compared, Counting, Layout, Metadata, Ranks, Steps, whole
from ckpt_tools.layouts.common.piece import TELLS_STEP, Piece, Readers
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw, Severity
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.report import Report

FORMATS = ("torch_zip", "torch_legacy")


def _steps(_part: Part, metadata: Metadata) -> Steps:
    step = next(
        (s for s in (whole(metadata.get(k)) for k in ("global_step", "step", "iteration")) if s is not None),
        None,
    )
    return step, whole(metadata.get("epoch")), None


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    """All nodes save after the same epoch, and ``model_best`` is a copy.

    A file that is behind the others, or a best ahead of its origin, is not theirs.
    """
    told = [(p, epoch) for p, r in parts if (epoch := whole(r.metadata.get("epoch"))) is not None]
    for piece in ("checkpoint", "model_best"):
        yield from _behind([(p, epoch) for p, epoch in told if p.piece == piece])
    origin = {p.rank: epoch for p, epoch in told if p.piece == "checkpoint"}
    for p, epoch in told:
        if p.piece == "model_best" and p.rank in origin and epoch > origin[p.rank]:
            text = f"the best is of epoch {epoch}, the checkpoint beside it of {origin[p.rank]}"
            yield p.path, Flaw("epoch-mismatch", text, severity=Severity.WARNING)


def _behind(rows: Sequence[tuple[Part, int]]) -> Iterator[tuple[str, Flaw]]:
    """Files of an older epoch than those of other ranks."""
    newest = max((epoch for _, epoch in rows), default=0)
    for p, epoch in rows:
        if epoch != newest:
            text = f"it holds epoch {epoch}, another rank's {newest}"
            yield p.path, Flaw("epoch-mismatch", text, severity=Severity.WARNING)


def _resume(_checkpoint: Checkpoint, path: str | None) -> Resume:
    return Resume(path, ("--resume", path) if path else ())


_COPIED = Readers(replicated_over=("dp",))
_SAVED = Piece("", "model", "", FORMATS, readers=_COPIED, content=TELLS_STEP)
LAYOUT = Layout(
    name="pytorch-sample",
    title="PyTorch data-parallel sample",
    pieces=(
        replace(_SAVED, name="checkpoint", template="rank_{rank}/checkpoint.pth.tar"),
        replace(_SAVED, name="model_best", template="rank_{rank}/model_best.pth.tar", kind=Kind.BEST),
    ),
    resume=_resume,
    ranks=Ranks(own_files=True),  # main.py: torch.load(args.resume), and nothing else
    counting=Counting(
        first_epoch=1
    ),  # main.py saves 'epoch': epoch + 1, so the number counts finished epochs
    compared=Compared.NONE,  # the names say no step, so siblings of one rank are not comparable in order
    steps=_steps,
    check=_check,
    reference=(
        "pytorch/examples imagenet/main.py save_checkpoint(): torch.save then shutil.copyfile; 'epoch' is "
        "epoch + 1"
    ),
    limits=(
        "names tell no epoch: it is read from each file before grouping",
        (
            "the sample saves in place: a crash while saving leaves a truncated file and no older one of the "
            "same name"
        ),
    ),
)
