"""A save of a model alone is none to train on, whatever its name and wherever it lies among the others."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fixture_trees import below, tree_of
from places import LAYOUT_TREES
from told_trees import verified

from ckpt_tools.api import plan
from ckpt_tools.errors import NoneUsable, UsageError
from ckpt_tools.model.part import Kind
from ckpt_tools.model.selection import Selection


def test_splits_of_two_models_are_told_apart(tmp_path: Path) -> None:
    root, said = tree_of("gguf/splits", tmp_path), b"split.tensors.count"
    last = root / "llama-00003-of-00003.gguf"
    data = bytearray(last.read_bytes())
    data[data.index(said) + len(said) + 4] += 3  # behind the type of the value
    last.write_bytes(data)
    assert verified(root) == "broken missing-tensor"
    with pytest.raises(NoneUsable):
        plan(str(root))


@pytest.mark.slow
@pytest.mark.parametrize("case", ["hf-trainer/trainer", "megatron/tp"])
def test_an_export_beside_training_is_no_run_of_its_own(case: str, tmp_path: Path) -> None:
    root = tree_of(case, tmp_path)
    without = plan(str(root))
    shutil.copy(LAYOUT_TREES / "gguf/whole/tree/llama-q8_0.gguf", root)
    beside = plan(str(root))
    assert (beside.resume, beside.files(), beside.rejected) == (
        without.resume,
        without.files(),
        without.rejected,
    )
    exported = plan(str(root), Selection(layout="gguf"))
    assert exported.checkpoint is not None and exported.checkpoint.kind is Kind.RELEASE
    for file in below(root):
        if file.suffix != ".gguf":
            file.write_bytes(file.read_bytes()[:40])
    with pytest.raises((NoneUsable, UsageError)):
        plan(str(root))
