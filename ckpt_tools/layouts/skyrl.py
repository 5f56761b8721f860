"""What SkyRL's FSDP workers save: ``global_step_N/policy/model_world_size_W_rank_R.pt``, the optimizer and
the other state of each rank, ``critic/`` beside it, ``data.pt`` and ``trainer_state.pt``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ckpt_tools.layouts.common.counters import named_steps
from ckpt_tools.layouts.common.layout import Layout, Piece, whole
from ckpt_tools.layouts.dcp import read_number
from ckpt_tools.layouts.verl import FORMATS
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.report import Report

_HOME = "global_step_{step}"


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Finding]]:
    told = [row for row in parts if row[0].role == "trainer"]
    yield from named_steps(told, lambda m: whole(m.get("global_step")), "global_step")


def _resume(checkpoint: Checkpoint, _path: str | None) -> Resume:
    path = checkpoint.path
    return Resume(path, ("trainer.resume_mode=from_path", f"trainer.resume_path={path}"))


def _pieces() -> Iterator[Piece]:
    """Only ``policy/`` is SkyRL's alone: verl's saves have all other names as well."""
    for place, worker in (("policy", ""), ("critic", "critic_")):
        for name, role in (("model", "model"), ("optim", "optimizer"), ("extra_state", "rng")):
            template = f"{_HOME}/{place}/{name}_world_size_{{world}}_rank_{{rank}}.pt"
            piece = Piece(f"{worker}{name}", f"{worker}{role}", template, FORMATS, sharded=True, unasked=True)
            yield replace(piece, companion=bool(worker), inside=bool(worker))
        config = f"{_HOME}/{place}/fsdp_config.json"
        described = Piece(f"{worker}config", "config", config, ("json_member",), required=False, loaded=False)
        yield replace(described, companion=True, inside=True)
    for name, file in (("data", "data"), ("trainer", "trainer_state")):
        shared = Piece(name, name, f"{_HOME}/{file}.pt", FORMATS, shared=True, unasked=True)
        yield replace(shared, companion=True, inside=True)


LAYOUT = Layout(
    name="skyrl",
    title="SkyRL FSDP workers",
    pieces=tuple(_pieces()),
    resume=_resume,
    check=_check,
    tracker="latest_ckpt_global_step.txt",
    read_tracker=read_number,
    always_tracked=False,
    commit="trainer",
    needs=("model",),
    reference=(
        "skyrl/train/trainer.py save_checkpoints (policy, critic, data.pt, trainer_state.pt, the tracker), "
        "load_checkpoints; skyrl/backends/skyrl_train/distributed/fsdp_strategy.py save_checkpoint"
    ),
    limits=(
        "of the files only trainer_state.pt says the step",
        "each rank loads with weights_only=False, and only as many ranks as have saved can load",
        "data.pt is written where the loader has a state: it is missed only beside saves that have it",
    ),
)
