"""A model's file that is well-formed and holds no weights is damage of that file: it is never loaded without a
word, and what may hold none is left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fixture_trees import overwrite, tree_of
from safetensors.torch import load_file, save
from small_files import saved

from ckpt_tools.api import plan, verify
from ckpt_tools.formats import Anatomy, format_of
from ckpt_tools.formats.common.zeros import find_zeros
from ckpt_tools.layouts import get_active
from ckpt_tools.model.finding import Severity
from ckpt_tools.model.report import Level
from ckpt_tools.planning.lost_files import MODELS, OPTIMIZERS
from ckpt_tools.storage import BytesSource


def found(path: Path) -> dict[str, str]:
    """The codes and texts of the errors about one file, verified with what is beside it."""
    files = verify([str(path.parents[1])]).files
    of_it = [f for file in files if file.report.path == str(path) for f in file.report.findings]
    return {f.code: f.message for f in of_it if f.severity is not Severity.NOTE}


def change(path: Path, to: Callable[[str, torch.Tensor], torch.Tensor]) -> None:
    overwrite(path, save({name: to(name, t) for name, t in load_file(path).items()}), 0)


def zeroed(_name: str, t: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(t)


@pytest.mark.parametrize(
    ("to", "code", "named"),
    [
        (lambda name, t: torch.empty(0) if "q_proj" in name else t, "missing-tensor", "q_proj.lora_A.weight"),
        (zeroed, "zero-filled", "q_proj.lora_B.weight"),
        (lambda name, t: zeroed(name, t) if "v_proj.lora_A" in name else t, "zero-filled", "v_proj.lora_A.weight"),
    ],
    ids=["shape-0", "zeros", "one-of-zeros"],
)  # fmt: skip
def test_weights_that_are_gone_are_named_and_the_save_before_is_taken(
    to: Callable[[str, torch.Tensor], torch.Tensor], code: str, named: str, tmp_path: Path
) -> None:
    root = tree_of("hf-trainer/adapters", tmp_path)
    newest = root / "checkpoint-6/adapter_model.safetensors"
    assert not found(newest)
    change(newest, to)
    assert named in found(newest)[code]
    made = plan(str(root))
    assert made.checkpoint and made.checkpoint.step == 4 and made.rejected[0].checkpoint.step == 6


def test_zeros_that_every_save_has_are_no_damage(tmp_path: Path) -> None:
    root = tree_of("hf-trainer/adapters", tmp_path)
    for path in root.glob("*/adapter_model.safetensors"):
        change(path, zeroed)
    assert not any(found(path) for path in root.glob("*/adapter_model.safetensors"))


def test_an_optimizer_without_a_state_is_missed_where_an_older_save_has_one(tmp_path: Path) -> None:
    root = tree_of("hf-trainer/adapters", tmp_path)
    empty = saved({"state": {}, "param_groups": [{"lr": 0.1, "params": [0]}]})
    paths = [root / f"checkpoint-{step}/optimizer.pt" for step in (2, 4, 6)]
    overwrite(paths[0], empty, 0)  # saved before the first step
    assert not found(paths[0])
    overwrite(paths[2], empty, 0)
    assert "missing-tensor" in found(paths[2])
    overwrite(paths[1], empty, 0)  # an optimizer that keeps none
    assert not any(map(found, paths))


def test_an_export_is_known_by_its_name(tmp_path: Path) -> None:
    root = tree_of("hf-trainer/adapters", tmp_path)
    for path in (root / "adapter_model.bin", tmp_path / "alone/adapter_model.bin"):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(saved({}))
        files = {file.report.path: file.report for file in verify([str(path.parent)]).files}
        assert "missing-tensor" in {f.code for f in files[str(path)].findings}
    made = plan(str(root))
    assert made.checkpoint and made.checkpoint.step == 6


def test_other_tensors_are_named_and_nothing_is_said_of_ranks(tmp_path: Path) -> None:
    root = tree_of("hf-trainer/adapters", tmp_path)
    newest = root / "checkpoint-6/adapter_model.safetensors"
    change(newest, lambda name, t: t[:, :4].contiguous() if "lora_A" in name else t)
    text = found(newest)["signature-changed"]
    assert "of another shape: " in text and "q_proj.lora_A.weight" in text and "lora_B" not in text
    assert "rank" not in text and "checkpoint-2/adapter_model" in text


def test_few_bytes_tell_that_a_tensor_is_not_zero() -> None:
    big = torch.zeros(1 << 16, 64)
    big[0, 0] = 1
    data = BytesSource(save({"a.weight": big, "b.weight": big * 2, "c.weight": torch.zeros(64, 64)}))
    anatomy = Anatomy()
    assert not [*format_of("safetensors").checks[Level.STRUCTURE](data, anatomy)][1:]
    tensors, data.bytes_read = anatomy.tensors, 0
    assert [t.name for t in find_zeros(data, tensors)] == ["c.weight"]
    assert data.bytes_read < 64 * 64 * 4 + 4096
    assert not [*find_zeros(data, tensors, every=False)]


def test_the_roles_are_those_of_the_layouts() -> None:
    layouts = list(get_active())
    assert {p.role for layout in layouts for p in layout.pieces} >= MODELS | OPTIMIZERS
