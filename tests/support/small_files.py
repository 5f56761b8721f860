"""The smallest files that frameworks would write, as bytes: real torch.save, safetensors and DCP, and small
writers of MindSpore's and TensorFlow's formats.
"""

from __future__ import annotations

import io
import json
import struct
import sys
import tempfile
import warnings
import zlib
from argparse import Namespace
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as saver
from mindspore_writer import record
from places import FIXTURES
from safetensors.torch import save as safetensors_save

from ckpt_tools.checksum.combine import crc32c

sys.path.insert(0, str(FIXTURES))
import make_tensorflow as tf

PAYLOAD = b"\x3f\x9d\xf3\x36" * 8
"""What every tensor here begins with: where it is, a stored checksum covers the bytes, in formats that have
one.
"""


def payload(*seed: float) -> bytes:
    """Twelve floats, others for every ``seed``: training moves on between two saves."""
    return PAYLOAD + struct.pack("<4f", *(*seed, 0.5, 0.5, 0.5, 0.5)[:4])


def tensor(*seed: float, shape: tuple[int, ...] = (3, 4)) -> torch.Tensor:
    return torch.frombuffer(bytearray(payload(*seed)), dtype=torch.float32).reshape(shape).clone()


def saved(state: Any) -> bytes:
    """``torch.save`` through a buffer, as most frameworks do."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def adam(step: int) -> dict[str, Any]:
    return {
        "state": {0: {"step": torch.tensor(float(step)), "exp_avg": tensor(step, 1)}},
        "param_groups": [{"lr": 0.001, "params": [0]}],
    }


def megatron_state(step: int, rank: int, tp: int, pp: int, world: int, model: object) -> dict[str, Any]:
    sizes = {"tensor_model_parallel_size": tp, "pipeline_model_parallel_size": pp}
    args = Namespace(world_size=world, rank=rank, iteration=step, **sizes)
    return {"args": args, "checkpoint_version": 3.0, "iteration": step, "model": model}


@cache
def megatron(step: int, rank: int, tp: int, pp: int, world: int) -> bytes:
    model = {"w": tensor(step, rank), "b": tensor(step, rank, 1, shape=(12,))}
    return saved(megatron_state(step, rank, tp, pp, world, model))


@cache
def megatron_optimizer(step: int, rank: int) -> bytes:
    flat = {"param": tensor(step, rank, 2, shape=(12,)), "exp_avg": tensor(step, rank, 3, shape=(12,))}
    return saved({0: {torch.float32: flat}})


@cache
def megatron_common(step: int, world: int) -> bytes:
    args = Namespace(world_size=world, iteration=step)
    state = {"args": args, "checkpoint_version": 3.0, "iteration": step}
    return saved({**state, "opt_param_scheduler": {"num_steps": step}})


@cache
def deepspeed_model(step: int, dp: int, mp: int, m: int) -> bytes:
    steps = {"skipped_steps": 0, "global_steps": step, "global_samples": 8 * step}
    sizes = {"dp_world_size": dp, "mp_world_size": mp}
    return saved({"module": {"w": tensor(step, m)}, "optimizer": None, **steps, **sizes})


@cache
def deepspeed_zero(step: int, dp: int, rank: int) -> bytes:
    state = {
        "zero_stage": 1,
        "partition_count": dp,
        "base_optimizer_state": adam(step),
        "single_partition_of_fp32_groups": [tensor(step, rank, 4)],
    }
    return saved({"optimizer_state_dict": state, "ds_version": "0.19.8"})


def engine(step: int, world: int = 2, seed: int = 0) -> dict[str, bytes]:
    """A save of DeepSpeed's by so many data parallel ranks."""
    names = {rank: f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(world)}
    zero = {name: deepspeed_zero(step, world, rank) for rank, name in names.items()}
    return {"mp_rank_00_model_states.pt": deepspeed_model(step, world, 1, seed), **zero}


@cache
def lightning(epoch: int, step: int) -> bytes:
    told = {"epoch": epoch, "global_step": step, "pytorch-lightning_version": "2.6.6"}
    rest = {"loops": {}, "callbacks": {}, "optimizer_states": [adam(step)], "lr_schedulers": []}
    return saved({**told, "state_dict": {"w": tensor(step)}, **rest})


@cache
def sample(epoch: int) -> bytes:
    model, optimizer = {"w": tensor(epoch)}, adam(epoch)
    told = {"epoch": epoch, "arch": "resnet18"}
    return saved({**told, "state_dict": model, "best_acc1": 0.5, "optimizer": optimizer})


