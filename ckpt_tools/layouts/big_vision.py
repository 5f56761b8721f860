"""Google's big_vision: ``checkpoint.bv-000000100/`` with a directory for each array, in whose name ``~`` is a
slash, and ``checkpoint.bv-LAST`` beside it, which is written last. The next save removes one with ``-tmp``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from ckpt_tools.layouts.common.arrays import ROLE, array, lost_arrays
from ckpt_tools.layouts.common.layout import Beside, Complete, Layout, Tracker, resume_directory
from ckpt_tools.layouts.common.piece import Piece, Stage
from ckpt_tools.model.checkpoint import Checkpoint

_SAVES = "checkpoint.bv-"
_SAVED = re.compile(r"[0-9]{9,18}(?:-tmp)?")


def _read_tracker(data: bytes) -> str | None:
    """What is called so behind ``checkpoint.bv-``."""
    said = data.decode("ascii", "replace").strip()
    return said if _SAVED.fullmatch(said) else None


def _tracked(checkpoint: Checkpoint) -> str:
    return checkpoint.path.rpartition("/")[2].removeprefix(_SAVES)


def _pieces() -> Iterator[Piece]:
    for name, end in (("array", ""), ("temporary", "-tmp")):
        yield replace(array(name, f"{_SAVES}{{step:09d}}{end}/{{name}}", sure=True), stage=Stage.FINISHED)


LAYOUT = Layout(
    name="big-vision",
    title="big_vision",
    pieces=tuple(_pieces()),
    resume=resume_directory,  # config.resume, u.load_checkpoint_ts(path)
    tracker=Tracker(file=f"{_SAVES}LAST", read=_read_tracker, name=_tracked),
    complete=Complete(needs=(ROLE,)),
    beside=Beside(traces=(re.compile(r"(?:^|/)checkpoint\.bv-\d{9,}(?:-tmp)?/[^/]+/\d+(?:\.\d+)*$"),)),
    lost=lost_arrays,
    reshardable=True,
    reference="big_vision/utils.py save_checkpoint_ts(), tssave(), load_checkpoint_ts()",
    limits=(
        "no list of the arrays is kept: one that is lost is missed where the run has another checkpoint",
        "a chunk that is not there may be one of zeros: it is missed where other checkpoints have it",
    ),
)
