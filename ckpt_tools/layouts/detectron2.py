"""Detectron2 (fvcore's PeriodicCheckpointer): ``model_0000499.pth``, ``model_final.pth``,
and ``last_checkpoint`` with the name of the newest.
"""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from ckpt_tools.layouts.common.counters import named_steps
from ckpt_tools.layouts.common.layout import Layout, Metadata, Steps, Tracker, resume_file, whole
from ckpt_tools.layouts.common.whole_files import proven
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.part import Part

_SAVED = replace(proven("iteration"), name="model", template="model_{step:07d}.pth")


def read_tracker(data: bytes) -> str | None:
    """The name of the file that ``last_checkpoint`` names, whose path may be that of another machine."""
    name = data.decode("utf-8", "surrogateescape").strip().rpartition("/")[2]
    return name if name.endswith(".pth") and name.isprintable() else None


def file_name(checkpoint: Checkpoint) -> str:
    """What ``last_checkpoint`` holds: of two files of one step the later, ``model_final.pth``; MMEngine's
    DeepSpeed makes ``iter_N.pth`` a directory.
    """
    part = max(checkpoint.parts, key=lambda p: p.piece == "final")
    return (part.home if part.home.endswith(".pth") else part.path).rpartition("/")[2]


def _iteration(metadata: Metadata) -> int | None:
    return whole(metadata.get("iteration"))


def _steps(part: Part, metadata: Metadata) -> Steps:
    return _iteration(metadata) if part.step is None else part.step, part.epoch, None


LAYOUT = Layout(
    name="detectron2",
    title="Detectron2",
    pieces=(_SAVED, replace(_SAVED, name="final", template="model_final.pth")),
    resume=resume_file,  # checkpointer.load(path)
    steps=_steps,
    check=partial(named_steps, read=_iteration, what="iteration"),
    tracker=Tracker(file="last_checkpoint", read=read_tracker, name=file_name),
    reshardable=True,
    reference=(
        "fvcore/common/checkpoint.py PeriodicCheckpointer.step(), Checkpointer.tag_last_checkpoint(); "
        "iterations count from 0, so model_0000499.pth is written after 500 of them"
    ),
    limits=(
        "resume_or_load(resume=True) follows last_checkpoint, and not the plan: load the planned path",
        "model_final.pth is a whole training state where it holds its iteration",
    ),
)
