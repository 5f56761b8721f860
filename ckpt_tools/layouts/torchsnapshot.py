"""torchsnapshot: a directory for each snapshot, called as the script likes. ``.snapshot_metadata`` is written
last; ``R/`` holds what rank R alone has, ``batched/`` small tensors, beside ``replicated/`` and ``sharded/``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial

from ckpt_tools.layouts.common.counters import borrowed, last_word
from ckpt_tools.layouts.common.layout import Beside, Complete, Layout, Metadata, Steps, resume_directory
from ckpt_tools.layouts.common.piece import Claim, Content, Piece, nest
from ckpt_tools.layouts.dcp import HOMES
from ckpt_tools.model.finding import Flaw
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Report

FORMATS = ("torchsnapshot",)
_WORDS = ("global_step", "step", "iteration", "current_step", "num_steps_completed")
_DEEPEST = 7
"""Components below the directory of a rank, and one: 0/optim/param_groups/0/betas has five."""
_OTHERS = "metrics|params|tags|artifacts|inputs|outputs"
"""Directories that MLflow has below that of its experiment, 0/."""
_UUID = "-".join(["{name}"] * 5)


def _steps(part: Part, metadata: Metadata) -> Steps:
    """The name's, else what the script saved beside its tensors; optimizers count for themselves."""
    told = {k: v for k, v in metadata.items() if "optim" not in k and "sched" not in k}
    step = last_word(told, _WORDS) if part.step is None else part.step
    return step, last_word(told, ("epoch",)) if part.epoch is None and step is None else part.epoch, None


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    keys = [f"progress.{word}" for word in _WORDS]
    yield from borrowed(parts, {f"metadata{mark}": keys for _, mark in HOMES}, growing=False)


def _pieces(*, named: bool) -> Iterator[Piece]:
    """The index, and what it describes; a slab of small tensors, or the files of rank 0 beside finished
    snapshots, are of a save under way without it.
    """
    yield Piece("metadata", "metadata", ".snapshot_metadata", FORMATS, content=Content(step=not named))
    data = partial(Piece, role="data", required=False)
    yield data("slab", template=f"batched/{_UUID}")
    for depth in range(1, _DEEPEST):
        path = "/".join(["{name}"] * depth)
        if named:  # else any file three directories down has such a name
            template = f"<0|replicated|sharded>/{path}"
            yield data(f"data{depth}", template=template, claim=Claim.COMPANION)
        yield data(f"other{depth}", template=f"{{name}}/{path}", claim=Claim.DESCRIBED)


LAYOUT = Layout(
    name="torchsnapshot",
    title="torchsnapshot",
    pieces=tuple(p for home, mark in HOMES for p in nest(home, _pieces(named=mark != "_any"), mark)),
    resume=resume_directory,  # Snapshot(path).restore(app_state)
    steps=_steps,
    check=_check,
    complete=Complete(commit="metadata"),
    beside=Beside(
        traces=(re.compile(rf"(?:^|/)(?:0|replicated|sharded)/(?!(?:.+/)?(?:{_OTHERS})/)(?:[^/]+/)+[^/.]+$"),)
    ),
    reshardable=True,
    reference=(
        "torchsnapshot 0.1.0: snapshot.py take() (.snapshot_metadata after all ranks have written), "
        "io_preparer.py get_storage_path(), batcher.py; torchtnt callbacks (epoch_E_step_S)"
    ),
    limits=(
        "of a lone save that was killed names in batched/ and those without a dot tell whose it is",
        "without batching a save that was killed is seen where the directory's name tells a step or an epoch",
        "values that only one rank has are there for jobs of as many ranks: restore() refuses others",
    ),
)
