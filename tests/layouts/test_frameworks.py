"""Saves as frameworks and loops of many fields name their files: which is loaded, and what is said when a part of it is
gone, cut or of another save.
"""

from __future__ import annotations

import io
import json
import pickle
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from mindspore_writer import record
from safetensors.numpy import save as safetensors_save
from safetensors.torch import save as safetensors_torch
from small_files import adam, dcp, engine, lightning, mindspore, payload, saved, tensor
from told_trees import KINDS, SETS, Made, Question, change, hold, of_steps, plant, rewrite, table

from ckpt_tools import plan
from ckpt_tools.errors import UsageError


def arrays(ending: str, first: int, number: int) -> bytes:
    """Arrays one after the other as Equinox writes them, or with names."""
    held = [np.full((2, 3), first + i, np.float32) for i in range(number)]
    named, out = {f"a{i}": array for i, array in enumerate(held)}, io.BytesIO()
    if ending == "safetensors":
        return safetensors_save(named)
    if ending == "npz":
        np.savez(out, **named)
    for array in held if ending == "eqx" else ():
        np.save(out, array)
    return out.getvalue()


def mlx(step: int) -> bytes:
    """What ``mx.save_safetensors`` writes of ``tree_flatten(optimizer.state)``."""
    moments = {f"a0.{letter}": np.full((2, 3), step, np.float32) for letter in "mv"}
    return safetensors_save(
        {**moments, "step": np.array(step, np.uint64), "learning_rate": np.array(0.1, np.float32)}
    )


def mindcv(epoch: int) -> bytes:
    return record("w", (3, 4), "Float32", payload(epoch)) + record("b", (12,), "Float32", payload(epoch, 1))


def mindcv_optimizer(epoch: int) -> bytes:
    done = record("global_step", (1,), "Int32", (100 * epoch).to_bytes(4, "little"))
    return done + mindcv(epoch) + record("moments.w", (3, 4), "Float32", payload(epoch, 2))


def counted(step: int, *, moments: bool) -> bytes:
    row = struct.pack("<4f", *range(4))
    done = record("global_step", [1], "Int32", struct.pack("<i", step)) if step else b""
    return (
        record("w", [4], "Float32", row)
        + (record("moments.w", [4], "Float32", row) if moments else b"")
        + done
    )


def paddle(*seed: int) -> bytes:
    return pickle.dumps(np.random.default_rng(seed).standard_normal((4, 8)).astype("f4"), 4)


def arcface(epoch: int) -> Mapping[str, bytes]:
    """A file of paddle.save for each tensor, and a classifier's shard for each rank
    (insightface/recognition/arcface_paddle/dynamic/utils/io.py).
    """
    names = ("conv2d_0.w_0", "dist@fc@rank@00000.w", "dist@fc@rank@00001.w")
    ends = (".pdparam", "_velocity_0.pdopt")
    files = {
        f"{name}{end}": paddle(epoch, i, j) for i, name in enumerate(names) for j, end in enumerate(ends)
    }
    return {**files, "LR_Scheduler.pdopt": pickle.dumps({"last_epoch": epoch, "last_lr": 0.1}, 4)}


RLLIB = (
    "rllib_checkpoint.json", "algorithm_state.pkl", "class_and_ctor_args.pkl", "env_runner/state.pkl", "learner_group/learner/state.pkl",
    "learner_group/learner/rl_module/default_policy/module_state.pkl",
)  # fmt: skip


def rllib(number: int) -> Mapping[str, bytes]:
    """As Algorithm.save_to_path() of ray 2.60 names its files."""
    files = {name: pickle.dumps({"state": [0 if "args" in name else number, name]}) for name in RLLIB}
    return {**files, "rllib_checkpoint.json": b'{"checkpoint_version": "2.1"}'}


def policies(number: int) -> Mapping[str, bytes]:
    """Before ray 2.40 an algorithm has a directory for each policy, with the mark of a checkpoint in it."""
    names = ("algorithm_state.pkl", "policies/main/policy_state.pkl")
    files = {name: pickle.dumps({"state": [number, name]}) for name in names}
    return {**files, "rllib_checkpoint.json": b"{}", "policies/main/rllib_checkpoint.json": b"{}"}


def deepspeed(step: int) -> bytes:
    state = {"module": {"w": tensor(step)}, "skipped_steps": 0, "global_steps": step}
    return saved({**state, "dp_world_size": 1, "mp_world_size": 1})


def experts(step: int) -> Mapping[str, bytes]:
    """More files than are read of other saves."""
    names = [f"layer_{n}_expert_0_mp_rank_00_model_states.pt" for n in range(70)]
    optimizer = {"expp_rank_0_mp_rank_00_optim_states.pt": saved({"optimizer": adam(step)})}
    weights = {name: saved({"w": tensor(step, n)}) for n, name in enumerate(names)}
    return {"mp_rank_00_model_states.pt": deepspeed(step), **optimizer, **weights}


