"""What PyTorch's torch_checkpointing saves: a directory of any name, in which each rank has a file for each
item (``step_10/model_0.pt``, ``optimizer_0.pt``), beside ``metadata.pkl`` where items may be resharded. It is
written as ``tmp_step_10`` and renamed when all ranks are done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ckpt_tools.layouts.common.layout import Complete, Layout, Ranks, resume_directory
from ckpt_tools.layouts.common.lost_files import lost
from ckpt_tools.layouts.common.piece import SHARDED, Changes, Claim, Piece, Stage, nest
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw

FORMATS = ("torch_zip", "torch_legacy")
_HOMES = (
    ("[<global_step|step|iteration|iter|checkpoint|ckpt>[<_|-|=>]]{step}", ""),
    ("<epoch|ep>[<_|-|=>]{epoch}", "_epoch"),
)
"""What its users call a directory so that its name tells the place in the training."""
_ITEMS = (
    ("model", "model|weights|state_dict"),
    ("optimizer", "optimizer|optimizers|optim|opt"),
    ("scheduler", "lr_scheduler|scheduler"),
    ("data", "dataloader|data"),
    ("rng", "rng|rng_state"),
    ("state", "step|train_state|trainer_state|trainer"),
)


def _pieces() -> Iterator[Piece]:
    """What an optimizer's files lie beside: else the number in ``model_0.pt`` may count anything."""
    for role, words in _ITEMS:
        claim = Claim.GENERIC if role == "optimizer" else Claim.INSIDE
        changes = Changes.MOVES if role == "state" else Changes.PER_SAVE
        item = Piece(role, role, f"<{words}>_{{rank}}.pt", FORMATS, readers=SHARDED)
        yield replace(item, claim=claim, changes=changes)
    yield Piece("other", "other", "{name}_{rank}.pt", FORMATS, readers=SHARDED, claim=Claim.INSIDE)
    once = Piece("metadata", "metadata", "metadata.pkl", ("pickle_plain",), claim=Claim.INSIDE)
    yield replace(once, required=False)


def _items(c: Checkpoint) -> frozenset[str]:
    return frozenset(p.name.rpartition("_")[0] for p in c.parts if p.rank is not None)


def _lost(c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Flaw]:
    for name in lost(c, beside, _items):
        text = f"there is no {name}_RANK.pt, which the run's other checkpoints have"
        yield Flaw("missing-part", text, path=c.path)


LAYOUT = Layout(
    name="torch-checkpointing",
    title="torch_checkpointing",
    pieces=tuple(
        p
        for home, mark in _HOMES
        for p in (
            *nest(home, _pieces(), mark, unasked=True),
            *nest(f"tmp_{home}", _pieces(), f"{mark}_begun", unasked=True, stage=Stage.UNDER_WAY),
        )
    ),
    resume=resume_directory,
    complete=Complete(needs=("model",)),
    # checkpoint_reader.py: the files of its rank, unless the items are resharded
    ranks=Ranks(own_files=True, told_by="metadata"),
    lost=_lost,
    reference=(
        "torch_checkpointing 0.1 checkpoint_layout.py default_torch_layout_info, checkpoint_writer.py "
        "_temp_dir_path, metadata_serialization.py METADATA_FILE_NAME"
    ),
    limits=(
        "a model without an optimizer's files beside it may be anything: it is not taken for its save",
        "items that are given files of other names are not known",
        "blocking saves write metadata.pkl with the first of a process alone: one without it is whole",
    ),
)
