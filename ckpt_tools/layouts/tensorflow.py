"""TensorFlow's and Keras' saves: TensorFlow's checkpoints, Keras' ModelCheckpoint, weights in shards, and
BackupAndRestore.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from ckpt_tools.layouts.common.counters import first, read_steps
from ckpt_tools.layouts.common.layout import (
    Beside,
    Complete,
    Counting,
    Flaws,
    Found,
    Layout,
    Metadata,
    Rows,
    Saves,
    Steps,
    Tracker,
    loss,
    resume_file,
    whole,
)
from ckpt_tools.layouts.common.piece import (
    COPIES,
    JSON,
    TELLS_STEP,
    UNTOLD,
    Claim,
    Content,
    Piece,
    Stage,
    Where,
)
from ckpt_tools.layouts.dcp import NUMBERED
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw, Severity
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import Resume

_NO_CHECKSUM = "HDF5 has no checksum over its data"
_OPTIMIZER_STEPS = "optimizer/vars/0"
"""An optimizer of Keras keeps the number of its steps as its first variable."""

# ---- TensorFlow: ckpt-N.index with ckpt-N.data-0000i-of-0000n, written by CheckpointManager or Saver, and
# the text file checkpoint

_BUNDLE = ("tf_bundle",)
_STEP = ("step", "global_step")
_LATEST = re.compile(rb'^\s*model_checkpoint_path\s*:\s*"((?:[^"\\\n]|\\.)*)"', re.MULTILINE)


def _read_tensorflow(part: Part, metadata: Metadata) -> Steps:
    """The step that the job tracked. Without one, Saver's number is the step;
    CheckpointManager's counts saves.
    """
    tracked = first(metadata, _STEP)
    managed = "save_counter" in metadata or "objects" in metadata
    if tracked is None and part.piece.startswith("data") and metadata and not managed:
        return part.generation, part.epoch, None
    return tracked, part.epoch, None


def _check_tensorflow(parts: Rows) -> Found:
    """Files of another save than their names say, where most files of a run carry their number inside.

    As the step, or as the count of saves.
    """
    for keys in (_STEP, ("save_counter",)):
        rows = [(p, n) for p, r in parts if (n := first(r.metadata, keys)) is not None]
        named = [(p, n) for p, n in rows if p.generation is not None]
        odd = [(p, n) for p, n in named if n != p.generation]
        if 2 * len(odd) < len(named):
            for p, n in odd:
                text = f"the name says {p.generation}, the file's {keys[0]} is {n}"
                yield p.path, Flaw("step-mismatch", text)


def _name_prefix(checkpoint: Checkpoint) -> str:
    """What the names of the checkpoint's files have in common."""
    name = checkpoint.parts[0].path.rpartition("/")[2]
    return re.sub(r"\.(index|data-\d+-of-\d+)$", "", name)


def _read_tracker(data: bytes) -> str | None:
    """Protobuf's text form, which writes bytes that are not ASCII in octal."""

    def unescape(m: re.Match[bytes]) -> bytes:
        return bytes([int(m[1], 8) & 255]) if m[1][:1] in b"01234567" else m[1]

    if (m := _LATEST.search(data)) is None:
        return None
    path = re.sub(rb"\\([0-7]{1,3}|.)", unescape, m[1], flags=re.DOTALL)
    return path.decode("utf-8", "replace").rpartition("/")[2] or None


def _write_tracker(said: int | str) -> bytes:
    """A CheckpointState with one prefix, relative to the file's directory,
    as update_checkpoint_state writes it (its times may be missing).
    """
    name = "".join(
        chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:03o}"
        for b in str(said).encode("utf-8", "surrogateescape")
    )
    return f'model_checkpoint_path: "{name}"\nall_model_checkpoint_paths: "{name}"\n'.encode()


def _list_tensorflow() -> Iterator[Piece]:
    temporary = Piece("temp", "model", "{prefix}-{generation}_temp/{name}", stage=Stage.UNDER_WAY)
    yield replace(temporary, required=False, loaded=False)
    for name, mark in (("{prefix}-{epoch:04d}.ckpt", "_epoch"), ("{prefix}-{generation}", "")):
        yield Piece(f"index{mark}", "index", f"{name}.index", _BUNDLE)
        yield Piece(f"data{mark}", "model", f"{name}.data-{{shard:05d}}-of-{{of:05d}}", _BUNDLE)
    # written over at every save: cp.ckpt of Keras' ModelCheckpoint, my_checkpoint of save_weights(); it names
    # its data files
    yield Piece("index_alone", "index", "{prefix}.index", _BUNDLE, claim=Claim.WEAK, content=TELLS_STEP)


