"""nvidia-resiliency-ext's local checkpoints:
``<session>/<rank>/iter_N_<saved rank>_local.pt``, replicas of other ranks among them.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_tools.layouts.common.layout import Layout, Ranks
from ckpt_tools.layouts.common.piece import SHARDED, Piece, Stage
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.plan import Resume

FORMATS = ("torch_zip", "torch_legacy")


def _resume(_checkpoint: Checkpoint, path: str | None) -> Resume:
    return Resume(
        path
    )  # LocalCheckpointManager(root).load() takes the newest iteration that all ranks of the group have


def _pieces() -> Iterator[Piece]:
    yield Piece(
        "dirty",
        "model",
        "{node}/iter_{step:07d}_{rank}_local.dirty.pt",
        FORMATS,
        readers=SHARDED,
        stage=Stage.UNDER_WAY,
    )
    yield Piece(
        "dirty_end",
        "model",
        "{node}/iter_{step:07d}_{rank}_local.pt.dirty",
        FORMATS,
        readers=SHARDED,
        stage=Stage.UNDER_WAY,
    )
    yield Piece(
        "local", "model", "{node}/iter_{step:07d}_{rank}_local.pt", FORMATS, readers=SHARDED, unasked=True
    )


LAYOUT = Layout(
    name="nvrx-local",
    title="NVIDIA resiliency extension, local",
    pieces=tuple(_pieces()),
    resume=_resume,
    # LocalCheckpointManager lists and opens the directory of its rank alone
    ranks=Ranks(own_files=True, keepers=True),
    reference="nvidia-resiliency-ext checkpointing/local/ckpt_managers/local_manager.py",
    limits=(
        (
            "the saved rank is in the name, the rank that keeps the copy is the directory: a rank's own copy "
            "is preferred"
        ),
        "files name classes of the extension, so it loads them with weights_only=False",
    ),
)
