"""Frameworks for models that many ranks train, each by the names of its newest version: what it would load is
planned without a question, and no save that lacks what its loader opens.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from safetensors.torch import save as safetensors_save
from small_files import dcp, saved, tensor
from timed import lay

from ckpt_tools import plan

Save = Mapping[str, bytes]


def below(home: str, files: Save) -> Save:
    return {f"{home}/{name}": data for name, data in files.items()}


def core(step: int, part: int) -> Save:
    """A directory of Megatron-core's. Those of one save differ, as their states do."""
    common = saved({"content_metadata": {}, "number": 1000 * part + step})
    told = {"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch"}
    last = json.dumps({**told, "common_backend_version": 1}).encode()
    return {"common.pt": common, **dcp(1000 * part + step, files=1, key="seed"), "metadata.json": last}


def of_verl(step: int, worker: str, part: int) -> Save:
    kinds = ("model", "optimizer", "extra")
    made = {
        k: v
        for i, kind in enumerate(kinds)
        for k, v in below(f"{kind}/dist_ckpt", core(step, part + i)).items()
    }
    return below(worker, made) if worker else made


def verl_megatron(step: int) -> Save:
    workers = {**of_verl(step, "actor", 1), **of_verl(step, "critic", 5)}
    return below(f"global_step_{step}", {**workers, "data.pt": saved({"place": step})})


def _places(step: int) -> Save:
    return {f"data_{rank}.pt": saved({"place": step, "rank": rank}) for rank in range(2)}


def verl_sft_megatron(step: int) -> Save:
    return below(f"global_step_{step}", {**of_verl(step, "", 1), **_places(step)})


def verl_sft(step: int) -> Save:
    ranks = {
        f"{kind}_world_size_2_rank_{rank}.pt": saved({kind: tensor(step, rank, i), "seed": step})
        for rank in range(2)
        for i, kind in enumerate(("model", "optim", "extra_state"))
    }
    return below(f"global_step_{step}", {**ranks, **_places(step)})


def skyrl_megatron(step: int) -> Save:
    """With what its asynchronous trainer adds after the tracker."""
    workers = {**below("policy", core(step, 1)), **below("critic", core(step, 2))}
    beside = {f"{name}.pt": saved({name: step}) for name in ("data", "trainer_state", "fully_async_state")}
    return below(f"global_step_{step}", {**workers, **beside})


def exported(step: int) -> Save:
    """A model of Hugging Face's in two shards."""
    shards = {f"model-{i:05d}-of-00002.safetensors": {f"layer.{i}": tensor(step, i)} for i in (1, 2)}
    index = {"metadata": {}, "weight_map": {key: name for name, held in shards.items() for key in held}}
    made = {name: safetensors_save(held, {"format": "pt"}) for name, held in shards.items()}
    return {**made, "model.safetensors.index.json": json.dumps(index).encode()}


def bridge(step: int) -> Save:
    """Megatron-Bridge with also_save_hf_checkpoint."""
    return below(f"iter_{step:07d}", {**core(step, 1), **below("hf", exported(step))})


def verl_exported(step: int) -> Save:
    return {**verl_sft(step), **below(f"global_step_{step}/huggingface", exported(step))}


ARRANGED: dict[str, tuple[Callable[[int], Save], str, tuple[str, ...]]] = {
    "verl, Megatron": (
        verl_megatron,
        "latest_checkpointed_iteration.txt",
        (
            "global_step_20/actor/optimizer/dist_ckpt/.metadata",
            "global_step_20/critic/extra/dist_ckpt/metadata.json",
            "global_step_20/data.pt",
        ),
    ),
    "verl, Megatron, one model": (
        verl_sft_megatron,
        "latest_checkpointed_iteration.txt",
        ("global_step_20/model/dist_ckpt/.metadata", "global_step_20/data_1.pt"),
    ),
    "verl, FSDP, one model": (
        verl_sft,
        "latest_checkpointed_iteration.txt",
        ("global_step_20/optim_world_size_2_rank_1.pt", "global_step_20/data_1.pt"),
    ),
    "verl, FSDP, exported": (
        verl_exported,
        "latest_checkpointed_iteration.txt",
        ("global_step_20/model_world_size_2_rank_1.pt",),
    ),
    "SkyRL, Megatron": (
        skyrl_megatron,
        "latest_ckpt_global_step.txt",
        (
            "global_step_20/policy/.metadata",
            "global_step_20/critic/metadata.json",
            "global_step_20/fully_async_state.pt",
        ),
    ),
    "Megatron-Bridge, exported": (
        bridge,
        "latest_checkpointed_iteration.txt",
        ("iter_0000020/metadata.json",),
    ),
}
"""What it saves, the tracker, and files without which the newest save is not loaded."""


def written(root: Path, name: str) -> Path:
    save, tracker, _ = ARRANGED[name]
    for at, step in enumerate((10, 20)):
        lay(root, save(step), 600 * at)
    if tracker:
        (root / tracker).write_text("20")
    return root


@pytest.mark.slow
@pytest.mark.parametrize("name", ARRANGED)
def test_the_newest_save_is_planned_without_a_question(name: str, tmp_path: Path) -> None:
    made = plan(str(written(tmp_path, name)))
    assert made.checkpoint is not None and made.checkpoint.step == 20
    assert not made.warnings and not made.rejected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "gone"), [(name, gone) for name, row in ARRANGED.items() for gone in row[2]]
)
def test_a_save_without_what_its_loader_opens_is_not(name: str, gone: str, tmp_path: Path) -> None:
    root = written(tmp_path, name)
    (root / gone).unlink()
    made = plan(str(root))
    assert made.checkpoint is not None and made.checkpoint.step == 10
    assert made.rejected or made.warnings


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, row in ARRANGED.items() if row[1]])
def test_a_save_that_its_tracker_names_is_missed(name: str, tmp_path: Path) -> None:
    root = written(tmp_path, name)
    (gone,) = {path.partition("/")[0] for path in ARRANGED[name][0](20)}
    shutil.rmtree(root / gone)
    made = plan(str(root))
    assert made.checkpoint is not None and made.checkpoint.step == 10
    assert "dangling-tracker" in {f.code for f in made.warnings}
