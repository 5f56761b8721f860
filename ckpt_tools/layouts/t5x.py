"""T5X, before Orbax: ``checkpoint_N/`` with a MessagePack file ``checkpoint`` and a directory for each large
array; ``.tmp-…`` while it is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ckpt_tools.layouts.common.arrays import ROLE, array, fewer_than_listed, lost_arrays
from ckpt_tools.layouts.common.counters import named_steps
from ckpt_tools.layouts.common.layout import Beside, Complete, Layout, Metadata, resume_directory, whole
from ckpt_tools.layouts.common.piece import Claim, Piece, Stage, nest
from ckpt_tools.model.finding import Flaw
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Report


def _step(metadata: Metadata) -> int | None:
    return whole(metadata.get("optimizer.state.step"))


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    yield from named_steps(parts, _step, "optimizer.state.step")
    yield from fewer_than_listed(parts)


_PIECES = (
    array("target", "target.{name}", sure=True),
    array("array", "{name}", sure=False),
    Piece("index", "index", "checkpoint", ("msgpack",), claim=Claim.INSIDE),
)
LAYOUT = Layout(
    name="t5x",
    title="T5X",
    pieces=(
        *nest("checkpoint_{step}.tmp-{name}", _PIECES, "_tmp", stage=Stage.UNDER_WAY),
        *nest("checkpoint_{step}", _PIECES),
    ),
    resume=resume_directory,  # utils.RestoreCheckpointConfig.path
    check=_check,
    complete=Complete(needs=("index", ROLE)),
    beside=Beside(traces=(re.compile(r"(?:^|/)checkpoint_\d+/(?:target|state)\.[^/]+/\d+(?:\.\d+)*$"),)),
    lost=lost_arrays,
    reshardable=True,
    reference="t5x/checkpoints.py Checkpointer.save(), _write_state_to_tensorstore(), latest_step()",
    limits=(
        "a chunk that is not there may be one of zeros: it is missed where other checkpoints have it",
        "the state of the data set (train_ds-…) is not looked at",
    ),
)