@cache
def trainer(step: int) -> Mapping[str, bytes]:
    """The files of a Trainer's checkpoint, in the order in which it writes them."""
    told = {"epoch": step / 10, "global_step": step, "max_steps": 100000}
    state = {**told, "num_train_epochs": 2, "log_history": []}
    model = {"w": tensor(step), "b": tensor(step, 1, shape=(12,))}
    random = {"python": (3, (0, step), None), "cpu": torch.full((16,), step % 251, dtype=torch.uint8)}
    return {
        "config.json": json.dumps({"architectures": ["Tiny"], "hidden_size": 4}, indent=2).encode() + b"\n",
        "model.safetensors": safetensors_save(model, {"format": "pt"}),
        "training_args.bin": saved({"output_dir": "out"}),
        "optimizer.pt": saved(adam(step)),
        "scheduler.pt": saved({"base_lrs": [0.001], "last_epoch": step, "_step_count": step + 1}),
        "rng_state.pth": saved(random),
        "trainer_state.json": json.dumps(state, indent=2, sort_keys=True).encode() + b"\n",
    }


@cache
def dcp(step: int, files: int = 2, key: str = "step", seed: float = 0.5) -> Mapping[str, bytes]:
    """A real save of one process with ``files`` threads, each with its own file; ``.metadata`` comes last."""
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that torch.distributed is not initialised is the point
        state = {"model": {f"w{i}": tensor(step, i, seed) for i in range(2 * files)}, key: step}
        saver.save(state, storage_writer=saver.FileSystemWriter(name, thread_count=files), no_dist=True)
        made = {p.name: p.read_bytes() for p in Path(name).iterdir()}
    return {**{k: made[k] for k in sorted(made) if k != ".metadata"}, ".metadata": made[".metadata"]}


@cache
def mindspore(crc: bool, shard: int, **entries: int) -> bytes:
    """A MindSpore .ckpt of model shard ``shard`` with ``entries`` as append_info writes them: rank-0 Int64."""
    seed = (entries["step_num"], shard)
    data = record("w", (3, 4), "Float32", payload(*seed)) + record("b", (12,), "Float32", payload(*seed, 1))
    data += b"".join(record(k, (), "Int64", n.to_bytes(8, "little")) for k, n in entries.items())
    return data + b"crc_num" + zlib.crc32(data).to_bytes(10, "big") if crc else data


@cache
def bundle(save: int, step: int) -> tuple[bytes, bytes]:
    """(data, index) of a TensorFlow checkpoint that tracks its step."""
    data, entries = b"", {}
    suffix = ".ATTRIBUTES/VARIABLE_VALUE"
    for name, dtype, dims, value in (
        (f"model/w/{suffix}", 1, [3, 4], payload(step)),
        (f"save_counter/{suffix}", 9, [], save.to_bytes(8, "little")),
        (f"step/{suffix}", 9, [], step.to_bytes(8, "little")),
    ):
        entries[name.encode()] = tf.entry(dtype, dims, len(data), len(value), tf.crc32c(value))
        data += value
    return data, tf.bundle(entries)


def _drawn_anew(manifest: bytes, number: int) -> bytes:
    """A manifest of OCDBT with other bytes, as each save has, and the same content: a frame of zstd that
    readers skip, the length and the CRC-32C.
    """
    body = manifest[12:-4] + struct.pack("<IIQ", 0x184D2A50, 8, number)
    data = manifest[:4] + struct.pack("<Q", len(body) + 16) + body
    return data + struct.pack("<I", crc32c(data))


@cache
def orbax(number: int) -> Mapping[str, bytes]:
    """A real checkpoint of Orbax 0.12.8; nothing in it tells its step. The commit files come last."""
    home = FIXTURES / "layouts" / "orbax" / "ocdbt" / "tree" / "ck" / "20"
    made = {str(p.relative_to(home)): p.read_bytes() for p in sorted(home.rglob("*")) if p.is_file()}
    made |= {k: _drawn_anew(v, number) for k, v in made.items() if k.endswith("manifest.ocdbt")}
    last = ("default/_METADATA", "default/commit_success.txt", "_CHECKPOINT_METADATA", "commit_success.txt")
    return {**{k: v for k, v in made.items() if k not in last}, **{k: made[k] for k in last}}
