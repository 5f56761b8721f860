"""Checkpoint files of no known arrangement: each file in a directory that nothing else explains is a checkpoint of its own."""

from __future__ import annotations

from ckpt_tools.layouts._agree import first
from ckpt_tools.layouts._base import Layout, Metadata, Piece, Steps
from ckpt_tools.model import Checkpoint, Part, Resume

TORCH = ("torch_zip", "torch_legacy", "torch_tar")


def _steps(part: Part, metadata: Metadata) -> Steps:
    return first(metadata, ("global_step", "step", "iteration", "step_num")), first(metadata, ("epoch", "epoch_num")), None


def _resume(checkpoint: Checkpoint, path: str | None) -> Resume:
    return Resume(path)


LAYOUT = Layout(
    name="files",
    title="Files of no known arrangement",
    pieces=(
        Piece("torch", "model", "{name}.<pt|pth|pth.tar|bin>", TORCH, shared=True, weak=True),
        Piece("ckpt", "model", "{name}.ckpt", (*TORCH, "mindspore_ckpt"), shared=True, step_from="content", weak=True),
        Piece("safetensors", "model", "{name}.safetensors", ("safetensors",), shared=True, weak=True),
    ),
    resume=_resume,
    steps=_steps,
    reshardable=True,
    compare_steps=False,
    last_resort=True,
    reference="the files' own formats; the sample that this replaces sorts them by modification time and tries the newest five",
    limits=("files are candidates by modification time, one by one: a model and an optimizer in two files are not joined",),
)
