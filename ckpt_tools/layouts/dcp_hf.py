"""Distributed Checkpoint written as Hugging Face shards:
``step-N/shard-RRRRR-model-….safetensors``, one set per rank and no index.
"""

from __future__ import annotations

from ckpt_tools.layouts.common.layout import Layout, Piece
from ckpt_tools.layouts.common.lost_files import lost_shards
from ckpt_tools.layouts.dcp import NUMBERED
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.plan import Resume


def _resume(checkpoint: Checkpoint, _path: str | None) -> Resume:
    return Resume(checkpoint.path)  # torch.distributed.checkpoint.HuggingFaceStorageReader(path)


_SHARD = "shard-{node:05d}-{name}-{shard:05d}-of-{of:05d}.safetensors"
LAYOUT = Layout(
    name="dcp-hf",
    title="PyTorch Distributed Checkpoint as safetensors",
    pieces=(
        *(
            Piece(f"shard{mark}", "model", f"{home}/{_SHARD}", ("safetensors",), shared=True)
            for home, mark in NUMBERED
        ),
        Piece("shard_any", "model", _SHARD, ("safetensors",), shared=True, here=True),
    ),
    resume=_resume,
    lost=lost_shards,
    reshardable=True,
    compare_steps=False,
    models_alone=True,
    reference="torch/distributed/checkpoint/hf_storage.py HuggingFaceStorageWriter",
    limits=(
        "there is no index: a lost shard shows by a gap in a tensor, or where the saves beside it have one",
    ),
)
