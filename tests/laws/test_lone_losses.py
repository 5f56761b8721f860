"""A save with no other one beside it that has lost a file: what is left of it often shows that."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from fixture_trees import damage, overwrite, tree_of
from own_pickles import setting

from ckpt_tools.api import plan, scan
from ckpt_tools.errors import CkptError
from ckpt_tools.model.plan import LoadPlan

SHOWN = {
    "colossalai/booster": [
        "pytorch_model.bin.index.json",
        "pytorch_optim.bin.index.json",
        "pytorch_optim_group.bin",
    ],
    "fairseq2/sharded": [
        "model/*/sdp_00.pt",
        "model/*/sdp_01.pt",
        "optimizer/*/sdp_01.pt",
        "rank_01.pt",
        "dp_01.pt",
    ],
    "hf-trainer/sharded": ["model.safetensors.index.json"],
    "hf-trainer/paddlenlp-unified": ["model.safetensors.index.json", "optimizer.safetensors.index.json"],
    "lerobot/optimizers": [
        "policy_preprocessor.json",
        "policy_preprocessor_step_3_normalizer_processor.safetensors",
        "actor/optimizer_state.safetensors",
        "critic/optimizer_param_groups.json",
    ],
    "levanter/steps": ["model/decoder/kernel/.zarray", "_step/0"],
    "megatron/layer_wise": ["model_optim_rng.pt"],
    "megatron-core/bridge": ["train_state.pt"],
    "megatron-core/fsdp_dtensor": ["train_state.pt"],
    "megatron-core/zarr": ["model.bias/.zarray", "model.weight/0.0"],
    "nemo-rl/megatron": ["iter_0000000/metadata.json"],
    "openrlhf/ppo": ["_critic/*/mp_rank_00_model_states.pt", "_actor/*/mp_rank_00_model_states.pt"],
    "t5x/steps": ["target.decoder.bias/.zarray"],
}
"""Fixture -> files of its newest save, each of which others of that save show to have been there."""
WARNED = {
    "accelerate/kohya-steps": ["scheduler.bin"],
    "lerobot/steps": ["scheduler_state.json"],
    "nemo-rl/dtensor": ["train_dataloader.pt"],
    "olmo-core/steps": ["train/rank1.pt"],
}
"""The same, where it is a warning: a job of another kind may have done without."""
TWO = {"accelerate/auto": ["optimizer_1.bin", "scheduler_1.bin"]}
"""Fixture -> files of a second model that is trained beside its own, copies of the first one's."""
LARGER = {
    "deepspeed/pipeline": (
        {f"global_step8/layer_0{i}-model_01-model_states.pt": f"layer_0{i}-model_00" for i in range(4)},
        ["global_step8/layer_02-model_00-model_states.pt", "global_step8/layer_03-model_01-model_states.pt"],
    ),
    "nanotron/zero": (
        {f"20/model/model/decoder/{i}": "decoder/0" for i in (1, 2)},
        ["20/model/model/decoder/0", "20/model/model/decoder/1"],
    ),
}
"""Fixture -> copies that make its save one of a larger model, and what goes of that."""


