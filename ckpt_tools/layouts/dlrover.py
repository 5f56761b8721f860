"""DLRover flash checkpoint: files of the job's own names, ``dlrover_latest.txt``,
and ``._dlrover_ckpt_stage`` while shards are being counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from ckpt_tools.layouts.common.counters import first, named_steps
from ckpt_tools.layouts.common.layout import Layout, Metadata, Ranks, Steps, Tracker, resume_file
from ckpt_tools.layouts.common.piece import OWN, SHARDED, Claim, Piece, Readers, Stage, nest
from ckpt_tools.layouts.dcp import read_number
from ckpt_tools.model.part import Part

FORMATS = ("torch_zip", "torch_legacy")
_HOMES: Sequence[tuple[str, str]] = (("checkpoint-{step}", ""), ("{step}", "_plain"))
_WORDS = ("step", "iteration", "global_step")


def _steps(part: Part, metadata: Metadata) -> Steps:
    said = first(metadata, _WORDS)
    return (part.step if part.step is not None else said), part.epoch, None


_OF_RANK = Piece("rank", "model", "rank_{rank}.pt", FORMATS, readers=SHARDED, claim=Claim.GENERIC)
_COPIED = Readers(replicated_over=("dp",))
_STAGED = Piece("stage", "stage", "._dlrover_ckpt_stage/{step}.done/{rank}", readers=OWN)
LAYOUT = Layout(
    name="dlrover",
    title="DLRover flash checkpoint",
    pieces=(
        *(p for home, mark in _HOMES for p in nest(home, [_OF_RANK], mark)),
        Piece(
            "whole", "model", "checkpoint-{step}<.pt|.pth>", FORMATS, readers=_COPIED, claim=Claim.COMPANION
        ),
        replace(_STAGED, stage=Stage.UNDER_WAY, required=False, loaded=False),
    ),
    resume=resume_file,
    steps=_steps,
    check=partial(named_steps, read=partial(first, keys=_WORDS), what="step"),
    tracker=Tracker(file="dlrover_latest.txt", read=read_number, always=False),
    # FullCheckpointEngine._gen_restore_checkpoint_path: rank_0.pt, or the rank's own
    ranks=Ranks(own_files=True),
    reference=(
        "dlrover/python/elastic_agent/torch/ckpt_saver.py commit_checkpoint; "
        "dlrover/trainer/torch/flash_checkpoint"
    ),
    limits=(
        (
            "FSDP and Megatron checkpoints saved through DLRover have the layout of DCP and Megatron; only"
            " the tracker is DLRover's"
        ),
    ),
)
