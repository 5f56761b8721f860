"""Frameworks for models that many ranks train, each by the names of its newest version: what it would load is
planned without a question, and no save that lacks what its loader opens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from safetensors.torch import save as safetensors_save
from small_files import dcp, saved, tensor
from told_trees import SETS, Question, hold, table

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


def inside(home: str, save: Callable[[int], Save]) -> Callable[[int], Save]:
    """A save without the directory that tells its step."""
    return lambda n: {name.removeprefix(f"{home.format(n)}/"): data for name, data in save(n).items()}


SAVES = {
    "verl": inside("global_step_{}", verl_megatron),
    "verlone": inside("global_step_{}", verl_sft_megatron),
    "verlfsdp": inside("global_step_{}", verl_sft),
    "verlexported": inside("global_step_{}", verl_exported),
    "skyrl": inside("global_step_{}", skyrl_megatron),
    "bridge": inside("iter_{:07d}", bridge),
}
SETS |= SAVES
MEGATRON, SKYRL = "latest_checkpointed_iteration.txt", "latest_ckpt_global_step.txt"
HOMES = {"skyrl": ("global_step_{}", SKYRL), "bridge": ("iter_00000{}", MEGATRON)}
MADE = {
    name: ("planted", f"{home.format(10)}/:{name}10 {home.format(20)}/:{name}20; put {tracker} 20")
    for name in SAVES
    for home, tracker in [HOMES.get(name, ("global_step_{}", MEGATRON))]
}
TREES = table(
    """
    verl slow
        as it is -> global_step_20
        rm global_step_20{,/data.pt,/actor/optimizer/dist_ckpt/.metadata,/critic/extra/dist_ckpt/metadata.json}
            -> global_step_10 -missing-part +dangling-tracker
    verlone slow
        as it is -> global_step_20
        rm global_step_20{,/data_1.pt,/model/dist_ckpt/.metadata} -> global_step_10 -missing-part +dangling-tracker
    verlfsdp slow
        as it is -> global_step_20
        rm global_step_20{,/data_1.pt} -> global_step_10 -missing-part +dangling-tracker
        rm global_step_20/optim_world_size_2_rank_1.pt -> global_step_10 -missing-rank +dangling-tracker
    verlexported slow
        as it is -> global_step_20
        rm global_step_20/model_world_size_2_rank_1.pt -> global_step_10 -missing-rank +dangling-tracker
    skyrl slow
        as it is -> global_step_20
        rm global_step_20{,/policy/.metadata,/critic/metadata.json,/fully_async_state.pt}
            -> global_step_10 -missing-part +dangling-tracker
    bridge slow
        as it is -> iter_0000020
        rm iter_0000020 -> iter_0000010 -missing-part +dangling-tracker
        rm iter_0000020/metadata.json -> iter_0000010 -missing-part +dangling-tracker ~passed-over
    """,
    **MADE,
)


@pytest.mark.parametrize(("tree", "asked"), TREES)
def test_the_newest_save_is_planned_if_it_has_what_its_loader_opens(
    tree: str, asked: list[Question], tmp_path: Path
) -> None:
    hold(tree, asked, tmp_path)
