"""Hugging Face Trainer: ``checkpoint-N/`` with the model, ``optimizer.pt``, ``scheduler.pt``,
RNG states and, written last, ``trainer_state.json``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpt_tools.layouts import dcp, deepspeed
from ckpt_tools.layouts.common.counters import borrowed, named_steps
from ckpt_tools.layouts.common.layout import Layout, Metadata, Piece, Steps, whole
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.report import Report

TORCH = ("torch_zip", "torch_legacy")
ST = ("safetensors",)
HOME = "checkpoint-{step}"


def _steps(part: Part, _metadata: Metadata) -> Steps:
    return part.step, part.epoch, None


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Finding]]:
    yield from named_steps(
        [row for row in parts if row[0].piece == "state"],
        lambda m: whole(m.get("global_step")),
        "global_step",
    )
    yield from borrowed(parts, {"scheduler": ("last_epoch",), "optimizer": ("optimizer_step",)})


def _resume(checkpoint: Checkpoint, _path: str | None) -> Resume:
    return Resume(checkpoint.path, ("--resume_from_checkpoint", checkpoint.path))


def model_pieces(home: str) -> Iterator[Piece]:
    """A model as ``save_pretrained`` writes it, whole or in shards that an index names."""
    for name, prefix in (("model", "model"), ("adapter", "adapter_model")):
        yield Piece(name, "model", f"{home}/{prefix}.safetensors", ST, shared=True, companion=True)
        yield Piece(
            f"{name}_shard",
            "model",
            f"{home}/{prefix}-{{shard:05d}}-of-{{of:05d}}.safetensors",
            ST,
            shared=True,
            companion=True,
        )
        yield Piece(
            f"{name}_index",
            "model_index",
            f"{home}/{prefix}.safetensors.index.json",
            ("safetensors_index",),
            shared=True,
            companion=True,
        )
    for name, prefix in (("bin", "pytorch_model"), ("adapter_bin", "adapter_model")):
        yield Piece(name, "model", f"{home}/{prefix}.bin", TORCH, shared=True, companion=True)
        yield Piece(
            f"{name}_shard",
            "model",
            f"{home}/{prefix}-{{shard:05d}}-of-{{of:05d}}.bin",
            TORCH,
            shared=True,
            companion=True,
        )
        yield Piece(
            f"{name}_index",
            "model_index",
            f"{home}/{prefix}.bin.index.json",
            ("safetensors_index",),
            shared=True,
            companion=True,
        )


def _pieces() -> Iterator[Piece]:
    yield Piece("state", "state", f"{HOME}/trainer_state.json", ("json_member",), shared=True)
    yield from model_pieces(HOME)
    yield Piece("optimizer", "optimizer", f"{HOME}/optimizer.<pt|bin>", TORCH, shared=True)
    yield Piece("scheduler", "scheduler", f"{HOME}/scheduler.pt", TORCH, shared=True)
    yield Piece("scaler", "scaler", f"{HOME}/scaler.pt", TORCH, shared=True, required=False)
    yield Piece("rng", "rng", f"{HOME}/rng_state.pth", TORCH, shared=True, survivable=True)
    yield Piece(
        "rng_rank", "rng", f"{HOME}/rng_state_{{rank}}.pth", TORCH, shared=True, sharded=True, survivable=True
    )
    yield Piece("args", "args", f"{HOME}/training_args.bin", TORCH, shared=True, loaded=False)
    yield Piece(
        "config",
        "config",
        f"{HOME}/<config|adapter_config>.json",
        ("json_member",),
        shared=True,
        companion=True,
        loaded=False,
    )
    yield Piece(
        "tokenizer",
        "tokenizer",
        f"{HOME}/<generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|preprocessor_config>.json",
        (),
        shared=True,
        companion=True,
        required=False,
        loaded=False,
    )
    yield Piece(
        "tmp", "model", "tmp-checkpoint-{step}/{name}", (), shared=True, unfinished=True
    )  # transformers 4.3x staged there
    for top, role in (("pytorch_model_fsdp", "model"), ("optimizer", "optimizer")):
        for piece in dcp.pieces(f"{HOME}/{top}_{{node}}", f"_{top}"):
            index = piece.role == "metadata"
            yield Piece(
                piece.name,
                f"fsdp_{role}_index" if index else role,
                piece.template,
                piece.formats,
                shared=True,
                required=index,
            )
    yield from deepspeed.pieces(f"{HOME}/global_step{{step}}", "_deepspeed")


LAYOUT = Layout(
    name="hf-trainer",
    title="Hugging Face Trainer",
    pieces=tuple(_pieces()),
    resume=_resume,
    steps=_steps,
    check=_check,
    commit="state",
    needs=("model",),
    tracker="dlrover_latest.txt",
    read_tracker=dcp.read_number,
    always_tracked=False,
    reshardable=True,
    reference=(
        "transformers/trainer.py _save_checkpoint: model, optimizer, scheduler, RNG, then "
        "trainer_state.json; no temporary directory"
    ),
    limits=(
        (
            "only trainer_state.json carries the step; a model or random numbers of another save with the"
            " same shapes are seen only while that save is there"
        ),
        (
            "with save_only_model there is no optimizer, and that is no damage unless other checkpoints of"
            " the run have one"
        ),
    ),
)
