"""OpenRLHF's PPO trainer: DeepSpeed's directories of the actor in ``_actor/global_stepN``, of the critic in
``_critic/global_stepN``, and ``latest`` in both. They are one checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ckpt_tools.findings import finding
from ckpt_tools.layouts import deepspeed
from ckpt_tools.layouts.common.layout import Layout, Piece
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.notes import Notes
from ckpt_tools.model.part import Kind
from ckpt_tools.model.plan import Resume

WORKERS = ("actor", "critic")


def _resume(checkpoint: Checkpoint, _path: str | None) -> Resume:
    return Resume(checkpoint.parts[0].base)


def _crosscheck(checkpoints: Sequence[Checkpoint], notes: Notes) -> Iterator[Finding]:
    """What ``latest`` of each worker names, of which OpenRLHF loads each by itself."""
    newest = max(checkpoints, key=lambda c: c.order)
    for worker in WORKERS:
        tags = {p.path.split("/")[-2] for p in newest.parts if f"/_{worker}/" in p.path}
        path = f"{newest.parts[0].base}/_{worker}/latest"
        said = notes.read(path, 255) if tags else None
        if isinstance(said, Finding):
            yield said
        elif said is not None and (named := deepspeed.read_tracker(said)) not in tags:
            text = f"it names {named or 'nothing'}, and the newest checkpoint is {', '.join(sorted(tags))}"
            yield finding("stale-tracker", text, path=path)


def _lost(c: Checkpoint, _beside: Sequence[Checkpoint]) -> Iterator[Finding]:
    for worker in WORKERS:
        yield from deepspeed.without_model(c, mark=f"_{worker}")


def _pieces() -> Iterator[Piece]:
    for worker in WORKERS:
        for tag, mark, kind in (("global_step", "", Kind.PERIODIC), ("best_global_step", "_best", Kind.BEST)):
            for piece in deepspeed.pieces(f"_{worker}/{tag}{{step}}", f"_{worker}{mark}"):
                role = piece.role if worker == "actor" else f"critic_{piece.role}"
                yield replace(piece, role=role, kind=kind, apart=True)


LAYOUT = Layout(
    name="openrlhf",
    title="OpenRLHF PPO",
    pieces=tuple(_pieces()),
    resume=_resume,
    steps=deepspeed.LAYOUT.steps,
    check=deepspeed.LAYOUT.check,
    crosscheck=_crosscheck,
    lost=_lost,
    needs=("model",),
    reference=(
        "openrlhf/trainer/ppo_trainer.py save_logs_and_checkpoints, trainer/ray/ppo_actor.py and "
        "ppo_critic.py save_checkpoint, utils/deepspeed/deepspeed.py save_ckpt"
    ),
    limits=(
        (
            "the trainer loads what latest in _actor and in _critic names, and not the plan: write both where"
            " they differ"
        ),
        "a lone checkpoint without a critic may be of an algorithm that has none",
    ),
)