def kohya(step: int) -> Mapping[str, bytes]:
    states = {f"{name}.bin": saved(adam(step)) for name in ("optimizer", "scheduler")}
    files = {
        "model.bin": saved({"w": tensor(step)}),
        **states,
        "random_states_0.pkl": saved({"x": tensor(step, 1)}),
    }
    return {
        **files,
        "train_state.json": json.dumps({"current_epoch": step, "current_step": 10 * step}).encode(),
    }


KINDS |= {f"{e}": (lambda n, e=e: arrays(e, n, 2)) for e in ("eqx", "npz")}
KINDS |= {f"{e[:3]}state": (lambda n, e=e: arrays(e, -n, 4)) for e in ("eqx", "npz", "safetensors")}
KINDS |= {
    "flat": lambda n: arrays("safetensors", n, 2),
    "mlx": mlx,
    "mindcv": mindcv,
    "mindcvstate": mindcv_optimizer,
    "mindcvcut": lambda n: mindcv_optimizer(n)[:-60],
    "mscounted": lambda n: counted(n, moments=False),
    "moments": lambda n: counted(n, moments=True),
    "msuncounted": lambda n: mindspore(False, n, step_num=n).replace(b"step_num", b"some_num"),
    "iteration": lambda n: pickle.dumps({"training_iteration": n}),
    "nostate": lambda n: pickle.dumps({}),
    "arguments": lambda n: pickle.dumps({"output_dir": "out"}),
    "old": lambda n: saved({"w": tensor(n), "global_step": n}),
    "weighty": lambda n: saved({"proj.weight": tensor(n)}),
}
SETS |= {
    "rllib": rllib,
    "policies": policies,
    "arcface": arcface,
    "experts": experts,
    "kohya": kohya,
    "olmo": lambda n: {
        f"{part}/rank{r}.pt": saved({"w": tensor(n, r), "global_step": n})
        for part in ("model", "optim", "train")
        for r in (0, 1)
    },
}
RESTARTED = " ".join(
    f"net{name}_3.ckpt:mindspore{3 * n}" for n, name in enumerate(("-1", "-2", "-3", "_1-1", "_1-2"), 1)
)
MADE: dict[str, tuple[str, str] | Made] = {
    "mindcv": (
        "planted",
        ";".join(
            f"rm optim_net.ckpt;optim_net.ckpt:mindcvstate{n} net-{n}_100.ckpt:mindcv{n}= EMA_net-{n}_100.ckpt:mindcv{n}="
            for n in (8, 9, 10)
        ).removeprefix("rm optim_net.ckpt;"),
    ),
    "restarted": ("planted", RESTARTED),
    "at-one-time": ("planted", RESTARTED.replace(" ", "= ") + "="),
    "untold": ("planted", RESTARTED.replace("mindspore", "msuncounted")),
    "algorithm": ("planted", "iter_1/:rllib iter_2/:rllib"),
}


def callbacks(often: str, other: str) -> tuple[str, str]:
    saves = [f"{often.format(e=e, s=s)}:lightning{s}@{s}" for e, s in enumerate((10, 20, 30), 1)]
    return "planted", " ".join([*saves, f"{other}:lightning40@40"])


OFTEN = "epoch={e}-step={s}.ckpt"
MADE |= {
    "end": callbacks(OFTEN, "end-epoch=4.ckpt"),
    "best": callbacks(OFTEN, "best-epoch=4-step=40.ckpt"),
    "last": callbacks(OFTEN, "last.ckpt"),
    "run-end": callbacks(f"run-{OFTEN}", "end-epoch=4.ckpt"),
    "part-best": callbacks("epoch={e}-part.ckpt", "best-val-epoch=4-step=40.ckpt"),
    "again": (
        "planted",
        "epoch=1-step=10.ckpt:lightning10@10 last.ckpt:lightning10= epoch=2-step=20.ckpt:lightning20@20 last-v1.ckpt:lightning20=",
    ),
}

GRID = "weights_tp_rank_world_size={}_2_pp_rank_world_size=0_1.pth"
MADE |= {
    "runs": (
        "planted",
        ";".join(
            f"{d}/training_state_rank0.pt:optimizer{n} {d}/training_state_rank1.pt:optimizer{n}= {d}/training_state.pt:model{n}="
            for n in (8, 10)
            for d in [f"draft-step{n}"]
        ),
    ),
}


def crashed(seed: int) -> bytes:
    state = {"epoch": 0, "global_step": 7, "pytorch-lightning_version": "2.6.6", "loops": {}, "callbacks": {}}
    rest = {"optimizer_states": [adam(7)], "lr_schedulers": []}
    return saved({**state, "state_dict": {"w": tensor(seed)}, **rest})


SETS |= {
    "zero": engine,
    "zeroagain": lambda n: engine(n, seed=7),
    "dcpagain": lambda n: dcp(n, seed=7),
}
KINDS |= {
    "crashed": crashed,
    "gasp": lambda n: mindspore(False, n, epoch_num=2, step_num=7),
    "told": lambda n: mindspore(False, 0, epoch_num=1, step_num=n),
}

