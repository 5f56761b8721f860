"""TensorFlow's and Keras' saves: TensorFlow's checkpoints, Keras' ModelCheckpoint, weights in shards, and
BackupAndRestore.
"""

from __future__ import annotations

import re

from ckpt_tools.layouts.common.counters import as_int, read_first
from ckpt_tools.layouts.common.layout import (
    Beside,
    Flaws,
    Found,
    Metadata,
    Records,
    Rows,
    Saves,
    Steps,
    Tracker,
)
from ckpt_tools.layouts.common.lost_files import loss
from ckpt_tools.layouts.declared import declare
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw, Notes, Severity
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import Resume

_OPTIMIZER_STEPS = "optimizer/vars/0"
"""The first variable of an optimizer of Keras: the number of its steps."""

_STEP = ("step", "global_step")
_LATEST = re.compile(rb'^\s*model_checkpoint_path\s*:\s*"((?:[^"\\\n]|\\.)*)"', re.MULTILINE)
_STATE = re.compile(rb'(?:\s*\w+\s*:\s*(?:"(?:[^"\\\n]|\\.)*"|[-+.\w]+)[ \t\r]*(?:\n|\Z))+\s*')
"""A CheckpointState whose lines are whole: TensorFlow starts anew rather than read any other."""
_LIMIT = 1 << 20
"""The most bytes of a CheckpointState, which may name every save."""


def _read_tensorflow(part: Part, metadata: Metadata) -> Steps:
    """Return the step that the job tracked, else the number in the name if Saver wrote the file."""
    tracked = read_first(metadata, _STEP)
    # CheckpointManager's number counts saves
    managed = "save_counter" in metadata or "objects" in metadata
    if tracked is None and part.piece.startswith("data") and metadata and not managed:
        return part.generation, part.epoch, None
    return tracked, part.epoch, None


def _check_tensorflow(parts: Rows) -> Found:
    """Yield files of another save (its step, or count of saves) than their name, if most of the run agree."""
    for keys in (_STEP, ("save_counter",)):
        rows = [(p, n) for p, r in parts if (n := read_first(r.metadata, keys)) is not None]
        named = [(p, n) for p, n in rows if p.generation is not None]
        odd = [(p, n) for p, n in named if n != p.generation]
        if 2 * len(odd) < len(named):
            for p, n in odd:
                text = f"the name says {p.generation}, the file's {keys[0]} is {n}"
                yield p.path, Flaw("step-mismatch", text)


def _name_prefix(checkpoint: Checkpoint) -> str:
    """Return the part of their names that all files of a checkpoint have in common."""
    name = checkpoint.parts[0].path.rpartition("/")[2]
    return re.sub(r"\.(index|data-\d+-of-\d+)$", "", name)


def _read_tracker(data: bytes) -> str | None:
    """Return the checkpoint's name in a CheckpointState, protobuf's text form; None for any other text."""

    def unescape(m: re.Match[bytes]) -> bytes:  # bytes that are not ASCII are written in octal
        return bytes([int(m[1], 8) & 255]) if m[1][:1] in b"01234567" else m[1]

    if (m := _LATEST.search(data)) is None:
        return None
    path = re.sub(rb"\\([0-7]{1,3}|.)", unescape, m[1], flags=re.DOTALL)
    return path.decode("utf-8", "replace").rpartition("/")[2] or None


def _write_tracker(prefix: int | str) -> bytes:
    """Return a CheckpointState with one prefix, as update_checkpoint_state writes it, but without times."""
    name = "".join(
        chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:03o}"
        for b in str(prefix).encode("utf-8", "surrogateescape")
    )
    return f'model_checkpoint_path: "{name}"\nall_model_checkpoint_paths: "{name}"\n'.encode()


def _check_tracker(checkpoints: Saves, notes: Notes) -> Flaws:
    """Yield trackers that name the newest save in a whole line, but have other lines that are not whole."""
    for base in sorted({p.base for c in checkpoints for p in c.parts}):
        path = f"{base}/checkpoint"
        data = notes.read(path, _LIMIT)
        if isinstance(data, bytes) and _LATEST.search(data) and not _STATE.fullmatch(data):
            yield Flaw("bad-tracker", "a line of it is not whole: TensorFlow reads nothing of it", path=path)


