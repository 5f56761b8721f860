"""ONNX models: ``model.onnx``, and ``model.onnx.data`` or other files beside it that hold its tensors."""

from __future__ import annotations

from ckpt_tools.layouts.common.layout import Layout, resume_file
from ckpt_tools.layouts.common.piece import Claim, Piece
from ckpt_tools.model.part import Kind

LAYOUT = Layout(
    name="onnx",
    title="ONNX models",
    pieces=(
        Piece("model", "model", "{prefix}.onnx", ("onnx",), kind=Kind.RELEASE),
        Piece(
            "data",
            "data",
            "{prefix}.onnx<.data|_data>",
            kind=Kind.RELEASE,
            claim=Claim.DESCRIBED,
            loaded=False,
        ),
    ),
    resume=resume_file,
    reshardable=True,
    reference="onnx 1.23: onnx/external_data_helper.py; torch.onnx.export (.onnx.data), optimum (.onnx_data)",
    limits=("an export: it holds no optimizer, and nothing tells the step at which it was made",),
)
