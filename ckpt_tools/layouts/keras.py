"""Keras: ``model-E.keras`` and ``cp-E.weights.h5``, one file per epoch, or ``cp-E-B.weights.h5`` every few
batches.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ckpt_tools.layouts.common.layout import Counting, Layout
from ckpt_tools.layouts.common.piece import COPIES, Piece
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw
from ckpt_tools.model.plan import Resume

_FILES = {
    "model": (".keras", "zip_archive"),
    "weights": (".weights.h5", "hdf5"),
    "h5": (".h5", "hdf5"),
    "hdf5": (".hdf5", "hdf5"),
}
WORDS = "model|weights|weight|checkpoint|ckpt|cp|epoch|ep"
"""What files of Keras 2 are called whose epoch has one digit: data has such names, too."""


def _pieces() -> Iterator[Piece]:
    epoch = "{prefix}<-|.|_>{epoch:02d}"
    for name, (suffix, form) in _FILES.items():
        measured = f"[{{prefix}}<-|.|_>]{{epoch}}<-|_>[{{name}}]{{metric}}{suffix}"  # {val_loss:.2f}
        yield Piece(f"{name}_measured", "model", measured, (form,), readers=COPIES)
        batch = f"{epoch}<-|.|_>{{step_in_epoch}}{suffix}"
        yield Piece(f"{name}_batch", "model", batch, (form,), readers=COPIES)
        yield Piece(name, "model", f"{epoch}[-{{name}}]{suffix}", (form,), readers=COPIES)
    for name in ("h5", "hdf5"):
        digit = f"[{{prefix}}<-|.|_>]<{WORDS}><-|.|_>{{epoch}}.{name}"
        yield Piece(f"{name}_word", "model", digit, ("hdf5",), readers=COPIES)


_SHARD = re.compile(r".+_(\d{5})\.weights\.h5")


def _lacks(c: Checkpoint, others: Sequence[Checkpoint]) -> Iterator[Flaw]:
    """Shards of a set of weights are numbered like epochs, but from 0 (keras/src/saving/saving_lib.py,
    ShardedH5IOStore): one alone is no model.
    """
    run = [o for o in (c, *others) if (o.layout, o.run) == (c.layout, c.run)]
    numbers = {m[1] for o in run for p in o.parts if (m := _SHARD.fullmatch(p.name))}
    if "00000" in numbers and _SHARD.fullmatch(c.parts[0].name):
        text = (
            f"one of {len(numbers)} files that are numbered from 0, as shards of weights are, and no epochs"
        )
        hint = "load them with Keras itself; if they are epochs, describe them: docs/adding-a-layout.md"
        yield Flaw("missing-part", text, path=c.path, hint=hint)


def _resume(_checkpoint: Checkpoint, path: str | None) -> Resume:
    return Resume(path)  # keras.models.load_model(path), or model.load_weights(path)


LAYOUT = Layout(
    name="keras",
    title="Keras ModelCheckpoint",
    pieces=tuple(_pieces()),
    resume=_resume,
    lacks=_lacks,
    counting=Counting(first_epoch=1),
    reshardable=True,
    reference="keras/src/callbacks/model_checkpoint.py: {epoch} and {batch} count from 1",
    limits=(
        (
            "the name is the user's own; only a number of at least two digits before the suffix counts as an "
            "epoch"
        ),
        "HDF5 has no checksum over its data",
        "shards of weights without their index (model.weights.json) are no epochs, and not planned",
    ),
)
