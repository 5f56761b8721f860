"""PaddlePaddle's distributed checkpoints: a directory with ``<id>.metadata`` and ``<rank>_<id>.distcp``,
usually one per step. Several ids in one directory are several saves, of which the loader takes the highest.
"""

from __future__ import annotations

from ckpt_tools.layouts.common.layout import Compared, Complete, Layout
from ckpt_tools.layouts.common.piece import Claim, Piece, nest
from ckpt_tools.layouts.dcp import NUMBERED
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.plan import Resume


def _resume(checkpoint: Checkpoint, _path: str | None) -> Resume:
    """The arguments of ``paddle.distributed.load_state_dict``: a path alone means the highest id in it."""
    directory = checkpoint.parts[0].path.rpartition("/")[0]
    return Resume(directory, (f"path={directory}", f"unique_id={checkpoint.generation}"))


_ARRAYS = "{rank}_{generation}.safetensors"
_PIECES = (
    Piece("metadata", "metadata", "{generation}.metadata", ("paddle_dist",)),
    Piece("distcp", "model", "{rank}_{generation}.distcp", ("pickle_plain",)),
    Piece("safetensors", "model", _ARRAYS, ("safetensors",), claim=Claim.COMPANION),
)
LAYOUT = Layout(
    name="paddle-dist",
    title="PaddlePaddle distributed checkpoint",
    pieces=tuple(
        p for home, mark in (*NUMBERED, ("{name}", "_any")) for p in nest(home, _PIECES, mark, unasked=True)
    ),
    resume=_resume,
    complete=Complete(needs=("metadata", "model")),
    compared=Compared.BY_PIECE,
    reshardable=True,
    reference="paddle/distributed/flex_checkpoint/dcp/save_state_dict.py, load_state_dict.py of Paddle 3.3",
    limits=(
        "the step is told by the directory's name alone",
        "load_state_dict without unique_id loads the highest id of a directory, and not the plan's",
    ),
)