TENSORFLOW = Layout(
    name="tensorflow",
    title="TensorFlow checkpoints",
    pieces=tuple(_list_tensorflow()),
    resume=lambda c, _path: Resume(f"{c.parts[0].base}/{_name_prefix(c)}"),
    steps=_read_tensorflow,
    check=_check_tensorflow,
    tracker=Tracker(file="checkpoint", read=_read_tracker, write=_write_tracker, name=_name_prefix),
    # the graph of TensorFlow 1 lies beside its bundle, for import_meta_graph
    beside=Beside(asked=lambda c: (f"{_name_prefix(c)}.meta",), unneeded=((".meta", ".index"),)),
    complete=Complete(commit="index"),
    reshardable=True,
    reference=(
        "tensorflow/python/checkpoint/checkpoint_management.py; tensorflow/core/util/tensor_bundle: data "
        "files are moved before the index"
    ),
    limits=(
        (
            "the number in a name counts saves or is whatever the job passed: the step is what the job"
            " tracked as 'step' or 'global_step'"
        ),
    ),
)

# ---- Keras: model-E.keras and cp-E.weights.h5, one file per epoch, or cp-E-B.weights.h5 every few batches

_FILES = {
    "model": (".keras", "zip_archive"),
    "weights": (".weights.h5", "hdf5"),
    "h5": (".h5", "hdf5"),
    "hdf5": (".hdf5", "hdf5"),
}
_WORDS = "model|weights|weight|checkpoint|ckpt|cp|epoch|ep"
"""What files of Keras 2 are called whose epoch has one digit: data has such names, too."""
_SHARD = re.compile(r".+_(\d{5})\.weights\.h5")


def _list_keras() -> Iterator[Piece]:
    epoch = "{prefix}<-|.|_>{epoch:02d}"
    for name, (suffix, form) in _FILES.items():
        measured = f"[{{prefix}}<-|.|_>]{{epoch}}<-|_>[{{name}}]{{metric}}{suffix}"  # {val_loss:.2f}
        yield Piece(f"{name}_measured", "model", measured, (form,), readers=COPIES)
        batch = f"{epoch}<-|.|_>{{step_in_epoch}}{suffix}"
        yield Piece(f"{name}_batch", "model", batch, (form,), readers=COPIES)
        yield Piece(name, "model", f"{epoch}[-{{name}}]{suffix}", (form,), readers=COPIES)
    for name in ("h5", "hdf5"):
        digit = f"[{{prefix}}<-|.|_>]<{_WORDS}><-|.|_>{{epoch}}.{name}"
        yield Piece(f"{name}_word", "model", digit, ("hdf5",), readers=COPIES)


def _find_lone_shards(c: Checkpoint, others: Saves) -> Flaws:
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
        yield loss(text, c.path, hint=hint)


KERAS = Layout(
    name="keras",
    title="Keras ModelCheckpoint",
    pieces=tuple(_list_keras()),
    resume=lambda _c, path: Resume(path),  # keras.models.load_model(path), or model.load_weights(path)
    lacks=_find_lone_shards,
    counting=Counting(first_epoch=1),
    reshardable=True,
    reference="keras/src/callbacks/model_checkpoint.py: {epoch} and {batch} count from 1",
    limits=(
        (
            "the name is the user's own; only a number of at least two digits before the suffix counts as an "
            "epoch"
        ),
        _NO_CHECKSUM,
        "shards of weights without their index (model.weights.json) are no epochs, and not planned",
    ),
)

# ---- weights of Keras in shards: model.weights.json with model_00000.weights.h5, …, one set in each
# directory, or one for each epoch (cp-01.weights.json)


def _check_indexes(parts: Rows) -> Found:
    """An index that names the shards of another one, as a copy of that does."""
    for part, report in parts:
        shards = report.metadata.get("shards_of")
        if part.role == "index" and shards is not None and shards != part.name.removesuffix(".weights.json"):
            yield part.path, loss(f"it names the shards of {str(shards)[:200]!r}, and none of its own")


