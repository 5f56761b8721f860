"""A save with no other one beside it that has lost a file: what is left of it often shows that."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fixture_trees import CASES, materialise

from ckpt_tools.api import plan, scan
from ckpt_tools.errors import CkptError

SHOWN = {
    "colossalai/booster": ["pytorch_model.bin.index.json", "pytorch_optim.bin.index.json"],
    "fairseq2/sharded": [
        "model/*/sdp_00.pt",
        "model/*/sdp_01.pt",
        "optimizer/*/sdp_01.pt",
        "rank_01.pt",
        "dp_01.pt",
    ],
    "hf-trainer/sharded": ["model.safetensors.index.json"],
    "hf-trainer/paddlenlp-unified": ["model.safetensors.index.json", "optimizer.safetensors.index.json"],
    "megatron/layer_wise": ["model_optim_rng.pt"],
    "openrlhf/ppo": ["_critic/*/mp_rank_00_model_states.pt", "_actor/*/mp_rank_00_model_states.pt"],
}
"""Fixture -> files of its newest save, each of which others of that save show to have been there."""


def alone(root: Path) -> list[Path]:
    """The files of the newest save, of which nothing else is left."""
    chosen = plan(str(root)).checkpoint
    assert chosen is not None
    kept = {p.path for p in chosen.parts}
    for c in scan(str(root)).checkpoints:
        for p in c.parts:
            if p.path not in kept and os.path.lexists(p.path):
                os.unlink(p.path)
    return [Path(path) for path in sorted(kept)]


@pytest.mark.parametrize(("name", "pattern"), [(name, p) for name, ps in SHOWN.items() for p in ps])
def test_a_file_that_the_others_show_is_missed(name: str, pattern: str, tmp_path: Path) -> None:
    case = next(case for case in CASES if "/".join(case.parts[-3:-1]) == name)
    root = materialise(case, tmp_path)
    files = alone(root)
    assert plan(str(root)).checkpoint is not None
    lost = [path for path in files if path.match(pattern) or path.match(f"*/{pattern.replace('*', '*/*')}")]
    assert lost, files
    lost[0].unlink()
    with pytest.raises(CkptError, match="missing"):
        plan(str(root))
