"""Keras: ``model-E.keras`` and ``cp-E.weights.h5``, one file per epoch, or ``cp-E-B.weights.h5`` every few
batches.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_tools.layouts.common.layout import Layout, Piece
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.plan import Resume

_FILES = {"model": (".keras", "zip_archive"), "weights": (".weights.h5", "hdf5"), "h5": (".h5", "hdf5")}


def _pieces() -> Iterator[Piece]:
    epoch = "{prefix}<-|.|_>{epoch:02d}"
    for name, (suffix, form) in _FILES.items():
        batch = f"{epoch}<-|.|_>{{step_in_epoch}}{suffix}"
        yield Piece(f"{name}_batch", "model", batch, (form,), shared=True, single=True)
        yield Piece(name, "model", f"{epoch}[-{{name}}]{suffix}", (form,), shared=True, single=True)


def _resume(_checkpoint: Checkpoint, path: str | None) -> Resume:
    return Resume(path)  # keras.models.load_model(path), or model.load_weights(path)


LAYOUT = Layout(
    name="keras",
    title="Keras ModelCheckpoint",
    pieces=tuple(_pieces()),
    resume=_resume,
    epoch_base=1,
    reshardable=True,
    compare_steps=False,
    reference="keras/src/callbacks/model_checkpoint.py: {epoch} and {batch} count from 1",
    limits=(
        (
            "the name is the user's own; only a number of at least two digits before the suffix counts as an "
            "epoch"
        ),
        "HDF5 has no checksum over its data",
    ),
)
