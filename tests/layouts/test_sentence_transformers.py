"""A model in modules: sentence-transformers builds it from modules.json and a configuration for each."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fixture_trees import materialise
from places import LAYOUT_TREES
from safetensors.numpy import save

from ckpt_tools.api import plan

FILES = ("modules.json", "1_Pooling/config.json", "2_Dense/config.json")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    import numpy as np

    root = materialise(LAYOUT_TREES / "hf-trainer" / "trainer" / "expected.json", tmp_path)
    for home in root.glob("checkpoint-*"):
        step = int(home.name.partition("-")[2])
        for name in FILES:
            (home / name).parent.mkdir(exist_ok=True)
            (home / name).write_text('{"in_features": 16}')
        weights = save({"linear.weight": np.full((4, 4), step, np.float32)})
        (home / "2_Dense" / "model.safetensors").write_bytes(weights)
        saved = (home / "trainer_state.json").stat().st_mtime_ns
        for path in (*home.rglob("*"), home):
            os.utime(path, ns=(saved, saved))
    return root


@pytest.mark.slow
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_each_configuration_is_needed(name: str, cut: bool, root: Path) -> None:
    made = plan(str(root))
    assert made.checkpoint is not None
    newest = Path(made.checkpoint.path)
    path = newest / name
    path.write_text('{"in_fea') if cut else path.unlink()
    made = plan(str(root))
    assert [Path(r.checkpoint.path) for r in made.rejected] == [newest]
    assert {f.code for r in made.rejected for f in r.findings} == {"truncated" if cut else "missing-part"}
