"""TensorFlow: ``ckpt-N.index`` with ``ckpt-N.data-0000i-of-0000n``, written by CheckpointManager or Saver,
and the text file ``checkpoint``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ckpt_tools.layouts.common.counters import first
from ckpt_tools.layouts.common.layout import Beside, Complete, Layout, Metadata, Steps, Tracker
from ckpt_tools.layouts.common.piece import TELLS_STEP, Claim, Piece, Stage
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.report import Report

FORMATS = ("tf_bundle",)
_STEP = ("step", "global_step")
_LATEST = re.compile(rb'^\s*model_checkpoint_path\s*:\s*"((?:[^"\\\n]|\\.)*)"', re.MULTILINE)
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|.)", re.DOTALL)


def _steps(part: Part, metadata: Metadata) -> Steps:
    """The step that the job tracked. Without one, Saver's number is the step;
    CheckpointManager's counts saves.
    """
    tracked = first(metadata, _STEP)
    managed = "save_counter" in metadata or "objects" in metadata
    if tracked is None and part.piece.startswith("data") and metadata and not managed:
        return part.generation, part.epoch, None
    return tracked, part.epoch, None


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
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


def prefix(checkpoint: Checkpoint) -> str:
    """What the names of the checkpoint's files have in common."""
    name = checkpoint.parts[0].path.rpartition("/")[2]
    return re.sub(r"\.(index|data-\d+-of-\d+)$", "", name)


def _read_tracker(data: bytes) -> str | None:
    m = _LATEST.search(data)
    return _ESCAPE.sub(_plain, m[1]).decode("utf-8", "replace").rpartition("/")[2] or None if m else None


def _plain(m: re.Match[bytes]) -> bytes:
    """Protobuf's text form writes bytes that are not ASCII in octal."""
    return bytes([int(m[1], 8) & 255]) if m[1][:1] in b"01234567" else m[1]


def _write_tracker(said: int | str) -> bytes:
    """A CheckpointState with one prefix, relative to the file's directory,
    as update_checkpoint_state writes it (its times may be missing).
    """
    name = "".join(
        chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:03o}"
        for b in str(said).encode("utf-8", "surrogateescape")
    )
    return f'model_checkpoint_path: "{name}"\nall_model_checkpoint_paths: "{name}"\n'.encode()


def _beside(checkpoint: Checkpoint) -> tuple[str, ...]:
    return (f"{prefix(checkpoint)}.meta",)  # the graph, for import_meta_graph of TensorFlow 1


def _resume(checkpoint: Checkpoint, _path: str | None) -> Resume:
    return Resume(f"{checkpoint.parts[0].base}/{prefix(checkpoint)}")


def _pieces() -> Iterator[Piece]:
    temporary = Piece("temp", "model", "{prefix}-{generation}_temp/{name}", stage=Stage.UNDER_WAY)
    yield replace(temporary, required=False, loaded=False)
    for name, mark in (("{prefix}-{epoch:04d}.ckpt", "_epoch"), ("{prefix}-{generation}", "")):
        yield Piece(f"index{mark}", "index", f"{name}.index", FORMATS)
        yield Piece(f"data{mark}", "model", f"{name}.data-{{shard:05d}}-of-{{of:05d}}", FORMATS)
    # written over at every save: cp.ckpt of Keras' ModelCheckpoint, my_checkpoint of save_weights()
    alone = Piece("index_alone", "index", "{prefix}.index", FORMATS, claim=Claim.WEAK)
    yield replace(alone, content=TELLS_STEP)  # which names its data files


LAYOUT = Layout(
    name="tensorflow",
    title="TensorFlow checkpoints",
    pieces=tuple(_pieces()),
    resume=_resume,
    steps=_steps,
    check=_check,
    tracker=Tracker(file="checkpoint", read=_read_tracker, write=_write_tracker, name=prefix),
    # the graph of TensorFlow 1 lies beside its bundle
    beside=Beside(asked=_beside, unneeded=((".meta", ".index"),)),
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
