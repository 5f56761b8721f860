"""Quantized weights are read as any others: GPTQ's and AWQ's integers beside their scales, and what bitsandbytes
saves with four bits (its state as JSON in a tensor of bytes). What their config.json says of them is not
compared.

Facts: auto_gptq/nn_modules/qlinear (qweight, qzeros, scales, g_idx); bitsandbytes/functional.py,
QuantState.as_dict(packed=True).
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from safetensors_writer import packed

from ckpt_tools import Verdict, verify

SIZES = {"I32": 4, "F16": 2, "F32": 4, "U8": 1}
STATE = json.dumps({"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [16, 16]})
GPTQ = {"qweight": ("I32", [8, 64]), "qzeros": ("I32", [1, 8]), "scales": ("F16", [1, 64]), "g_idx": ("I32", [64])}  # fmt: skip
FOUR_BITS = {
    "weight": ("U8", [128, 1]),
    "weight.absmax": ("F32", [4]),
    "weight.quant_map": ("F32", [16]),
    "weight.quant_state.bitsandbytes__nf4": ("U8", [len(STATE)]),
}


def saved(tensors: dict[str, tuple[str, list[int]]]) -> bytes:
    sizes = {name: SIZES[dtype] * math.prod(shape) for name, (dtype, shape) in tensors.items()}
    values = {name: bytes(n % 256 for n in range(size)) for name, size in sizes.items()}
    return packed({f"q_proj.{name}": (*tensors[name], values[name]) for name in tensors})


@pytest.mark.parametrize("tensors", [GPTQ, FOUR_BITS], ids=["gptq", "bitsandbytes"])
def test_a_save_of_quantized_weights(tensors: dict[str, tuple[str, list[int]]], tmp_path: Path) -> None:
    config = {"model_type": "llama", "quantization_config": {"quant_method": "gptq", "bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    weights = tmp_path / "model.safetensors"
    for cut, verdict in (0, Verdict.OK), (1, Verdict.BROKEN):
        data = saved(tensors)
        weights.write_bytes(data[: len(data) - cut])
        assert verify([str(tmp_path)], settle=0).verdict is verdict