WEIGHTS = {
    "values": {"w": tensor(7)},
    "shapes": {"w": tensor(7, shape=(4, 3))},
    "keys": {"decoder.w": tensor(20)},
    "copy": {"w": tensor(20)},
}
"""Those of a whole state of the same step: others, of other tensors, or the same with more beside."""


def other(which: str) -> bytes:
    told = {
        "epoch": 1,
        "global_step": 20,
        "pytorch-lightning_version": "2.6.6",
        "loops": {},
        "lr_schedulers": [],
    }
    rest = {"callbacks": {"score": torch.tensor(0.25)}, "optimizer_states": [adam(20)]}
    return saved({**told, "state_dict": WEIGHTS[which], **rest})


KINDS |= {which: (lambda n, which=which: other(which)) for which in WEIGHTS}
KINDS["one"] = lambda n: lightning(1, 20)
JOB = ";".join(f"rank_0/net-1_{n}.ckpt:mindspore rank_1/net-1_{n}.ckpt:mindspore=" for n in (10, 20, 30, 40))
MADE |= {"job": ("planted", JOB), "deep": ("planted", f"{JOB};put rank_1/meta.json {'[' * 100_000}")}
KINDS["named"] = lambda n: saved(
    {
        "global_step": n,
        "epoch": 1,
        "pytorch-lightning_version": "2.6",
        "model": {"w": tensor(n)},
        "optimizer": adam(n),
    }
)


# Frameworks for models that many ranks train, each by the names of its newest version.


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
    made = {name: safetensors_torch(held, {"format": "pt"}) for name, held in shards.items()}
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
MADE |= {
    name: ("planted", f"{home.format(10)}/:{name}10 {home.format(20)}/:{name}20; put {tracker} 20")
    for name in SAVES
    for home, tracker in [HOMES.get(name, ("global_step_{}", MEGATRON))]
}


