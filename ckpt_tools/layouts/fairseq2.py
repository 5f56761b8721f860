"""Checkpoints of fairseq2: ``step_N/trainer/rank_R.pt``, ``model/pp_P/tp_T/sdp_S.pt`` and the like.

It is ``step_N.tmp`` until the save is done; a directory with the model alone is an export.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpt_tools.layouts.common.counters import borrowed, named_steps
from ckpt_tools.layouts.common.layout import Compared, Complete, Layout, Metadata, resume_directory
from ckpt_tools.layouts.common.loop_counters import number
from ckpt_tools.layouts.common.lost_files import lost
from ckpt_tools.layouts.common.piece import Claim, Piece, Stage, nest
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Report

TORCH = ("torch_zip", "torch_legacy")
_GRID = "pp_{name}/tp_{name}/sdp_{shard:02d}.pt"


def _step(metadata: Metadata) -> int | None:
    return number(metadata, ("step_nr", "_step_nr"))


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    yield from named_steps(parts, _step, "step_nr", role="trainer")
    yield from borrowed(parts, {"optimizer": ("optimizer_step",)})


def _files(c: Checkpoint) -> frozenset[str]:
    return frozenset(p.path.removeprefix(f"{c.path}/") for p in c.parts)


def _lost(c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Flaw]:
    """What the rest of the save shows to have been there, and what the saves ``beside`` it have."""
    text = "which the run's other checkpoints have"
    for name in (gone := sorted(_shown(c) - _files(c))) or lost(c, beside, _files):
        what = "which the other files of the save belong to" if gone else text
        yield Flaw("missing-part", f"there is no {name}, {what}", path=c.path)


def _shown(c: Checkpoint) -> set[str]:
    """Files of places and ranks that others tell: each place of the model has one of the optimizer, and a
    rank that trains it.
    """
    files = _files(c)
    if not any(name.startswith("trainer/") for name in files):  # an export
        return set()
    places = {name.partition("/")[2] for name in files if name.startswith(("model/", "optimizer/"))}
    shards = len({place.rpartition("/")[2] for place in places})
    shown = {f"{role}/{place}" for role in ("model", "optimizer") for place in places}
    for role, name, least in (("trainer", "rank", len(places)), ("data_reader", "dp", shards)):
        ranks = [at for p in c.parts if p.role == role for axis, at in p.coords if axis == "shard"]
        if ranks:
            shown |= {f"{role}/{name}_{rank:02d}.pt" for rank in range(max(least, *ranks))}
    return shown


_PIECES = (
    Piece("model", "model", f"model/{_GRID}", TORCH),
    Piece("optimizer", "optimizer", f"optimizer/{_GRID}", TORCH),
    Piece("data_reader", "data_reader", "data_reader/dp_{shard:02d}.pt", TORCH, unasked=True),
    Piece("trainer", "trainer", "trainer/rank_{shard:02d}.pt", TORCH, unasked=True, claim=Claim.INSIDE),
)
LAYOUT = Layout(
    name="fairseq2",
    title="fairseq2",
    pieces=(
        *nest("step_{step}", _PIECES),
        *nest("step_{step}.tmp", _PIECES, "_tmp", stage=Stage.UNDER_WAY),
    ),
    resume=resume_directory,
    check=_check,
    lost=_lost,
    complete=Complete(needs=("model", "optimizer", "trainer")),
    compared=Compared.NONE,
    reference=(
        "fairseq2 src/fairseq2/checkpoint/manager.py StandardCheckpointManager (0.5 and later): "
        "save_checkpoint(), _commit_checkpoint(), maybe_get_last_step_number(exclude_model_only=True)"
    ),
    limits=(
        "the framework takes the highest step_N with a trainer/: move a damaged one away, or give a view",
        "how many places and ranks a save has is known from its own files and from the saves beside it",
        "of 0.4 and before, trainer/ and data_reader/ have other names: such a step is asked about",
    ),
)
