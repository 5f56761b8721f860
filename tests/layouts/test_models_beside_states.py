"""Models in shards (``save_pretrained``) among the states of a loop of one's own: what it began with, and what it
exports. Training never goes on from these without a word.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from safetensors.torch import save as safetensors_save
from small_files import adam, saved, tensor

from ckpt_tools.api import plan
from ckpt_tools.errors import CkptError

START = 1_735_700_000
WHOLE = {"step_{}.pt": ("model", "optimizer")}
APART = {"step_{}/model.pt": ("model",), "step_{}/optimizer.pt": ("optimizer",)}
FORMS = pytest.mark.parametrize("form", [WHOLE, APART], ids=["whole", "apart"])


def put(path: Path, data: bytes, at: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (START + at,) * 2)


def shards(home: Path, step: int, at: int) -> None:
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    for i, name in enumerate(names):
        put(home / name, safetensors_save({f"w{i}": tensor(step, i)}), at)
    index = {"metadata": {"total_size": 96}, "weight_map": {f"w{i}": name for i, name in enumerate(names)}}
    put(home / "model.safetensors.index.json", json.dumps(index).encode(), at)
    put(home / "config.json", b'{"model_type": "llama"}', at)


def states(root: Path, form: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Those of steps 10 and 20; the names of the files of the newest."""
    for step in (10, 20):
        held = {"model": {"w": tensor(step)}, "optimizer": adam(step)}
        for name, keys in form.items():
            data = {key: held[key] for key in keys} if len(keys) > 1 else held[keys[0]]
            put(root / name.format(step), saved(data), 60 * step)
    return sorted(name.format(20) for name in form)


@FORMS
@pytest.mark.parametrize("place", ["hf/step_{}", "hf-{}", "step_{}/hf"])
def test_exports_of_each_step_are_none_of_them(
    place: str, form: Mapping[str, tuple[str, ...]], tmp_path: Path
) -> None:
    newest = states(tmp_path, form)
    for step in (10, 20):
        shards(tmp_path / place.format(step), step, 60 * step + 5)
    made = plan(str(tmp_path))
    assert sorted(os.path.relpath(f.path, tmp_path) for f in made.shared) == newest
    for name in newest:
        os.truncate(tmp_path / name, 700)
    made = plan(str(tmp_path))
    assert made.checkpoint and made.checkpoint.step == 10 and made.rejected


@FORMS
@pytest.mark.parametrize(("called", "at"), [("pretrained", 0), ("final_model", 1300)])
def test_a_model_that_tells_no_step_is_none_of_them(
    called: str, at: int, form: Mapping[str, tuple[str, ...]], tmp_path: Path
) -> None:
    newest = states(tmp_path / "ckpt", form)
    shards(tmp_path / called, 7, at)
    made = plan(str(tmp_path))
    assert sorted(os.path.relpath(f.path, tmp_path / "ckpt") for f in made.shared) == newest
    assert [(f.code, str(f.severity)) for f in made.warnings] == [("passed-over", "note")] * (at > 0)
    for path in (tmp_path / "ckpt").rglob("*.pt"):
        os.truncate(path, 700)
    with pytest.raises(CkptError) as raised:
        plan(str(tmp_path))
    assert raised.value.exit_code in (2, 4)


def test_a_stray_file_beside_models_in_shards_is_no_run(tmp_path: Path) -> None:
    for step in (10, 20):
        shards(tmp_path / f"step_{step}", step, 60 * step)
    put(tmp_path / "vectors.pt", saved({"w": tensor(3)}), 5)
    made = plan(str(tmp_path))
    assert made.checkpoint and made.checkpoint.step == 20


@FORMS
@pytest.mark.parametrize("place", ["hf", "../pretrained_model"])
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_so_is_a_model_of_one_file_in_a_directory_that_is_called_so(
    name: str, place: str, form: Mapping[str, tuple[str, ...]], tmp_path: Path
) -> None:
    root = tmp_path / "ckpt"
    newest = states(root, form)
    for step in (10, 20):
        data = {"w": tensor(step, 3)}
        put(
            root / place.format(step) / name, saved(data) if name[-1] == "n" else safetensors_save(data), 1500
        )
    made = plan(str(tmp_path))
    assert sorted(os.path.relpath(f.path, root) for f in made.shared) == newest
    for path in root.rglob("*.pt"):
        os.truncate(path, 700)
    with pytest.raises(CkptError) as raised:
        plan(str(tmp_path))
    assert raised.value.exit_code in (2, 4)