def rows(table: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    return [(name, lost) for name, losses in table.items() for lost in losses]


def alone(root: Path) -> list[Path]:
    """The files of the newest save, of which nothing else is left."""
    chosen = plan(str(root)).checkpoint
    assert chosen is not None
    kept = {p.path for p in chosen.parts}
    for c in scan(str(root)).checkpoints:
        if not any(path.startswith(f"{c.path}/") for path in kept):
            shutil.rmtree(c.path, ignore_errors=True)
        for p in c.parts:
            if p.path not in kept and os.path.lexists(p.path):
                os.unlink(p.path)
    return sorted({*map(Path, kept), *(p for p in Path(chosen.path).rglob("*") if p.is_file())})


def lose(files: Sequence[Path], pattern: str) -> None:
    lost = [path for path in files if path.match(pattern) or path.match(f"*/{pattern.replace('*', '*/*')}")]
    assert lost, files
    lost[0].unlink()


def missing(made: LoadPlan) -> list[Any]:
    return [f for f in made.warnings if f.code.startswith("missing")]


@pytest.mark.share(6)
@pytest.mark.parametrize(("name", "pattern"), rows(SHOWN))
def test_a_file_that_the_others_show_is_missed(name: str, pattern: str, tmp_path: Path) -> None:
    root = tree_of(name, tmp_path)
    files = alone(root)
    assert not missing(plan(str(root)))
    lose(files, pattern)
    with pytest.raises(CkptError, match="missing"):
        plan(str(root))


@pytest.mark.parametrize(("name", "pattern"), rows(WARNED))
def test_a_file_that_the_others_make_likely_is_told(name: str, pattern: str, tmp_path: Path) -> None:
    root = tree_of(name, tmp_path)
    files = alone(root)
    assert not missing(plan(str(root)))
    lose(files, pattern)
    assert missing(plan(str(root)))


@pytest.mark.parametrize(("name", "lost"), rows(TWO))
def test_what_is_gone_of_a_second_model_is_told(name: str, lost: str, tmp_path: Path) -> None:
    root = tree_of(name, tmp_path)
    save = alone(root)[0].parent
    for copy in ("model_1.safetensors", *TWO[name]):
        shutil.copy2(save / copy.replace("_1", ""), save / copy)
    assert not missing(plan(str(root)))
    (save / lost).unlink()
    assert missing(plan(str(root)))


def test_a_loader_of_data_without_a_sampler_to_save_is_not_missed(tmp_path: Path) -> None:
    """Only the second loader draws at random."""
    root = tree_of("accelerate/auto", tmp_path)
    for save in root.glob("checkpoints/*"):
        shutil.copy2(save / "scheduler.bin", save / "sampler_1.bin")
    made = plan(str(root))
    assert made.checkpoint and not missing(made) and not made.rejected


@pytest.mark.parametrize(("name", "lost"), rows({name: losses for name, (_, losses) in LARGER.items()}))
def test_a_part_of_a_larger_model_is_missed(name: str, lost: str, tmp_path: Path) -> None:
    root = tree_of(name, tmp_path)
    alone(root)
    copies = LARGER[name][0]
    paths = [str(p.relative_to(root)) for p in root.rglob("*")]
    damage(root, {"copy": {to: next(p for p in paths if source in p) for to, source in copies.items()}})
    assert not missing(plan(str(root)))
    damage(root, {"remove": [lost]})
    with pytest.raises(CkptError, match="missing"):
        plan(str(root))


STAGES = ("layer_0{}-model_00-model_states.pt", "layer_0{}-model_states.pt")
"""Files of layers in a job with model parallel ranks, and without."""


@pytest.mark.parametrize("name", STAGES)
@pytest.mark.parametrize("lost", [0, 3])
def test_a_layer_of_which_its_stage_names_parameters_is_missed(name: str, lost: int, tmp_path: Path) -> None:
    root = tree_of("deepspeed/pipeline", tmp_path)
    save = alone(root)[0].parent
    for n in range(4):
        (save / STAGES[0].format(n)).rename(save / name.format(n))
    for stage, layers in enumerate(((0, 1), (2, 3))):
        shapes = {f"{n}.weight": (4, 6) for n in layers}
        setting(
            save / f"mp_rank_0{stage}_model_states.pt", "param_shapes", [shapes | {"tied_modules.e.w": ()}]
        )
    assert not missing(plan(str(root)))
    (save / name.format(lost)).unlink()
    with pytest.raises(CkptError, match="missing"):
        plan(str(root))


@pytest.mark.parametrize("name", STAGES)
def test_a_layer_that_the_saves_beside_have_is_missed(name: str, tmp_path: Path) -> None:
    root = tree_of("deepspeed/pipeline", tmp_path)
    for path in list(root.glob("*/layer_*")):
        path.rename(path.with_name(name.format(path.name[7])))
    newest = plan(str(root))
    assert newest.checkpoint is not None and not newest.warnings
    (Path(newest.checkpoint.path) / name.format(3)).unlink()
    [rejected] = plan(str(root)).rejected
    assert rejected.checkpoint.step == newest.checkpoint.step


@pytest.mark.parametrize(("files", "told"), [(2, False), (3, True)])
def test_a_file_that_no_rank_has_is_told(files: int, told: bool, tmp_path: Path) -> None:
    root = tree_of("dcp-hf/two", tmp_path)
    for number, path in enumerate(alone(root), start=1):
        numbered = path.name.replace("model-00001-of-00001", f"model-{number:05d}-of-{files:05d}")
        path.rename(path.with_name(numbered))
    assert bool(missing(plan(str(root)))) is told


def test_chunks_in_directories_for_each_axis_are_described(tmp_path: Path) -> None:
    """``dimension_separator`` "/": what describes the chunks lies above their directory."""
    root = tree_of("levanter/steps", tmp_path)
    alone(root)
    kernel = root / "step-20/model/decoder/kernel"
    (kernel / "0").mkdir()
    (kernel / "0.0").rename(kernel / "0/0")
    described = json.loads((kernel / ".zarray").read_text()) | {"dimension_separator": "/"}
    overwrite(kernel / ".zarray", json.dumps(described).encode(), 0)
    assert not missing(plan(str(root)))
    (kernel / ".zarray").unlink()
    with pytest.raises(CkptError, match="missing"):
        plan(str(root))
