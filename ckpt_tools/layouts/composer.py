"""MosaicML Composer, llm-foundry: ``epE-baB-rank0.pt`` after B batches, or a directory ``epE-baB`` of shards;
``latest-rank0.pt`` leads to the newest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ckpt_tools.layouts import dcp
from ckpt_tools.layouts.common.counters import first, named_epochs, named_steps
from ckpt_tools.layouts.common.layout import Layout, Metadata, Steps, resume_file
from ckpt_tools.layouts.common.lost_files import lost_shards
from ckpt_tools.layouts.common.piece import TELLS_STEP, Claim, Piece, nest
from ckpt_tools.model.finding import Flaw
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Report

FORMATS = ("torch_zip", "torch_legacy")
HOME = "ep{epoch}-ba{step}"
TIMES = ("state.timestamp.Timestamp", "state.timestamp")
"""Where a file's counts of epochs and batches lie."""


def _batch(metadata: Metadata) -> int | None:
    return first(metadata, [f"{time}.batch" for time in TIMES])


def _epoch(metadata: Metadata) -> int | None:
    return first(metadata, [f"{time}.epoch" for time in TIMES])


def _steps(part: Part, metadata: Metadata) -> Steps:
    step = _batch(metadata) if part.step is None else part.step
    return step, _epoch(metadata) if part.epoch is None else part.epoch, None


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    yield from named_steps(parts, _batch, "timestamp.batch")
    yield from named_epochs(parts, _epoch, "timestamp.epoch")


def _pieces() -> Iterator[Piece]:
    rank = Piece("rank", "model", f"{HOME}-rank{{shard}}.pt", FORMATS, unasked=True)
    latest = replace(rank, name="latest", template="latest-rank{shard}.pt", content=TELLS_STEP)
    yield rank
    yield replace(latest, role="latest", loaded=False, required=False, claim=Claim.COMPANION)
    yield from nest(HOME, dcp.PIECES, "_sharded", required=False)


LAYOUT = Layout(
    name="composer",
    title="MosaicML Composer",
    pieces=tuple(_pieces()),
    resume=resume_file,  # Trainer(load_path=…)
    steps=_steps,
    check=_check,
    lost=lost_shards,
    reshardable=True,
    reference=(
        "composer/callbacks/checkpoint_saver.py, composer/utils/checkpoint.py; composer/core/state.py "
        "state_dict()"
    ),
    limits=(
        "names of a save_filename of the user's own are files of no known arrangement",
        "the timestamp of a sharded checkpoint is not read: its step is that of its name",
    ),
)
