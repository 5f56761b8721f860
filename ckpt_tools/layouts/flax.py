"""Flax' own checkpoints, before Orbax: ``checkpoint_N`` is a file, and ``checkpoint_N_gda`` beside it holds
the arrays that lie on several hosts.
"""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from ckpt_tools.layouts.common.counters import named_steps
from ckpt_tools.layouts.common.layout import Layout, Metadata, resume_file, whole
from ckpt_tools.layouts.common.piece import TELLS_STEP, UNTOLD, Claim, Piece, Stage


def _step(metadata: Metadata) -> int | None:
    return whole(metadata.get("step"))


def _piece(name: str, template: str) -> Piece:
    """A file of which the name alone says little: Ray's and Orbax' directories are called so as well."""
    return Piece(name, "model", template, ("msgpack",), claim=Claim.WEAK, content=TELLS_STEP)


LAYOUT = Layout(
    name="flax",
    title="flax checkpoint_N",
    pieces=(
        _piece("file", "checkpoint_{step}"),
        replace(_piece("temporary", "checkpoint_tmp"), stage=Stage.UNDER_WAY, content=UNTOLD),
    ),
    resume=resume_file,  # restore_checkpoint(path, target)
    check=partial(named_steps, read=_step, what="step"),
    reshardable=True,
    reference=(
        "flax/training/checkpoints.py save_checkpoint(), save_checkpoint_multiprocess(), "
        "latest_checkpoint(): the highest; checkpoint_tmp is renamed when it is written"
    ),
    limits=(
        "a prefix of the script's own, and steps with a fraction, are files of no known arrangement",
        "a checkpoint_N that is gone is asked about only where an optimizer's arrays are left beside it",
    ),
)