TREES = table(
    """
    planted
        # --- A model and its optimizer in two files of arrays, of which only the names tell which is which.
        model_10.eqx:eqx opt_10.eqx:eqxstate= model_20.eqx:eqx opt_20.eqx:eqxstate= -> loads model_20.eqx opt_20.eqx
        then rm opt_20.eqx | no_fallback=yes -> exit 6 choice/none-usable -missing-part
        model_10.npz:npz optimizer_10.npz:npzstate= model_20.npz:npz optimizer_20.npz:npzstate=
            -> loads model_20.npz optimizer_20.npz
        then rm optimizer_20.npz | no_fallback=yes -> exit 6 choice/none-usable -missing-part
        model_10.safetensors:flat opt_state_10.safetensors:safstate= model_20.safetensors:flat;
            opt_state_20.safetensors:safstate= -> loads model_20.safetensors opt_state_20.safetensors
        then rm opt_state_20.safetensors | no_fallback=yes -> exit 6 choice/none-usable -missing-part
        # MLX: what is told by its arrays is no model, and its save is loaded with both files or not at all.
        step_10/weights.npz:npz10 step_10/state.safetensors:mlx10= step_20/weights.npz:npz20 step_20/state.safetensors:mlx20=
            -> loads step_20/state.safetensors step_20/weights.npz
        then rm step_20/weights.npz | no_fallback=yes -> exit 6 choice/none-usable -missing-part
        model_10.safetensors:flat state_10.safetensors:mlx= model_20.safetensors:flat state_20.safetensors:mlx=
            -> loads model_20.safetensors state_20.safetensors
        then rm model_20.safetensors | no_fallback=yes -> exit 6 choice/none-usable -missing-part
        weights.safetensors:flat20 state.safetensors:mlx20= -> loads state.safetensors weights.safetensors
        then rm weights.safetensors | no_fallback=yes -> exit 6 choice/none-usable -missing-part
        # --- A save of a model alone is none to train on. What counts steps is no export, though it has no moments.
        a.ckpt:{moments,mscounted}10 b.ckpt:mscounted20@20 -> is mindspore periodic step 20
        a.ckpt:mscounted10 b.ckpt:mscounted0@20 -> is mindspore periodic step 10
        training_args.bin:arguments -> exit 2 choice/unplaced-newer +no-layout => ok
        # Weights alone where a Trainer saves.
        checkpoint-500/config.json:json checkpoint-500/mm_projector.bin:weighty500= checkpoint-1000/config.json:json;
            checkpoint-1000/mm_projector.bin:weighty1000= -> checkpoint-1000 +missing-part => ok
        checkpoint-500/config.json:json checkpoint-500/model.safetensors:tensors500= checkpoint-1000/config.json:json;
            checkpoint-1000/model.safetensors:tensors1000= -> checkpoint-1000 +missing-part => ok
        # --- Single tensors of Paddle, and the share of one rank, which is never given to all.
        118/:arcface 119/:arcface -> exit 2 choice/unplaced-newer => ok
        then rm 119/dist@fc@rank@00001.w.pdparam; rm 119/dist@fc@rank@00001.w_velocity_0.pdopt
            -> exit 2 choice/unplaced-newer
    planted slow
        # --- Files that no index lists, of which only other saves tell, whether or not these can be loaded.
        global_step10/:experts global_step20/:experts global_step30/:experts; cut */layer_69_*;
            rm global_step{10,20,30}/layer_69_expert_0_mp_rank_00_model_states.pt
                -> exit 4 choice/none-usable -missing-part -truncated
    deepspeed/pipeline slow
        cut */layer_01-*; rm {global_step4,global_step8}/layer_01-model_00-model_states.pt
            -> exit 4 choice/none-usable -missing-part -truncated
    planted
        # --- A link called as the choice is but for its number, that leads nowhere, and directories that are not done.
        cat-000001-state/:kohya cat-000002-state/:kohya; ln ../unmounted/cat-000003-state cat-000003-state
            -> cat-000002-state +dangling-link
        then as it is | no_fallback=yes -> exit 6 choice/none-usable
        step_10/model.bin:model10 step_10/optimizer.bin:optimizer10= step_10/random_states_0.pkl:rng10= step_20/model.bin:model20;
            step_20/optimizer.bin:optimizer20= step_20/random_states_0.pkl:rng20= {step_30.tmp,tmp-step_30}/model.bin:model30
                -> step_20 +unfinished-save
        # --- Composer with save_weights_only: a link is of the step of what it leads to.
        ep1-ba8-rank0.pt:model8 ep2-ba16-rank0.pt:model16 ep3-ba24-rank0.pt:model24; ln ep3-ba24-rank0.pt latest-rank0.pt
            -> is composer periodic step 24
        then rm latest-rank0.pt; cp ep3-ba24-rank0.pt latest-rank0.pt
            -> ep3-ba24-rank0.pt   # it may be all that is left of a later save
        # --- The directories of OLMo before OLMo-core.
        step1000/:olmo step2000/:olmo -> is rank-files periodic step 2000
        # A restart that has not come so far is a question where times are lost, and else a rollback that is told.
        net-3_3.ckpt:mindspore9 net-4_3.ckpt:mindspore12= net_1-1_3.ckpt:mindspore3= net_1-2_3.ckpt:mindspore6=
            -> exit 2 order/times-mute
        then as it is | order=step -> is mindspore periodic step 12
        rank_0/net-3_3.ckpt:mindspore9 rank_1/net-3_3.ckpt:mindspore9= rank_0/net_1-1_3.ckpt:mindspore3=;
            rank_1/net_1-1_3.ckpt:mindspore3= -> exit 2 order/times-mute
        net-1_3.ckpt:mindspore3 net-2_3.ckpt:mindspore6 net-3_3.ckpt:mindspore9 net_1-1_3.ckpt:mindspore3;
            net_1-2_3.ckpt:mindspore6 -> net_1-2_3.ckpt +mtime-disagrees-with-step
        then net_1-3_3.ckpt:mindspore9 net_1-4_3.ckpt:mindspore12 -> net_1-4_3.ckpt
        # --- Names that count steps from the start of each epoch: the later epoch is the later save.
        epoch_1_step_10.pt:state epoch_2_step_20.pt:state epoch_3_step_30.pt:state epoch_1_step_40.pt:state
            -> epoch_1_step_40.pt
        epoch_1_step_20.pt:state epoch_2_step_10.pt:state -> epoch_2_step_10.pt
        epoch_1_step_20.pt:state epoch_2_step_10.pt:state= -> exit 2 order/times-mute
        epoch_1_step_10.pt:state epoch_2_step_20.pt:state= epoch_3_step_30.pt:state= epoch_1_step_40.pt:state=
            -> exit 2 order/times-mute
        then as it is | order=step -> epoch_3_step_30.pt
        epoch_1_step_10.pt:state epoch_2_step_20.pt:state= -> epoch_2_step_20.pt +mtime-not-kept
    # --- MindSpore's names count from 1 again after a restart, and step_num goes on.
    restarted
        as it is -> is mindspore periodic step 15
        cut net_1-2_3.ckpt -> is mindspore periodic step 12
        net_1-3_2_breakpoint.ckpt:mindspore2 -> is mindspore dying-gasp step 17
    at-one-time
        as it is -> net_1-2_3.ckpt +mtime-not-kept
        as it is | order=step -> is mindspore periodic step 15
    untold
        as it is -> net_1-2_3.ckpt
    # --- MindCV's optimizer is written over beside weights that are kept: it is loaded with those that it was written with.
    mindcv
        as it is -> loads net-10_100.ckpt optim_net.ckpt => ok
        optim_net.ckpt:mindcvcut10=; at optim_net.ckpt -1 -> net-10_100.ckpt +passed-over ~passed-over
        cut net-10_100.ckpt -> net-9_100.ckpt -missing-rank -truncated +passed-over ~passed-over
    # --- RLlib: a tree of small pickles below a directory of any name.
    algorithm slow
        as it is -> iter_2 => ok
        rm iter_2/{rllib_checkpoint.json,algorithm_state.pkl,class_and_ctor_args.pkl,env_runner/state.pkl,learner_group/learner}
            -> iter_1 -missing-part
        rm iter_2/rllib_checkpoint.json; rm iter_2/algorithm_state.pkl; rm iter_2/class_and_ctor_args.pkl
            -> iter_1 -missing-part
        # Times of a copy: the algorithm counts its iterations; where it does not, the names contradict the times.
        at iter_1 1 -> exit 2 order/times-mute
        iter_1/algorithm_state.pkl:iteration iter_2/algorithm_state.pkl:iteration; at iter_2 1; at iter_1 2
            -> is ray periodic step 2
    planted
        # A policy is no run of its own, and an empty state is in every save.
        iter_1/:policies iter_2/:policies -> iter_2 => ok
        PPO_0_0/checkpoint_000001/:policies PPO_0_0/checkpoint_000002/:policies -> PPO_0_0/checkpoint_000002
        iter_1/:rllib iter_1/learner_group/state.pkl:nostate= iter_2/:rllib iter_2/learner_group/state.pkl:nostate=
            -> iter_2
    # ColossalAI's examples (examples/community/llama/pretrain.py).
    examples slow
        as it is | order=step -> epoch1-step4 => ok
        rm epoch1-step4/{optimizer/pytorch_optim-00001.bin,lr_scheduler} | order=step -> epoch1-step2 -missing-part
        rm epoch1-step4/running_states.json | order=step -> epoch1-step2 +unfinished-save
    # --- What several ModelCheckpoint callbacks of one Trainer save into one directory.
    # Lightning's ModelCheckpoint, twice: by steps, and at the end of an epoch or for the best.
    end
        as it is -> end-epoch=4.ckpt => ok
        {cut,empty,rm} end-epoch=4.ckpt -> loads epoch=3-step=30.ckpt
        end-epoch=4.ckpt:lightmodel40= -> epoch=3-step=30.ckpt +passed-over
        then cut epoch=3-step=30.ckpt -> epoch=2-step=20.ckpt -truncated +passed-over
    best
        as it is -> best-epoch=4-step=40.ckpt => ok
        {cut,empty,rm} best-epoch=4-step=40.ckpt -> loads epoch=3-step=30.ckpt
        best-epoch=4-step=40.ckpt:lightmodel40= -> epoch=3-step=30.ckpt +passed-over
        then cut epoch=3-step=30.ckpt -> epoch=2-step=20.ckpt -truncated +passed-over
    last
        as it is -> last.ckpt => ok
        {cut,empty,rm} last.ckpt -> loads epoch=3-step=30.ckpt
        last.ckpt:lightmodel40= -> epoch=3-step=30.ckpt +passed-over
        then cut epoch=3-step=30.ckpt -> epoch=2-step=20.ckpt -truncated +passed-over
    run-end
        as it is -> end-epoch=4.ckpt => ok
        {cut,empty,rm} end-epoch=4.ckpt -> loads run-epoch=3-step=30.ckpt
    part-best
        as it is -> best-val-epoch=4-step=40.ckpt => ok
        {cut,empty,rm} best-val-epoch=4-step=40.ckpt -> loads epoch=3-part.ckpt
    # A run that starts from scratch in a directory renews last-v1.ckpt; an old one that was put back is seen.
    again
        as it is -> epoch=2-step=20.ckpt => ok
        rm last-v1.ckpt; last.ckpt:lightning10@30 -> epoch=2-step=20.ckpt => suspect step-mismatch
    # --- Files of ranks under names that training loops give: which checkpoint is planned.
    planted
        # Flat in one directory; what of the newest is gone loses all of it.
        step_10_rank_0.pt:model100 step_10_rank_1.pt:model101= step_20_rank_0.pt:model200 step_20_rank_1.pt:model201=
            -> loads step_20_rank_0.pt step_20_rank_1.pt
        then rm step_20_rank_1.pt -> loads step_10_rank_0.pt step_10_rank_1.pt
        rank0_step10.pt:model100 rank1_step10.pt:model101= rank0_step20.pt:model200 rank1_step20.pt:model201=
            -> loads rank0_step20.pt rank1_step20.pt
        then rm rank1_step20.pt -> loads rank0_step10.pt rank1_step10.pt
        model_10.rank0.pt:model100 model_10.rank1.pt:model101= model_20.rank0.pt:model200 model_20.rank1.pt:model201=
            -> loads model_20.rank0.pt model_20.rank1.pt
        then rm model_20.rank1.pt -> loads model_10.rank0.pt model_10.rank1.pt
        iter_0000010.rank-0.bin:model100 iter_0000010.rank-1.bin:model101= iter_0000020.rank-0.bin:model200;
            iter_0000020.rank-1.bin:model201= -> loads iter_0000020.rank-0.bin iter_0000020.rank-1.bin
        epoch_1_rank_0.pt:model100 epoch_1_rank_1.pt:model101= epoch_2_rank_0.pt:model200 epoch_2_rank_1.pt:model201=
            -> loads epoch_2_rank_0.pt epoch_2_rank_1.pt
        # A model for all beside the optimizers of ranks.
        model_10.pt:model optim_10_rank0.pt:optimizer10= optim_10_rank1.pt:optimizer10= model_20.pt:model;
            optim_20_rank0.pt:optimizer20= optim_20_rank1.pt:optimizer20=
            -> loads model_20.pt optim_20_rank0.pt optim_20_rank1.pt
        then rm model_20.pt -> loads model_10.pt optim_10_rank0.pt optim_10_rank1.pt
        # Numbers that count as ranks do, from 0 without a gap, in directories of later steps than there are ranks.
        step_10/checkpoint_0.pt:whole10 step_20/checkpoint_0.pt:whole20 -> loads step_20/checkpoint_0.pt
        step_10/checkpoint_0.pt:model100 step_10/checkpoint_1.pt:model101= step_20/checkpoint_0.pt:model200;
            step_20/checkpoint_1.pt:model201= -> loads step_20/checkpoint_0.pt step_20/checkpoint_1.pt
        then rm step_20/checkpoint_1.pt -> step_10 -missing-rank +world-size-inferred
        # Directories of ranks, and files of a grid (Picotron's).
        rank0/step10.pt:model100 rank1/step10.pt:model101= rank0/step20.pt:model200 rank1/step20.pt:model201=
            -> loads rank0/step20.pt rank1/step20.pt
        then rm rank0/step20.pt -> loads rank0/step10.pt rank1/step10.pt
        rank_0/model_epoch_1.pt:model100 rank_0/optim_epoch_1.pt:optimizer1= rank_1/model_epoch_1.pt:model101=;
            rank_1/optim_epoch_1.pt:optimizer1= rank_0/model_epoch_2.pt:model200 rank_0/optim_epoch_2.pt:optimizer2=;
            rank_1/model_epoch_2.pt:model201= rank_1/optim_epoch_2.pt:optimizer2=
                -> loads rank_0/model_epoch_2.pt rank_0/optim_epoch_2.pt rank_1/model_epoch_2.pt rank_1/optim_epoch_2.pt
        then rm rank_0/optim_epoch_2.pt -> epoch 1 -missing-rank +world-size-inferred
    picotron
        as it is -> 20
        rm 20/weights_tp_rank_world_size=0_2_pp_rank_world_size=0_1.pth -> 10 -missing-rank
    # The name of a run may stand before the step, and 10 comes after 8.
    runs slow
        as it is
            -> loads draft-step10/training_state.pt draft-step10/training_state_rank0.pt draft-step10/training_state_rank1.pt
        rm draft-step10/training_state.pt -> draft-step8 -missing-part +world-size-inferred => broken missing-part
    # --- Saves of one step in two places: copies of each other, or of two attempts, between which no name chooses.
    # Of two attempts the later is loaded; a copy is no question, and neither is a damaged one.
    planted
        global_step5/:zero global_step10/:zero step_10/:zeroagain -> step_10 +missing-tracker
        global_step5/:zero global_step10/:zero step_10/:zero= -> global_step10 +missing-tracker
        global_step5/:zero global_step10/:zero step_10/:zeroagain!= -> global_step10 +missing-tracker
        step-10/:dcp step-20/:dcp step_20/:dcpagain -> step_20
        step-10/:dcp step-20/:dcp step_20/:dcp= -> step-20
        step-10/:dcp step-20/:dcp step_20/:dcpagain!= -> step-20
        checkpoints/epoch=0-step=4.ckpt:lightning checkpoints/on_exception.ckpt:crashed7 crash/on_exception.ckpt:crashed9
            -> crash/on_exception.ckpt
        checkpoints/epoch=0-step=4.ckpt:lightning checkpoints/on_exception.ckpt:crashed7 crash/on_exception.ckpt:crashed7=
            -> checkpoints/on_exception.ckpt
        checkpoints/epoch=0-step=4.ckpt:lightning checkpoints/on_exception.ckpt:crashed7 crash/on_exception.ckpt:crashed9!=
            -> checkpoints/on_exception.ckpt -truncated
        net-1_2.ckpt:told net-1_4.ckpt:told net-2_3_breakpoint.ckpt:gasp0 b/net-2_3_breakpoint.ckpt:gasp5
            -> b/net-2_3_breakpoint.ckpt
        net-1_2.ckpt:told net-1_4.ckpt:told net-2_3_breakpoint.ckpt:gasp0 b/net-2_3_breakpoint.ckpt:gasp0{,=}
            -> b/net-2_3_breakpoint.ckpt
        net-1_2.ckpt:told net-1_4.ckpt:told net-2_3_breakpoint.ckpt:gasp0 b/net-2_3_breakpoint.ckpt:gasp5!=
            -> net-2_3_breakpoint.ckpt -missing-rank -truncated
    # --- Files of one step under several names, of which a framework loads one: copies of each other, or other models.
    planted
        # Of other weights none is chosen in silence, whatever the order.
        encoder.ckpt:one decoder.ckpt:{values,shapes,keys}= -> exit 2 save/mixed-counters
        then as it is | order=step -> exit 2 save/mixed-counters
        then as it is | order=mtime -> exit 2 save/mixed-counters
        then as it is | exclude=decoder.ckpt -> encoder.ckpt
        epoch=1-step=20.ckpt:one epoch=1-step=20_b.ckpt:{values,shapes,keys} -> exit 2 save/mixed-counters
        then as it is | exclude=epoch=1-step=20_b.ckpt -> epoch=1-step=20.ckpt
        model-val_loss=0.42.ckpt:{values,shapes,keys} model-val_loss=0.31.ckpt:one -> exit 2 save/mixed-counters
        epoch=1-step=20.ckpt:one last.ckpt:{values,shapes,keys}= -> exit 2 save/mixed-counters
        then as it is | order=mtime -> exit 2 save/mixed-counters
        # Copies and a damaged one are no question.
        encoder.ckpt:one decoder.ckpt:{copy,one}= -> decoder.ckpt
        epoch=1-step=20.ckpt:one epoch=1-step=20_b.ckpt:{copy,one}= -> epoch=1-step=20.ckpt
        model-val_loss=0.31.ckpt:one model-val_loss=0.42.ckpt:{copy,one}= -> model-val_loss=0.31.ckpt
        epoch=1-step=20.ckpt:one last.ckpt:{copy,one}= -> epoch=1-step=20.ckpt
        epoch=1-step=20.ckpt:one last.ckpt:values!= -> epoch=1-step=20.ckpt -truncated +mtime-not-kept
    # --- What only several files together show: MindFormers' records, replicas that stand out, files pruned
    # rank by rank.
    job
        # --- MindFormers' records
        put rank_0/meta.json {"last_epoch": 1, "last_step": 40, "last_ckpt_file": "net-1_40.ckpt"};
            put rank_1/meta.json {"last_epoch": 1, "last_step": 40, "last_ckpt_file": "net-1_40.ckpt"};
            put resume_record/latest_checkpointed_iteration.txt net-1_40.ckpt
            -> step 40 +world-size-inferred => ok
        put rank_1/meta.json [1] -> step 40 +world-size-inferred => suspect bad-tracker
        put rank_1/meta.json {"last_epoch": 1, "last_step": "40", "last_ckpt_file": "net-1_40.ckpt"}
            -> step 40 +world-size-inferred => suspect bad-tracker
        put rank_1/meta.json {"last_epoch": 1, "last_step": 40, "last_ckpt_file": "../net-1_40.ckpt"}
            -> step 40 +world-size-inferred => suspect bad-tracker
        put rank_1/meta.json {"last_epoch": 1, "last_step": 10, "last_ckpt_file": "net-1_40.ckpt"}
            -> step 40 +world-size-inferred => suspect bad-tracker
        put rank_1/meta.json {"last_epoch": 1, "last_step": 50, "last_ckpt_file": "net-1_50.ckpt"}
            -> step 40 +world-size-inferred => suspect dangling-tracker
        rank_1/meta.json:empty -> step 40 +world-size-inferred => suspect bad-tracker
        # Ranks that note different steps.
        put rank_0/meta.json {"last_epoch": 1, "last_step": 40, "last_ckpt_file": "net-1_40.ckpt"};
            put rank_1/meta.json {"last_epoch": 1, "last_step": 10, "last_ckpt_file": "net-1_10.ckpt"}
            -> step 40 +world-size-inferred => suspect step-mismatch
        # The decision of all ranks; a MindSpore name has no global step: any number may be right.
        put resume_record/latest_checkpointed_iteration.txt net-1_50.ckpt
            -> step 40 +world-size-inferred => suspect dangling-tracker
        put resume_record/latest_checkpointed_iteration.txt {20,999} -> step 40 +world-size-inferred => ok
        resume_record/latest_checkpointed_iteration.txt:empty
            -> step 40 +world-size-inferred => suspect bad-tracker
        # --- What a rank has pruned: it keeps two, and the other has not come to it. Else one was lost.
        rm rank_1/net-1_10.ckpt -> step 40 +world-size-inferred => suspect missing-rank
        rm rank_1/net-1_20.ckpt -> step 40 +world-size-inferred => broken missing-rank
        rm rank_1/net-1_10.ckpt; rm rank_1/net-1_20.ckpt
            -> step 40 +world-size-inferred => suspect missing-rank
        # A gasp of another layout: what is usual for one is unknown to the other.
        tft_saved_checkpoints-step_50/rank_0/ttp_rank_0-1_50.ckpt:mindspore50;
            tft_saved_checkpoints-step_50/rank_1/ttp_rank_1-1_50.ckpt:mindspore50=
            -> tft_saved_checkpoints-step_50 +world-size-inferred
    deep
        as it is -> step 40 +world-size-inferred => suspect bad-tracker
    megatron/tp/iter_0000020
        # Asked about one checkpoint, nobody has looked where its tracker would be.
        as it is -> step 20 => ok
    planted
        # A lone damaged file is not nothing.
        last.ckpt:zeros | allow_none=yes -> exit 4 choice/unplaced-newer +no-layout
        # Of replicas one of another size stands out; of two none does.
        rank_0/checkpoint.pth.tar:epoch3 rank_1/checkpoint.pth.tar:epoch3= rank_2/checkpoint.pth.tar:epoch3=
            -> epoch 3 +world-size-inferred => ok
        rank_0/checkpoint.pth.tar:epoch3 rank_1/checkpoint.pth.tar:epoch3= rank_2/checkpoint.pth.tar:lightning30=
            -> exit 4 choice/none-usable -missing-rank -replica-mismatch +mtime-not-kept +world-size-inferred => ok
        # Without a file to load.
        5/_CHECKPOINT_METADATA:json 5/commit_success.txt -> exit 4 choice/none-usable -missing-part
    # --- Files of one step that two attempts wrote are never planned together.
    planted
        # A job went back from a damaged save, and died as it saved that step again under the same names.
        checkpoint-10/:halves checkpoint-15/:halves -> checkpoint-15 => ok
        then at checkpoint-15/model.pt 1 -> checkpoint-15 => ok
        then at checkpoint-15/model.pt 140 -> checkpoint-15 +mixed-attempts => suspect mixed-attempts
        checkpoint-10/:trainer checkpoint-15/:trainer -> checkpoint-15 => ok
        then at checkpoint-15/model.safetensors 1 -> checkpoint-15 => ok
        then at checkpoint-15/model.safetensors 140 -> checkpoint-15 +mixed-attempts => suspect mixed-attempts
        checkpoint-10/:dcp checkpoint-15/:dcp -> checkpoint-15 => ok
        then at checkpoint-15/__0* 1 -> checkpoint-15 => ok
        then at checkpoint-15/__0* 140 -> checkpoint-15 +mixed-attempts => suspect mixed-attempts
        # MindSpore counts restarts in the names: a step of which one rank's file is of the next restart, hours later,
        # was not saved at once.
        rank_0/net-1_10.ckpt:mindspore rank_1/net-1_10.ckpt:mindspore= rank_0/net-1_20.ckpt:mindspore;
            rank_1/net-1_20.ckpt:mindspore= rank_0/net-1_30.ckpt:mindspore;
            rank_1/net_1-1_30.ckpt:mindspore@240 -> step 20 -missing-rank +world-size-inferred
    planted
        # One bit in one of two files of a step is no question.
        step_10.pt step_20.pt step_30.pt last.pt:whole30=; flip last.pt 1030 -> step_30.pt +crc-mismatch
        step_10.pt step_20.pt step_30.pt last.pt:whole30=; flip step_30.pt 1030 -> last.pt +crc-mismatch
        epoch=1-step=20.ckpt:named epoch=1-step=30.ckpt:named last.ckpt:named30=; flip last.ckpt 1030
            -> epoch=1-step=30.ckpt +crc-mismatch
        epoch=1-step=20.ckpt:named epoch=1-step=30.ckpt:named last.ckpt:named30=; flip epoch=1-step=30.ckpt 1030
            -> last.ckpt +crc-mismatch
    # --- Of a model that many ranks train the newest save is planned if it has what its loader opens.
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
    picotron=(
        "planted",
        " ".join(f"{n}/{GRID.format(r)}:model{n}{r}{'=' * r}" for n in (10, 20) for r in (0, 1)),
    ),
    examples=(
        "colossalai/booster",
        of_steps(
            "2 4",
            """
            mv epoch-1_step-@ epoch1-step@
            mv epoch1-step@/modeling epoch1-step@/model
            """,
        ),
    ),
    **MADE,
)


@pytest.mark.parametrize(("tree", "asked"), TREES)
def test_what_is_answered_about_saves_of_a_framework(
    tree: str | Made, asked: list[Question], tmp_path: Path
) -> None:
    hold(tree, asked, tmp_path)


def test_what_rllib_makes_its_parts_from_is_known(tmp_path: Path) -> None:
    """Its configurations are pickled as objects."""
    change(tmp_path, "iter_1/:rllib iter_2/:rllib")
    known = "cray.rllib.algorithms.ppo.ppo\nPPOConfig\n)\x81cray.rllib.core.rl_module.multi_rl_module\nMultiRLModuleSpec\n)\x81"
    for more, told in (("", set()), ("cray.rllib.algorithms.evil\nrun\n)\x81", {"suspect-call"})):
        for home in ("iter_1", "iter_2"):
            rewrite(
                tmp_path / home / RLLIB[2], lambda _, more=more: f"\x80\x02({known}{more}t.".encode("latin-1")
            )  # type: ignore[misc]
        assert {f.code for f in plan(tmp_path).warnings} == told


def test_the_hint_says_which_to_leave_out(tmp_path: Path) -> None:
    plant(tmp_path, "encoder.ckpt:one decoder.ckpt:values=")
    with pytest.raises(UsageError, match="hold other weights") as raised:
        plan(tmp_path)
    assert "--exclude decoder.ckpt to resume from encoder.ckpt" in raised.value.hint
