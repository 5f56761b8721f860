"""MMEngine and MMCV: ``iter_N.pth``, ``epoch_E.pth``, and ``last_checkpoint`` with the path of the newest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ckpt_tools.layouts.common.counters import named_epochs, named_steps
from ckpt_tools.layouts.common.layout import Counting, Layout, Metadata, Steps, Tracker, whole
from ckpt_tools.layouts.common.piece import Piece
from ckpt_tools.layouts.common.whole_files import proven
from ckpt_tools.layouts.detectron2 import file_name, read_tracker
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.report import Report


def _iter(metadata: Metadata) -> int | None:
    return whole(metadata.get("meta.iter"))


def _epoch(metadata: Metadata) -> int | None:
    return whole(metadata.get("meta.epoch"))


def _steps(part: Part, metadata: Metadata) -> Steps:
    """By what the name counts: a damaged epoch_E.pth tells no step, and would come before all that do."""
    if part.epoch is not None:
        return part.step, part.epoch, None
    return _iter(metadata) if part.step is None else part.step, _epoch(metadata), None


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    yield from named_steps(parts, _iter, "meta.iter")
    yield from named_epochs(parts, _epoch, "meta.epoch")


def _resume(checkpoint: Checkpoint, path: str | None) -> Resume:
    path = path or checkpoint.path
    return Resume(path, ("--resume", path))


def _pieces() -> Iterator[Piece]:
    saved = proven("meta.iter", unasked=True)
    yield replace(saved, name="iter", template="iter_{step}.pth")
    yield replace(saved, name="epoch", template="epoch_{epoch}.pth")
    yield replace(saved, name="best_iter", template="best_{name}_iter_{step}.pth", kind=Kind.BEST)
    yield replace(saved, name="best_epoch", template="best_{name}_epoch_{epoch}.pth", kind=Kind.BEST)


LAYOUT = Layout(
    name="mmengine",
    title="MMEngine",
    pieces=tuple(_pieces()),
    resume=_resume,
    steps=_steps,
    check=_check,
    # CheckpointHook(save_last=False), and MMCV links latest.pth instead
    tracker=Tracker(file="last_checkpoint", read=read_tracker, name=file_name, always=False),
    counting=Counting(first_epoch=1),  # epoch_E.pth is written after epoch E
    reshardable=True,
    reference=(
        "mmengine/hooks/checkpoint_hook.py _save_checkpoint_with_step(), runner/runner.py save_checkpoint(); "
        "tools/train.py --resume of OpenMMLab's projects"
    ),
    limits=(
        "of epoch_E.pth the epoch is told, and not the step",
        "names of other file_name or filename_tmpl are files of no known arrangement",
        "--resume without a path, or auto, follows last_checkpoint, and not the plan",
    ),
)
