"""AXLearn: ``step_00000100/`` with a directory for each array below ``gda/``, and ``index``, which lists them
and is written last.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ckpt_tools.layouts.common.arrays import ROLE, array, fewer_than_listed, lost_arrays
from ckpt_tools.layouts.common.counters import named_steps
from ckpt_tools.layouts.common.layout import Beside, Complete, Layout, resume_directory
from ckpt_tools.layouts.common.piece import Piece
from ckpt_tools.model.finding import Flaw
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Report

_HOME = "step_{step:08d}"
_DEEPEST = 12
"""Components of an array's path: model/decoder/transformer/repeat/layer/self_attention/…/weight."""


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    yield from named_steps(parts, "step", role="index")
    yield from fewer_than_listed(parts)


def _pieces() -> Iterator[Piece]:
    for depth in range(1, _DEEPEST + 1):
        yield array(f"array{depth}", "/".join([f"{_HOME}/gda", *["{name}"] * depth]), sure=True)
    index = Piece("index", "index", f"{_HOME}/index", ("json_member",))
    yield index


LAYOUT = Layout(
    name="axlearn",
    title="AXLearn",
    pieces=tuple(_pieces()),
    resume=resume_directory,  # Checkpointer.restore(step), TensorStoreStateStorage.restore_from_dir()
    check=_check,
    complete=Complete(commit="index", needs=(ROLE,)),
    beside=Beside(traces=(re.compile(r"(?:^|/)step_\d{8,}/gda/(?:.+/)?\d+(?:\.\d+)*$"),)),
    lost=lost_arrays,
    reshardable=True,
    reference="axlearn/common/checkpointer.py TensorStoreStateStorage, checkpoint_paths()",
    limits=(
        "the states of data sets beside the arrays (tf_0/, python_0/) are not looked at",
        "a chunk that is not there may be one of zeros: it is missed where other checkpoints have it",
    ),
)
