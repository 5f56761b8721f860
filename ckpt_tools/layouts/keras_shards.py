"""Weights of Keras in shards: ``model.weights.json`` with ``model_00000.weights.h5``, …, one set in each
directory, or one for each epoch (``cp-01.weights.json``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ckpt_tools.layouts.common.layout import Complete, Counting, Layout, Metadata, Steps, whole
from ckpt_tools.layouts.common.piece import TELLS_STEP, UNTOLD, Claim, Content, Piece, Where
from ckpt_tools.layouts.dcp import NUMBERED
from ckpt_tools.layouts.keras import WORDS
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.report import Report

_OF_A_SHARD = re.compile(r"_[0-9]{5,}\.weights\.h5$")


def _steps(part: Part, metadata: Metadata) -> Steps:
    """The first shard that holds variables of an optimizer has the number of its steps."""
    step = whole(metadata.get("optimizer/vars/0"))
    return (part.step if step is None else step), part.epoch, None


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    """An index that names the shards of another one, as a copy of that does."""
    for part, report in parts:
        shards = report.metadata.get("shards_of")
        own = part.name.removesuffix(".weights.json")
        if part.role == "index" and shards is not None and shards != own:
            text = f"it names the shards of {str(shards)[:200]!r}, and none of its own"
            yield part.path, Flaw("missing-part", text)


def _set(called: str, mark: str, content: Content = UNTOLD) -> Iterator[Piece]:
    """The index and the shards of weights that are ``called`` so."""
    where = Where.HERE if mark == "_any" else Where.NAMED
    index = f"{called}.weights.json"
    yield Piece(f"index{mark}", "index", index, ("keras_shards",), where=where)
    shard = f"{called}_{{shard:05d}}.weights.h5"  # without an index beside it, it may be an epoch
    yield Piece(
        f"shard{mark}", "model", shard, ("hdf5",), where=where, content=content, claim=Claim.COMPANION
    )


def _pieces() -> Iterator[Piece]:
    for home, mark in NUMBERED:
        yield from _set(f"{home}/{{prefix}}", mark or "_step")
    yield from _set("{prefix}<-|.|_>{epoch:02d}[-{name}]", "_named")
    yield from _set(f"[{{prefix}}<-|.|_>]<w|{WORDS}><-|.|_>{{epoch}}", "_word")
    yield from _set("{prefix}", "_any", TELLS_STEP)


def _resume(checkpoint: Checkpoint, _path: str | None) -> Resume:
    """The index, for ``model.load_weights(path)``; each shard tells what it is called."""
    return Resume(_OF_A_SHARD.sub(".weights.json", checkpoint.parts[0].path))


LAYOUT = Layout(
    name="keras-shards",
    title="Keras weights in shards",
    pieces=tuple(_pieces()),
    resume=_resume,
    steps=_steps,
    check=_check,
    complete=Complete(needs=("index", "model")),
    counting=Counting(first_epoch=1),
    reshardable=True,
    reference="keras/src/saving/saving_lib.py: save_weights_only(max_shard_size=…), ShardedH5IOStore",
    limits=(
        "of the user's own names only a number of at least two digits at the end counts as an epoch",
        "HDF5 has no checksum over its data, and nothing but the times tells that a shard is of another save",
    ),
)
