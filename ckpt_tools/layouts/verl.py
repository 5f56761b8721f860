"""What verl's FSDP workers save: ``global_step_N/actor/model_world_size_W_rank_R.pt``, the optimizer and the
other state of each rank, ``critic/`` beside it, and the data loader's ``data.pt``, which is written last. A
trainer of one model saves its files without a directory.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_tools.layouts.common.layout import Layout, Piece
from ckpt_tools.layouts.megatron import read_tracker
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.plan import Resume

FORMATS = ("torch_zip", "torch_legacy")
_HOME = "global_step_{step}"


def _resume(checkpoint: Checkpoint, _path: str | None) -> Resume:
    """The trainer's own overrides: a path alone is not looked at without the mode."""
    path = checkpoint.path
    return Resume(path, ("trainer.resume_mode=resume_path", f"trainer.resume_from_path={path}"))


def _pieces() -> Iterator[Piece]:
    for place, worker, mark in (("actor/", "", ""), ("critic/", "critic_", ""), ("", "", "_alone")):
        for name, role in (("model", "model"), ("optim", "optimizer"), ("extra_state", "rng")):
            yield Piece(
                f"{worker}{name}{mark}",
                f"{worker}{role}",
                f"{_HOME}/{place}{name}_world_size_{{world}}_rank_{{rank}}.pt",
                FORMATS,
                sharded=True,
                unasked=True,
            )
        config = f"{_HOME}/{place}fsdp_config.json"
        yield Piece(f"{worker}config{mark}", "config", config, ("json_member",), required=False, loaded=False)
    yield Piece("data", "data", f"{_HOME}/data.pt", FORMATS, shared=True, unasked=True)


LAYOUT = Layout(
    name="verl",
    title="verl FSDP workers",
    pieces=tuple(_pieces()),
    resume=_resume,
    tracker="latest_checkpointed_iteration.txt",
    read_tracker=read_tracker,
    always_tracked=False,
    commit="data",
    needs=("model",),
    own_files=True,  # FSDPCheckpointManager.load_checkpoint: torch.load of its own three, and nothing else
    reference=(
        "verl/utils/checkpoint/fsdp_checkpoint_manager.py save_checkpoint; verl/trainer/ppo/ray_trainer.py "
        "_save_checkpoint (actor, critic, data.pt, then the tracker), _load_checkpoint; "
        "verl/utils/checkpoint/checkpoint_manager.py find_latest_ckpt_path"
    ),
    limits=(
        "no file says the step: only its directory's name does",
        "each rank loads with weights_only=False, and only as many ranks as have saved can load",
        "Megatron workers (actor/dist_ckpt) are DCP directories of Megatron-core",
    ),
)
