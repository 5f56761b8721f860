"""OLMo-core's Checkpointer: ``stepN/`` with a distributed checkpoint in ``model_and_optim/``, a file of each
rank in ``train/``, and ``.metadata.json``, which is written last; ``stepN-tmp/`` until the tensors are saved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ckpt_tools.findings import finding
from ckpt_tools.layouts import dcp
from ckpt_tools.layouts.common.counters import named_steps
from ckpt_tools.layouts.common.layout import Layout, Piece, whole
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.report import Report

TORCH, JSON = ("torch_zip", "torch_legacy"), ("json_member",)


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Finding]]:
    """What each rank counted against the directory's name."""
    ranks = [row for row in parts if row[0].role == "trainer"]
    yield from named_steps(ranks, lambda m: whole(m.get("global_step")), "step")


def _lost(c: Checkpoint, _beside: Sequence[Checkpoint]) -> Iterator[Finding]:
    """Without the file of rank 0 the directory is no checkpoint for OLMo-core, whatever else is in it."""
    if not any(p.role == "trainer" and p.rank == 0 for p in c.parts):
        text = "there is no train/rank0.pt, without which OLMo-core does not take it for a checkpoint"
        yield finding("missing-part", text, path=c.path)


def _resume(checkpoint: Checkpoint, _path: str | None) -> Resume:
    return Resume(checkpoint.path)  # Trainer.load_checkpoint(dir)


def _pieces(home: str, mark: str) -> Iterator[Piece]:
    """A rank without a file loads that of rank 0."""
    for piece in dcp.pieces(f"{home}/model_and_optim", mark):
        yield replace(piece, role="index" if piece.role == "metadata" else "model")
    each = Piece(f"trainer{mark}", "trainer", f"{home}/train/rank{{rank}}.pt", TORCH, shared=True)
    yield replace(each, sharded=True, survivable=True, unasked=True)
    yield Piece(f"done{mark}", "done", f"{home}/.metadata.json", JSON, shared=True)
    config = Piece(f"config{mark}", "config", f"{home}/config.json", JSON, shared=True, companion=True)
    yield replace(config, inside=True, required=False, loaded=False)


LAYOUT = Layout(
    name="olmo-core",
    title="OLMo-core",
    pieces=(
        *_pieces("step{step}", ""),
        *(replace(piece, unfinished=True) for piece in _pieces("step{step}-tmp", "_tmp")),
    ),
    resume=_resume,
    check=_check,
    lost=_lost,
    commit="done",
    needs=("index",),
    reshardable=True,
    compare_steps=False,
    reference=(
        "ai2-olmo-core 3.0.0: olmo_core/train/checkpoint.py Checkpointer.save(), load(), "
        "dir_is_checkpoint(), latest_checkpoint(); train/trainer.py Trainer.state_dict()"
    ),
    limits=(
        "latest_checkpoint() takes the highest stepN there is: move a damaged one away, or name the choice",
        "model_and_optim tells no step: one of another save with the same sizes is not seen",
    ),
)
