"""Keras' BackupAndRestore: ``latest.weights.h5`` with ``training_metadata.json``, and what both were
before as ``.bkp``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ckpt_tools.layouts.common.layout import Beside, Complete, Layout, Metadata, Steps, resume_file, whole
from ckpt_tools.layouts.common.piece import TELLS_STEP, Piece, Where
from ckpt_tools.model.finding import Flaw, Severity
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Report

_BEFORE = "weights_before"
_APART_NS, _SLOWEST = 250_000_000, 100
"""Copies that do not keep times write the two files of a save in any order, but close together: within this
time, and this many ns for each byte (10 MB/s).
"""
_ROUNDED_NS = 2 * 10**9
"""The same where times are those of uploads to a store, or were rounded to seconds."""
_SECOND_NS = 10**9


def _steps(_part: Part, metadata: Metadata) -> Steps:
    """An optimizer of Keras keeps the number of its steps as its first variable."""
    return whole(metadata.get("optimizer/vars/0")), None, None


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    """Every save takes steps after the one that it moves away."""
    taken = {p.piece: _steps(p, r.metadata)[0] for p, r in parts}
    for p, _ in parts:
        if p.piece == "weights" and taken["weights"] is not None and taken["weights"] == taken.get(_BEFORE):
            text = f"it is of step {taken['weights']}, and so is {p.name}.bkp, which was saved before it"
            yield p.path, Flaw("step-mismatch", text, severity=Severity.WARNING)
    yield from _without_epoch({p.piece: p for p, _ in parts})


def _without_epoch(parts: Mapping[str, Part]) -> Iterator[tuple[str, Flaw]]:
    """The epoch is written after the weights: one from before them is that of the save before, and Keras
    would train it once more.
    """
    weights, progress = parts.get("weights"), parts.get("progress")
    if weights is None or progress is None:
        return
    exact = weights.mtime_ns % _SECOND_NS and "://" not in weights.path
    apart = _APART_NS if exact else _ROUNDED_NS
    if weights.mtime_ns - progress.mtime_ns > apart + _SLOWEST * weights.size:
        text = f"it was written before {weights.name}: the epoch in it is that of an earlier save"
        yield progress.path, Flaw("epoch-mismatch", text, severity=Severity.WARNING)


def _weights(name: str, template: str, where: Where = Where.NAMED) -> Piece:
    return Piece(name, "model", template, ("hdf5",), where=where, content=TELLS_STEP)


_PROGRESS = "training_metadata.json"
LAYOUT = Layout(
    name="keras-backup",
    title="Keras BackupAndRestore",
    pieces=(
        _weights("weights", "latest.weights.h5", Where.HERE),
        # only beside latest.weights.h5
        Piece("progress", "progress", _PROGRESS, ("json_member",), where=Where.HERE, required=False),
        _weights(_BEFORE, "latest.weights.h5.bkp"),
    ),
    resume=resume_file,  # BackupAndRestore(backup_dir=path)
    steps=_steps,
    check=_check,
    complete=Complete(
        needs=("model",), saved_with=(("weights", "progress"),)
    ),  # without it Keras trains from epoch 0
    # ModelCheckpoint has the others
    beside=Beside(layouts=("keras", "keras-shards"), stateless=("training_metadata.json.bkp",)),
    reshardable=True,
    reference="keras/src/callbacks/backup_and_restore.py; keras/src/optimizers/base_optimizer.py iterations",
    limits=(
        (
            "Keras goes back to the .bkp files only where it cannot open the latest, whatever the plan "
            "says: copy both over the files without .bkp"
        ),
        "the epoch in training_metadata.json is Keras' own affair: a changed digit in it is not seen",
    ),
)
