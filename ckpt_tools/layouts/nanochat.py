"""Files of nanochat: ``model_NNNNNN.pt`` and ``meta_NNNNNN.json`` of rank 0, and ``optim_NNNNNN_rankR.pt`` of
each rank, whose optimizer is sharded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ckpt_tools.layouts.common.counters import borrowed, named_steps
from ckpt_tools.layouts.common.layout import (
    Beside,
    Compared,
    Complete,
    Layout,
    Ranks,
    resume_directory,
)
from ckpt_tools.layouts.common.piece import SHARDED, Claim, Piece
from ckpt_tools.model.finding import Flaw
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Report

TORCH = ("torch_zip", "torch_legacy")


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    yield from named_steps(parts, "step", role="metadata")
    yield from borrowed(parts, {"optimizer": ("optimizer_step",)})


LAYOUT = Layout(
    name="nanochat",
    title="nanochat",
    pieces=(
        Piece("optimizer", "optimizer", "optim_{step:06d}_rank{rank}.pt", TORCH, readers=SHARDED),
        Piece("model", "model", "model_{step:06d}.pt", TORCH, claim=Claim.INSIDE),
        Piece("meta", "metadata", "meta_{step:06d}.json", ("json_member",), claim=Claim.INSIDE),
    ),
    resume=resume_directory,  # base_train's --resume-from-step takes the step below it
    check=_check,
    beside=Beside(
        traces=(re.compile(r"(?:^|/)(?:base|mid|chatsft|chatrl)_checkpoints/[^/]+/meta_\d{6}\.json$"),)
    ),
    complete=Complete(needs=("model", "metadata", "optimizer")),
    ranks=Ranks(own_files=True),
    compared=Compared.NONE,
    reference="nanochat/checkpoint_manager.py save_checkpoint(), load_checkpoint(), find_last_step()",
    limits=(
        "find_last_step() takes the highest model_N.pt there is: say --resume-from-step with the plan's step",
        "models without an optimizer (of fine-tuning) are files of no known arrangement",
    ),
)