def _list_set(called: str, mark: str, content: Content = UNTOLD) -> Iterator[Piece]:
    """The index and the shards of weights that are ``called`` so."""
    where = Where.HERE if mark == "_any" else Where.NAMED
    yield Piece(f"index{mark}", "index", f"{called}.weights.json", ("keras_shards",), where=where)
    # without an index beside it, it may be an epoch
    shard = Piece(f"shard{mark}", "model", f"{called}_{{shard:05d}}.weights.h5", ("hdf5",), where=where)
    yield replace(shard, content=content, claim=Claim.COMPANION)


KERAS_SHARDS = Layout(
    name="keras-shards",
    title="Keras weights in shards",
    pieces=(
        *(p for home, mark in NUMBERED for p in _list_set(f"{home}/{{prefix}}", mark or "_step")),
        *_list_set("{prefix}<-|.|_>{epoch:02d}[-{name}]", "_named"),
        *_list_set(f"[{{prefix}}<-|.|_>]<w|{_WORDS}><-|.|_>{{epoch}}", "_word"),
        *_list_set("{prefix}", "_any", TELLS_STEP),
    ),
    # the index, for model.load_weights(path); each shard tells what it is called
    resume=lambda c, _path: Resume(re.sub(r"_[0-9]{5,}\.weights\.h5$", ".weights.json", c.parts[0].path)),
    # the first shard that holds variables of an optimizer has the number of its steps
    steps=lambda part, metadata: read_steps(part, metadata, step=(_OPTIMIZER_STEPS,), by_name=False),
    check=_check_indexes,
    complete=Complete(needs=("index", "model")),
    counting=Counting(first_epoch=1),
    reshardable=True,
    reference="keras/src/saving/saving_lib.py: save_weights_only(max_shard_size=…), ShardedH5IOStore",
    limits=(
        "of the user's own names only a number of at least two digits at the end counts as an epoch",
        f"{_NO_CHECKSUM}, and nothing but the times tells that a shard is of another save",
    ),
)

# ---- Keras' BackupAndRestore: latest.weights.h5 with training_metadata.json, and what both were before as
# .bkp

_BEFORE = "weights_before"
_APART_NS, _SLOWEST = 250_000_000, 100
"""Copies that do not keep times write the two files of a save in any order, but close together: within this
time, and this many ns for each byte (10 MB/s).
"""
_ROUNDED_NS = 2 * 10**9
"""The same where times are those of uploads to a store, or were rounded to seconds."""
_SECOND_NS = 10**9


def _check_backup(parts: Rows) -> Found:
    """Every save takes steps after the one that it moves away; and writes the epoch after the weights: one
    from before them is that of the save before, and Keras would train it once more.
    """
    taken = {p.piece: whole(r.metadata.get(_OPTIMIZER_STEPS)) for p, r in parts}
    there = {p.piece: p for p, _ in parts}
    weights, progress = there.get("weights"), there.get("progress")
    if weights is not None and taken["weights"] is not None and taken["weights"] == taken.get(_BEFORE):
        text = f"it is of step {taken['weights']}, and so is {weights.name}.bkp, which was saved before it"
        yield weights.path, Flaw("step-mismatch", text, severity=Severity.WARNING)
    if weights is not None and progress is not None:
        exact = weights.mtime_ns % _SECOND_NS and "://" not in weights.path
        apart = _APART_NS if exact else _ROUNDED_NS
        if weights.mtime_ns - progress.mtime_ns > apart + _SLOWEST * weights.size:
            text = f"it was written before {weights.name}: the epoch in it is that of an earlier save"
            yield progress.path, Flaw("epoch-mismatch", text, severity=Severity.WARNING)


_WEIGHTS = Piece("weights", "model", "latest.weights.h5", ("hdf5",), where=Where.HERE, content=TELLS_STEP)
_PROGRESS = Piece("progress", "progress", "training_metadata.json", JSON, where=Where.HERE, required=False)
KERAS_BACKUP = Layout(
    name="keras-backup",
    title="Keras BackupAndRestore",
    pieces=(
        _WEIGHTS,
        _PROGRESS,  # only beside latest.weights.h5
        replace(_WEIGHTS, name=_BEFORE, template="latest.weights.h5.bkp", where=Where.NAMED),
    ),
    resume=resume_file,  # BackupAndRestore(backup_dir=path)
    steps=lambda _part, metadata: (whole(metadata.get(_OPTIMIZER_STEPS)), None, None),
    check=_check_backup,
    # without the epoch Keras trains from epoch 0
    complete=Complete(needs=("model",), saved_with=(("weights", "progress"),)),
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
