"""ONNX models: ``model.onnx``, and ``model.onnx.data`` or other files beside it that hold its tensors."""

from __future__ import annotations

from ckpt_tools.layouts.common.layout import Layout, Piece
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.part import Kind
from ckpt_tools.model.plan import Resume


def _resume(checkpoint: Checkpoint, path: str | None) -> Resume:
    return Resume(path or checkpoint.path)


LAYOUT = Layout(
    name="onnx",
    title="ONNX models",
    pieces=(
        Piece("model", "model", "{prefix}.onnx", ("onnx",), kind=Kind.RELEASE, shared=True),
        Piece(
            "data",
            "data",
            "{prefix}.onnx<.data|_data>",
            kind=Kind.RELEASE,
            shared=True,
            loaded=False,
            described=True,
        ),
    ),
    resume=_resume,
    reshardable=True,
    compare_steps=False,
    reference="onnx 1.23: onnx/external_data_helper.py; torch.onnx.export (.onnx.data), optimum (.onnx_data)",
    limits=("an export: it holds no optimizer, and nothing tells the step at which it was made",),
)
