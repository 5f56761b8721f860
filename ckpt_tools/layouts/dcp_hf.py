"""Distributed Checkpoint written as Hugging Face shards:
``step-N/shard-RRRRR-model-….safetensors``, one set per rank and no index.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpt_tools.layouts.common.layout import Layout, Purpose, resume_directory
from ckpt_tools.layouts.common.lost_files import lost_shards
from ckpt_tools.layouts.common.piece import Piece, Where
from ckpt_tools.layouts.dcp import NUMBERED
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw, Severity
from ckpt_tools.model.ranges import gaps, words


def _lost(c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Flaw]:
    """Shards that the saves beside it have; of a lone save the files that no rank has any of, of as many as
    their names count. A loop may count files of which it saves nothing, so a warning; as a job of one rank
    may have been told to save as one of several.
    """
    yield from lost_shards(c, beside)
    coords = [dict(p.coords) for p in c.parts]
    counted = max((at["of"] for at in coords), default=0)
    if gone := gaps((at["shard"] - 1 for at in coords), counted) if not beside else ():
        numbers = words(tuple((first + 1, last + 1) for first, last in gone))
        text = f"its files are numbered up to {counted}, and no rank has any of number {numbers}"
        yield Flaw("missing-part", text, path=c.path, severity=Severity.WARNING)
    if not beside and len({at["node"] for at in coords}) == 1:
        text = "it was saved as by several ranks, of which only one has files, and nothing lists the others'"
        yield Flaw("missing-part", text, path=c.path, severity=Severity.WARNING)


_SHARD = "shard-{node:05d}-{name}-{shard:05d}-of-{of:05d}.safetensors"
LAYOUT = Layout(
    name="dcp-hf",
    title="PyTorch Distributed Checkpoint as safetensors",
    pieces=(
        *(Piece(f"shard{mark}", "model", f"{home}/{_SHARD}", ("safetensors",)) for home, mark in NUMBERED),
        Piece("shard_any", "model", _SHARD, ("safetensors",), where=Where.HERE),
    ),
    resume=resume_directory,  # torch.distributed.checkpoint.HuggingFaceStorageReader(path)
    lost=_lost,
    reshardable=True,
    purpose=Purpose.MODELS,
    reference="torch/distributed/checkpoint/hf_storage.py HuggingFaceStorageWriter",
    limits=(
        (
            "there is no index: a lost shard shows by a gap in a tensor, or where the saves beside it have "
            "one; those of the last of three and more ranks of a lone save only when its loader raises"
        ),
    ),
)
