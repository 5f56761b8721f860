"""A save of a model alone is none to train on, whatever its name and wherever it lies among the others."""

from __future__ import annotations

import pickle
import shutil
import struct
from pathlib import Path

import pytest
from fixture_trees import materialise
from mindspore_writer import record
from places import LAYOUT_TREES
from timed import put

from ckpt_tools.api import plan, verify
from ckpt_tools.errors import NoneUsable, UsageError
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.part import Kind
from ckpt_tools.model.selection import Selection


def test_splits_of_two_models_are_told_apart(tmp_path: Path) -> None:
    root = materialise(LAYOUT_TREES / "gguf/splits/expected.json", tmp_path)
    last = root / "llama-00003-of-00003.gguf"
    said = b"split.tensors.count"
    data = bytearray(last.read_bytes())
    data[data.index(said) + len(said) + 4] += 3  # behind the type of the value
    last.write_bytes(data)
    assert "missing-tensor" in {f.code for file in verify([str(root)]).files for f in file.report.findings}
    with pytest.raises(NoneUsable):
        plan(str(root))


@pytest.mark.slow
@pytest.mark.parametrize("case", ["hf-trainer/trainer", "megatron/tp"])
def test_an_export_beside_training_is_no_run_of_its_own(case: str, tmp_path: Path) -> None:
    root = materialise(LAYOUT_TREES / case / "expected.json", tmp_path)
    without = plan(str(root))
    shutil.copy(LAYOUT_TREES / "gguf/whole/tree/llama-q8_0.gguf", root)
    beside = plan(str(root))
    assert (beside.resume, beside.shared, beside.by_rank) == (without.resume, without.shared, without.by_rank)
    assert beside.rejected == without.rejected
    exported = plan(str(root), Selection(layout="gguf"))
    assert exported.checkpoint is not None and exported.checkpoint.kind is Kind.RELEASE
    for file in root.rglob("*"):
        if file.is_file() and file.suffix != ".gguf":
            file.write_bytes(file.read_bytes()[:40])
    with pytest.raises((NoneUsable, UsageError)):
        plan(str(root))


def test_arguments_that_paddlenlp_pickles_beside_its_export_are_no_damage(tmp_path: Path) -> None:
    """Its Trainer saves them without torch, under the name that Transformers gives them."""
    (tmp_path / "training_args.bin").write_bytes(pickle.dumps({"output_dir": "out"}))
    assert verify([str(tmp_path)]).verdict is Verdict.OK


def mindspore(step: int | None, *, moments: bool) -> bytes:
    rows = [record("w", [4], "Float32", struct.pack("<4f", *range(4)))]
    rows += [record("moments.w", [4], "Float32", struct.pack("<4f", *range(4)))] if moments else []
    rows += [record("global_step", [1], "Int32", struct.pack("<i", step))] if step is not None else []
    return b"".join(rows)


@pytest.mark.parametrize("first", [True, False], ids=["with moments", "without"])
def test_what_counts_steps_is_no_export_though_it_has_no_moments(first: bool, tmp_path: Path) -> None:
    """The newest of MindSpore's saves by names of one's own: an older one is not taken for want of moments."""
    for n, (name, data) in enumerate(
        {"a.ckpt": mindspore(10, moments=first), "b.ckpt": mindspore(20, moments=False)}.items()
    ):
        put(tmp_path / name, data, 1_700_000_000 + 600 * n)
    made = plan(str(tmp_path))
    assert made.resume_step == 20


def test_weights_without_counters_are_an_export_though_no_save_has_moments(tmp_path: Path) -> None:
    for n, (name, step) in enumerate({"a.ckpt": 10, "b.ckpt": None}.items()):
        put(tmp_path / name, mindspore(step, moments=False), 1_700_000_000 + 600 * n)
    assert plan(str(tmp_path)).resume_step == 10
