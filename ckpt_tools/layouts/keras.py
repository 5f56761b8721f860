"""Keras: ``model-E.keras`` and ``cp-E.weights.h5``, one file per epoch."""

from __future__ import annotations

from ckpt_tools.layouts.common.layout import Layout, Piece
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.plan import Resume


def _resume(_checkpoint: Checkpoint, path: str | None) -> Resume:
    return Resume(path)  # keras.models.load_model(path), or model.load_weights(path)


LAYOUT = Layout(
    name="keras",
    title="Keras ModelCheckpoint",
    pieces=(
        Piece("model", "model", "{prefix}<-|.|_>{epoch:02d}[-{name}].keras", ("zip_archive",), shared=True),
        Piece("weights", "model", "{prefix}<-|.|_>{epoch:02d}[-{name}].weights.h5", ("hdf5",), shared=True),
        Piece("h5", "model", "{prefix}<-|.|_>{epoch:02d}[-{name}].h5", ("hdf5",), shared=True),
    ),
    resume=_resume,
    epoch_base=1,
    reshardable=True,
    compare_steps=False,
    reference="keras/src/callbacks/model_checkpoint.py: {epoch} counts from 1",
    limits=(
        (
            "the name is the user's own; only a number of at least two digits before the suffix counts as an "
            "epoch"
        ),
        "HDF5 has no checksum over its data",
    ),
)
