"""Quantized weights are read as any others: GPTQ's and AWQ's integers beside their scales, and what bitsandbytes
saves with four bits (its state as JSON in a tensor of bytes). What their config.json says of them is not
compared.

Facts: auto_gptq/nn_modules/qlinear (qweight, qzeros, scales, g_idx); bitsandbytes/functional.py,
QuantState.as_dict(packed=True).
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
from safetensors_writer import packed

from ckpt_tools import NoneUsable, Verdict, plan, verify

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
    made = {}
    for name, (dtype, shape) in tensors.items():
        values = bytes(n % 256 for n in range(SIZES[dtype] * math.prod(shape)))
        made[f"model.layers.0.q_proj.{name}"] = (dtype, shape, values)
    return packed(made)


@pytest.mark.parametrize("tensors", [GPTQ, FOUR_BITS], ids=["gptq", "bitsandbytes"])
def test_a_save_of_quantized_weights(tensors: dict[str, tuple[str, list[int]]], tmp_path: Path) -> None:
    config = {"model_type": "llama", "quantization_config": {"quant_method": "gptq", "bits": 4}}
    for step, end in ((10, b"\1"), (20, b"")):
        home = tmp_path / f"checkpoint-{step}"
        home.mkdir()
        whole = saved(tensors)
        (home / "model.safetensors").write_bytes(whole[: len(whole) - len(end)] + end)
        (home / "config.json").write_text(json.dumps(config))
        for path in home.iterdir():
            os.utime(path, (1_700_000_000 + step,) * 2)
    assert verify([str(tmp_path)]).verdict is Verdict.OK
    newest = tmp_path / "checkpoint-20/model.safetensors"
    assert [f.path for f in plan(str(tmp_path)).shared][:1] == [str(newest)]
    os.truncate(newest, newest.stat().st_size - 1)
    os.utime(newest, (1_700_000_020,) * 2)
    made = plan(str(tmp_path))
    assert made.checkpoint and made.checkpoint.step == 10 and made.rejected
    (tmp_path / "checkpoint-10/model.safetensors").unlink()
    with pytest.raises(NoneUsable):
        plan(str(tmp_path))
