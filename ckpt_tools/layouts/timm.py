"""What timm saves: ``checkpoint-E.pth.tar`` of the best epochs, counted from 0, ``last.pth.tar``,
``model_best.pth.tar``, and ``recovery-E-B.pth.tar`` after B batches of epoch E.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from msgspec.structs import replace

from ckpt_tools.layouts.common.counters import named_epochs
from ckpt_tools.layouts.common.layout import Counting, Layout, Metadata, Steps, whole
from ckpt_tools.layouts.common.piece import Piece
from ckpt_tools.layouts.common.whole_files import proven
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Resume


def _epoch(metadata: Metadata) -> int | None:
    return whole(metadata.get("epoch"))


def _steps(part: Part, metadata: Metadata) -> Steps:
    return None, _epoch(metadata) if part.epoch is None else part.epoch, part.step_in_epoch


def _resume(checkpoint: Checkpoint, path: str | None) -> Resume:
    path = path or checkpoint.path
    return Resume(path, ("--resume", path))


def _pieces() -> Iterator[Piece]:
    saved = proven("version")
    yield replace(saved, name="epoch", template="checkpoint-{epoch}.pth.tar")
    yield replace(saved, name="last", template="last.pth.tar")
    yield replace(saved, name="recovery", template="recovery-{epoch}-{step_in_epoch}.pth.tar")
    yield replace(saved, name="best", template="model_best.pth.tar", kind=Kind.BEST)


LAYOUT = Layout(
    name="timm",
    title="timm",
    pieces=tuple(_pieces()),
    resume=_resume,
    steps=_steps,
    check=partial(named_epochs, read=_epoch, what="epoch"),
    counting=Counting(first_epoch=0),
    reshardable=True,
    reference="timm 1.0.31: utils/checkpoint_saver.py, models/_helpers.py resume_checkpoint()",
    limits=(
        "timm goes on with epoch E + 1 after recovery-E-B.pth.tar: the rest of epoch E is left out",
        "last.pth.tar and a checkpoint-E.pth.tar of its epoch are copies: a whole one stands in for it",
    ),
)