TENSORFLOW = declare(
    "tensorflow",
    "tensorflow",
    resume=lambda c, _path: Resume(f"{c.parts[0].base}/{_name_prefix(c)}"),
    steps=_read_tensorflow,
    check=_check_tensorflow,
    tracker=Tracker(file="checkpoint", read=_read_tracker, write=_write_tracker, name=_name_prefix),
    records=Records(check=_check_tracker),
    # the graph of TensorFlow 1 lies beside its bundle, for import_meta_graph
    beside=Beside(asked=lambda c: (f"{_name_prefix(c)}.meta",), unneeded=((".meta", ".index"),)),
)
_SHARD = re.compile(r".+_(\d{5})\.weights\.h5")


def _find_lone_shards(c: Checkpoint, others: Saves) -> Flaws:
    """Yield a shard of weights (keras saving_lib.py): numbered like epochs, and no model alone."""
    run = [o for o in (c, *others) if (o.layout, o.run) == (c.layout, c.run)]
    numbers = {m[1] for o in run for p in o.parts if (m := _SHARD.fullmatch(p.name))}
    if "00000" in numbers and _SHARD.fullmatch(c.parts[0].name):
        text = f"one of {len(numbers)} files numbered from 0, as shards of weights are, and epochs are not"
        hint = "load them with Keras itself; if they are epochs, describe them: docs/adding-a-layout.md"
        yield loss(text, c.path, hint=hint)


KERAS = declare(
    "tensorflow",
    "keras",
    resume=lambda _c, path: Resume(path),  # keras.models.load_model(path), or model.load_weights(path)
    lacks=_find_lone_shards,
)


def _check_indexes(parts: Rows) -> Found:
    """Yield indexes that name the shards of another index: they are copies of it."""
    for part, report in parts:
        shards = report.metadata.get("shards_of")
        if part.role == "index" and shards is not None and shards != part.name.removesuffix(".weights.json"):
            yield part.path, loss(f"it names the shards of {str(shards)[:200]!r}, and none of its own")


KERAS_SHARDS = declare(
    "tensorflow",
    "keras-shards",
    # the index, for model.load_weights(path); each shard tells what it is called
    resume=lambda c, _path: Resume(re.sub(r"_[0-9]{5,}\.weights\.h5$", ".weights.json", c.parts[0].path)),
    check=_check_indexes,
)
_APART_NS, _SLOWEST = 250_000_000, 100
"""Copies that do not keep times write the two files of a save in any order, but at most 0.25 s apart, and
100 ns for each byte (10 MB/s).
"""


def _check_backup(parts: Rows) -> Found:
    """Yield weights of the previous save's step (.bkp), and an epoch that was written before the weights."""
    steps = {p.piece: as_int(r.metadata.get(_OPTIMIZER_STEPS)) for p, r in parts}
    files = {p.piece: p for p, _ in parts}
    weights, progress = files.get("weights"), files.get("progress")
    now, before = steps.get("weights"), steps.get("weights_before")
    if weights is not None and now is not None and now == before:
        text = f"it is of step {now}, and so is {weights.name}.bkp, which was saved before it"
        yield weights.path, Flaw("step-mismatch", text, severity=Severity.WARNING)
    if weights is not None and progress is not None:
        # times may be rounded to seconds, or be those of uploads to a store
        exact = weights.mtime_ns % 10**9 and "://" not in weights.path
        tolerance = _APART_NS if exact else 2 * 10**9
        if weights.mtime_ns - progress.mtime_ns > tolerance + _SLOWEST * weights.size:
            text = f"it was written before {weights.name}: the epoch in it is that of an earlier save"
            yield progress.path, Flaw("epoch-mismatch", text, severity=Severity.WARNING)


KERAS_BACKUP = declare(
    "tensorflow",
    "keras-backup",
    steps=lambda _part, metadata: (as_int(metadata.get(_OPTIMIZER_STEPS)), None, None),
    check=_check_backup,
)
