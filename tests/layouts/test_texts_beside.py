"""Texts in the directory of a save that describe its model, or tell how far it was: one that is lost, cut, or
of another save is said, whatever framework saves so, and what is written after a save is not missed.
"""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import pytest
from safetensors.torch import save as safetensors_save
from small_files import saved, tensor, trainer

from ckpt_tools.api import plan

SHARD = "model-0000{}-of-00002.safetensors"
TREES = {
    "{}/state.pt": "meta.json",
    "step_{}/model.safetensors": "training_state.json",
    "step_{}/adapter_model.safetensors": "adapter_config.json",
    f"step_{{}}/{SHARD.format(1)}": "tokenizer.json",
    "ckpt-{}/model.pt": "tokenizer.model",
}
"""The file of each save -> the text beside it."""


def put(path: Path, data: bytes, at: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (1_700_000_000 + 600 * at,) * 2)


def make(root: Path, name: str, text: str, steps: tuple[int, ...]) -> None:
    for n in steps:
        path = root / name.format(n)
        tensors = {"a": tensor(n)}
        data = saved({**tensors, "step": n}) if name.endswith("pt") else safetensors_save(tensors)
        put(path, data, n)
        if SHARD.format(1) in name:
            files = {"a": SHARD.format(1), "b": SHARD.format(2)}
            put(path.parent / SHARD.format(2), safetensors_save({"b": tensor(n, 1)}), n)
            index = {"metadata": {"total_size": 96}, "weight_map": files}
            put(path.parent / "model.safetensors.index.json", json.dumps(index).encode(), n)
        put(path.parent / text, json.dumps({"step": n, "loss": 1.5}).encode(), n)


def said(root: Path) -> list[tuple[str, str]]:
    made = plan(str(root))
    assert made.checkpoint is not None and made.checkpoint.step == 30
    return [(f.code, os.path.relpath(f.path or "", root)) for f in made.warnings]


@pytest.mark.parametrize("name", TREES)
def test_a_text_that_is_lost_or_cut_or_of_another_save_is_said(name: str, tmp_path: Path) -> None:
    text = TREES[name]
    make(tmp_path, name, text, (20, 30))
    assert said(tmp_path) == []
    path = (tmp_path / name.format(30)).parent / text
    data, at = path.read_bytes(), str(path.relative_to(tmp_path))
    if text in ("meta.json", "training_state.json"):
        put(path, data.replace(b"30", b"20"), 30)
        assert said(tmp_path) == [("step-mismatch", at)]
    if text not in ("training_state.json", "tokenizer.model"):  # who knows what others hold
        put(path, data[:10], 30)
        assert said(tmp_path) == [("truncated", at)]
    path.unlink()
    assert said(tmp_path) == [("missing-part", os.path.dirname(at))]


def test_settings_in_yaml_that_are_empty_are_said(tmp_path: Path) -> None:
    """A save of LitGPT that is killed while it writes the last of its files; one that is always empty is none."""
    for name in ("model_config.yaml", "overrides.yml"):
        make(tmp_path, "step_{}/model.safetensors", name, (20, 30))
    empty = tmp_path / "step_30/model_config.yaml"
    put(empty, b"", 30)
    put(tmp_path / "step_20/overrides.yml", b"", 20)
    put(tmp_path / "step_30/overrides.yml", b"", 30)
    assert said(tmp_path) == [("empty-file", "step_30/model_config.yaml")]


@pytest.mark.parametrize("name", ["step_{}/model.safetensors", "step_{}.pt"])
def test_settings_in_yaml_that_are_zeros_or_cut_are_said(name: str, tmp_path: Path) -> None:
    make(tmp_path, name, "settings.yaml", (20, 30))
    path = (tmp_path / name.format(30)).parent / "settings.yaml"
    at = os.path.relpath(path, tmp_path)
    put(path, b"\0" * 12, 30)
    assert said(tmp_path) == [("zero-filled", at)]
    if os.path.dirname(at):  # each save has its own
        put(tmp_path / "step_20/settings.yaml", b"a: 1\nb: 2\n", 20)
        put(path, b"a: 1\nb:", 30)
        assert said(tmp_path) == [("truncated", at)]
        put(path, b"a: 1\nb: 2\nc: 3\n", 30)  # a list that grows
        assert said(tmp_path) == []


def test_a_lone_adapter_whose_settings_are_cut_is_said(tmp_path: Path) -> None:
    put(tmp_path / "adapter_model.safetensors", safetensors_save({"a": tensor(1)}), 1)
    put(tmp_path / "adapter_config.json", b'{"peft_type": "LO', 1)
    warnings = plan(str(tmp_path)).warnings
    assert [(f.code, f.path) for f in warnings] == [("truncated", str(tmp_path / "adapter_config.json"))]


@pytest.mark.parametrize("text", ["adapter_config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("data", [b"", b'{"peft_type": "LO'])
def test_a_text_that_the_trainer_does_not_load_is_looked_at(text: str, data: bytes, tmp_path: Path) -> None:
    for name, held in {**trainer(20), text: data}.items():
        put(tmp_path / "checkpoint-20" / name.replace("model.", "adapter_model."), held, 20)
    at = str(tmp_path / "checkpoint-20" / text)
    assert [(f.code, f.path) for f in plan(str(tmp_path)).warnings] == [
        ("truncated" if data else "empty-file", at)
    ]


@pytest.mark.parametrize(
    ("left", "code"),
    [(None, "missing-part"), (0, "empty-file"), (200, "truncated")],
    ids=["lost", "empty", "cut"],
)
def test_arguments_that_the_trainer_does_not_load_cost_no_step(
    left: int | None, code: str, tmp_path: Path
) -> None:
    for step, name in itertools.product((10, 20), trainer(20)):
        put(tmp_path / f"checkpoint-{step}" / name, trainer(step)[name], step)
    (args := tmp_path / "checkpoint-20/training_args.bin").unlink()
    if left is not None:
        put(args, trainer(20)["training_args.bin"][:left], 20)
    made = plan(str(tmp_path))
    assert made.checkpoint is not None
    assert made.checkpoint.step == 20
    assert [f.code for f in made.warnings] == [code]


@pytest.mark.parametrize("text", ["eval_results.json", "val_loss.txt", "metrics.json", "log.txt"])
def test_what_is_written_after_a_save_is_not_missed(text: str, tmp_path: Path) -> None:
    for n, name in itertools.product((10, 20, 30), ("model.pt", text)):
        if (n, name) != (30, text):
            put(tmp_path / f"step_{n}" / name, saved({"a": tensor(n)}) if name != text else b"[1]", n)
    assert said(tmp_path) == []


def test_a_vocabulary_is_not_read(tmp_path: Path) -> None:
    put(tmp_path / "step_30/model.pt", saved({"step": 30, "a": tensor(1)}), 30)
    plain = plan(str(tmp_path)).bytes_read
    put(tmp_path / "step_30/tokenizer.json", b'{"vocab": "' + b"x" * (1 << 20), 30)
    assert said(tmp_path) == [] and plan(str(tmp_path)).bytes_read == plain
