"""OpenRLHF's PPO trainer: DeepSpeed's directories of the actor in ``_actor/global_stepN``, of the critic in
``_critic/global_stepN``, and ``latest`` in both. They are one checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ckpt_tools.layouts import deepspeed
from ckpt_tools.layouts.common.layout import Complete, Layout, Tracker
from ckpt_tools.layouts.common.piece import Piece, Where, nest
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw
from ckpt_tools.model.part import Kind
from ckpt_tools.model.plan import Resume

WORKERS = ("actor", "critic")


def _resume(checkpoint: Checkpoint, _path: str | None) -> Resume:
    return Resume(checkpoint.parts[0].base)


def _read_latest(data: bytes, _base: str) -> str | None:
    return deepspeed.read_tracker(data)


def _tracked(checkpoint: Checkpoint) -> str:
    """The tag, which is that of the actor's directory and of the critic's."""
    return checkpoint.parts[0].path.split("/")[-2]


def _lost(c: Checkpoint, _beside: Sequence[Checkpoint]) -> Iterator[Flaw]:
    for worker in WORKERS:
        yield from deepspeed.without_model(c, mark=f"_{worker}")


def _pieces() -> Iterator[Piece]:
    for worker in WORKERS:
        for tag, mark, kind in (("global_step", "", Kind.PERIODIC), ("best_global_step", "_best", Kind.BEST)):
            for piece in nest(f"_{worker}/{tag}{{step}}", deepspeed.PIECES, f"_{worker}{mark}"):
                role = piece.role if worker == "actor" else f"critic_{piece.role}"
                yield replace(piece, role=role, kind=kind, where=Where.APART)


LAYOUT = Layout(
    name="openrlhf",
    title="OpenRLHF PPO",
    pieces=tuple(_pieces()),
    resume=_resume,
    steps=deepspeed.LAYOUT.steps,
    check=deepspeed.LAYOUT.check,
    tracker=Tracker(others=tuple((f"_{worker}/latest", _read_latest) for worker in WORKERS), name=_tracked),
    complete=Complete(needs=("model",)),
    lost=_lost,
    reference=(
        "openrlhf/trainer/ppo_trainer.py save_logs_and_checkpoints, trainer/ray/ppo_actor.py and "
        "ppo_critic.py save_checkpoint, utils/deepspeed/deepspeed.py save_ckpt"
    ),
    limits=(
        (
            "the trainer loads what latest in _actor and in _critic names, and not the plan: write both where"
            " they name another save"
        ),
        "a lone checkpoint without a critic may be of an algorithm that has none",
    ),
)
