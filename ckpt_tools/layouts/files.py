"""Checkpoint files of no known arrangement:
what somebody's own training loop saves, told apart by names and by what is in the files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ckpt_tools.findings import finding
from ckpt_tools.layouts.common.bare_names import (
    NEVER_ALONE,
    SUFFIXES,
    bare_name_of,
    done_name,
    read_bare_name,
)
from ckpt_tools.layouts.common.counters import borrowed
from ckpt_tools.layouts.common.held import BEGUN, PIECES, ROLLING, holds_of
from ckpt_tools.layouts.common.layout import Layout, Metadata, Piece, Steps
from ckpt_tools.layouts.common.loop_counters import EPOCHS, STEPS, number, told_otherwise
from ckpt_tools.layouts.common.lost_files import weights_of_a_trainer
from ckpt_tools.layouts.common.named_parts import lone_parts
from ckpt_tools.layouts.common.whole_state import lacks_of_state
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.frozen import replace
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.report import Report

TORCH = ("torch_zip", "torch_legacy", "torch_tar")
MAY_BE_DATA = ("npz", "npy")
ARRAYS = ("safetensors", *MAY_BE_DATA)
"""Formats of arrays under names, and nothing else."""
OBJECTS = ("pickle_plain", "joblib")
FORMATS = (*TORCH, "mindspore_ckpt", "safetensors", *MAY_BE_DATA, "eqx")
PADDLE = ("pickle_plain", "paddle_tensors")
KERAS = ("zip_archive", "hdf5")
NUMBERED = "numbered"
"""The piece of names that say nothing of the format: of other content they are those of anything."""


def _ending(*endings: str) -> str:
    """The template of any name with one of these endings, which some file systems keep in capitals."""
    return f"{{name}}.<{'|'.join(e for ending in endings for e in (ending, ending.upper()))}>"


_NAMES = {
    "torch": (_ending("pt", "pth", "pth.tar", "tar", "pyth", "th", "torch", "bin", "checkpoint"), TORCH),
    "adapter": ("{name}.pth.<lora|adapter|adapter_v2>", TORCH),  # what LitGPT trains beside a model
    "vocoder": ("<g|do>_{step:08d}", TORCH),  # HiFi-GAN, BigVGAN: the generator, and all else
    "plain": ("checkpoint_{step}", TORCH),  # Tacotron 2
    NUMBERED: ("<ckpt|checkpoint|model.ckpt>.{step}", (*TORCH, "pickle_plain")),  # Dopamine's are pickles
    "ckpt": (_ending("ckpt"), (*TORCH, "mindspore_ckpt")),
    "safetensors": (_ending("safetensors"), ("safetensors",)),
    "numpy": (_ending("npz", "npy"), MAY_BE_DATA),
    "equinox": (_ending("eqx"), ("eqx",)),
    "paddle": (_ending("pdparams", "pdparam", "pdz", "pdopt", "pdema", "pdstates", "states"), PADDLE),
    "joblib": (_ending("joblib"), OBJECTS),
    "pickle": (_ending("pkl"), (*TORCH, *OBJECTS)),
    "keras": (_ending("keras"), ("zip_archive",)),  # of ModelCheckpoint without an epoch in its name
    "keras_weights": (_ending("weights.h5"), ("hdf5",)),
}
"""The names of files, and the formats that each may have, by the name of its piece."""


_LONGEST = 255
"""Characters of a file's name."""


def _steps(part: Part, metadata: Metadata) -> Steps:
    named = (part.step, part.epoch) != (None, None)
    return (
        (part.step if named else number(metadata, STEPS)),
        (part.epoch if part.epoch is not None else number(metadata, EPOCHS)),
        None,
    )


def _placed(c: Checkpoint) -> bool:
    return (c.step, c.epoch) != (None, None)


def _lacks(c: Checkpoint, others: Sequence[Checkpoint]) -> Iterator[Finding]:
    yield from lone_parts(c, others)
    yield from lacks_of_state(c, others)


def _lost(c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Finding]:
    """What it lacks where a training loop saves all of it each time, as far as the saves on both sides tell:
    a file that is written over may hold an optimizer's state although those that are kept never do.
    """
    yield from _optimizers_alone(c, beside)
    yield from weights_of_a_trainer(c, beside)
    for p in c.parts:
        if (done := done_name(p.name)) != p.name:
            text = f"it is called as a file that is being written, and {done} when it is done"
            yield finding("unfinished-save", text, path=p.path)
    if text := "" if beside else _called_as_a_part(c):
        yield finding("missing-part", text, path=c.parts[0].path, severity=Severity.WARNING)
    like = [o for o in beside if not _holds_more(o, c)]
    trained = any(p.role != "buffer" for p in c.parts)
    if _is_written_over(c) and not all(map(_is_written_over, beside)):
        return  # a copy of the last weights beside saves with numbers, which are what training goes on from
    if c.kind is Kind.PERIODIC and trained and len(like) > 1:
        yield from (replace(f, severity=Severity.WARNING) for f in _lacks(c, like))


def _is_written_over(c: Checkpoint) -> bool:
    return all(p.piece.startswith(ROLLING) for p in c.parts)


def _called_as_a_part(c: Checkpoint) -> str:
    """Why the names of a lone save tell that there was more of it; "" for nothing."""
    if all(not NEVER_ALONE.isdisjoint(bare_name_of(p).words) for p in c.parts):
        return "its name is that of a network which is trained with another one, and that is not there"
    folder = read_bare_name((c.parts[0].home or c.parts[0].base).rpartition("/")[2])
    at = folder.epoch if folder.step is None else folder.step
    numbers = {read_bare_name(p.name).number for p in c.parts}
    number = numbers.pop() if len(numbers) == 1 else None
    if at is not None and number is not None and number < at:
        return f"{number} in its name may be that of a rank in a save of {at}, and no other is there"
    return ""


def _optimizers_alone(c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Finding]:
    """States of optimizers that are written over as the checkpoint is, and whose network is not there."""
    for o in beside if _is_written_over(c) else ():
        held = holds_of(o)
        if held and held.optimizer and not held.weights and _is_written_over(o):
            text = "it holds an optimizer's state alone, and is of no checkpoint: its network may be gone"
            yield finding("passed-over", text, path=o.parts[0].path, severity=Severity.WARNING)


def _holds_more(rolling: Checkpoint, c: Checkpoint) -> bool:
    mine, its = holds_of(c), holds_of(rolling)
    over = any(p.piece.startswith(ROLLING) for p in rolling.parts)
    return over and mine is not None and its is not None and its.optimizer and not mine.optimizer


def _named(p: Part) -> Steps:
    """The step or epoch that a part's own name tells, where it is what the part is taken for."""
    told = bare_name_of(p)
    step, epoch = told.step, told.epoch
    if step is None and told.number == p.step:
        step = told.number
    if epoch is None and step is None and told.number == p.epoch:
        epoch = told.number
    return step, epoch, None


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Finding]]:
    """A file that was saved at the step or epoch of another file, as the names tell;
    two files of one checkpoint that were saved at two steps.
    """
    yield from told_otherwise(parts, _named)
    yield from _torn(
        [(p, said) for p, r in parts if _placed_part(p) and (said := number(r.metadata, STEPS)) is not None]
    )
    yield from borrowed(parts, {"optimizer": ("optimizer_step",)})


def _placed_part(p: Part) -> bool:
    return (p.step, p.epoch) != (None, None)


def _torn(rows: Sequence[tuple[Part, int]]) -> Iterator[tuple[str, Finding]]:
    """Files that are written over at every save, one of which was when the job died."""
    together: dict[object, dict[int, Part]] = {}
    for p, said in rows:
        together.setdefault((p.run, p.kind, p.step, p.epoch), {})[said] = p
    for by_step in together.values():
        low, high = min(by_step), max(by_step)
        if high - low > 1:
            text = f"it is of step {low}, {by_step[high].path.rpartition('/')[2]} of step {high}"
            yield by_step[low].path, finding("step-mismatch", text)


def _resume(checkpoint: Checkpoint, path: str | None) -> Resume:
    return Resume(path or checkpoint.path)


def _pieces() -> Iterator[Piece]:
    for name, (template, formats) in _NAMES.items():
        yield _piece(name, template, formats, step_from="content" if name == "ckpt" else "name")
    template, formats = _NAMES["torch"]
    yield _piece(BEGUN, template, formats)
    for name in PIECES:  # the first good one of several is loaded: what holds most goes first
        for mark in ("", ROLLING):
            piece = _piece(f"{mark}{name}", template, (*FORMATS, *OBJECTS, PADDLE[1], *KERAS))
            yield replace(piece, rolling=bool(mark))


def _piece(name: str, template: str, formats: tuple[str, ...], step_from: str = "name") -> Piece:
    return Piece(
        name,
        "model",
        template,
        formats,
        shared=True,
        single=True,
        step_from=step_from,
        weak=True,
        required=False,
    )


def read_tracker(data: bytes) -> str | None:
    """The name of the checkpoint that a text names, whose path may be that of another machine; None for any
    other text.
    """
    name = data.decode("utf-8", "surrogateescape").strip().rstrip("/").rpartition("/")[2]
    is_name = 0 < len(name) <= _LONGEST and name.isprintable() and not name.isdigit()
    return name if is_name and (SUFFIXES.search(name) or read_bare_name(name).numbered) else None


_TEXTS = ("latest", "latest.txt", "last.txt", "last_checkpoint.txt", "latest_ckpt.txt")
"""What training loops call such a text, beside ``latest_checkpoint.txt``."""


def _text(data: bytes, _base: str) -> str | None:
    return read_tracker(data)


def _paddlespeech(data: bytes, _base: str) -> str | None:
    """The latest of the saves that PaddleSpeech's speech recognition lists, by its tag."""
    tag = re.search(rb"(?:^|\n)model_checkpoint_path:(\w+)\s*\Z", data)
    return f"{tag[1].decode()}.pdparams" if tag else None


def _snapshots(data: bytes, _base: str) -> str | None:
    """The latest that PaddleSpeech's speech synthesis records."""
    import json  # few directories have such records

    try:
        last = json.loads(data.strip().rpartition(b"\n")[2])
    except (ValueError, RecursionError):
        return None
    path = last.get("path") if isinstance(last, dict) and "iteration" in last else None
    return read_tracker(path.encode("utf-8", "replace")) if isinstance(path, str) else None


def named(checkpoint: Checkpoint) -> str:
    """What such a text holds: of several files the model's, and of two of these the one that is kept."""
    first = min(checkpoint.parts, key=lambda p: (p.role != "model", p.piece.startswith(ROLLING)))
    return (first.home or first.path).rpartition("/")[2]


LAYOUT = Layout(
    name="files",
    title="Files of no known arrangement",
    pieces=tuple(_pieces()),
    resume=_resume,
    steps=_steps,
    check=_check,
    lacks=_lacks,
    lost=_lost,
    tracker="latest_checkpoint.txt",
    read_tracker=read_tracker,
    other_trackers=(
        *((name, _text) for name in _TEXTS),
        ("checkpoint_latest", _paddlespeech),
        ("records.jsonl", _snapshots),
    ),
    tracked=named,
    tracked_by_any=True,
    always_tracked=False,
    reshardable=True,
    compare_steps=False,
    last_resort=True,
    steps_by_epoch=True,
    reference=(
        "the files' own formats, and the names that training loops give; the sample that this replaces sorts"
        " them by modification time and tries the newest five"
    ),
    limits=(
        (
            "a number in a name is a step unless the content makes it an epoch, or counts otherwise; other "
            "words in it name a run of its own, as do those of several models that are written over"
        ),
        (
            "files that are counted from 0 or 1 on (agent_0.pt), were saved at one moment or trained equally "
            "far, and do not tell their numbers inside, may be parts of one save: say which one with --run"
        ),
        (
            "a directory is one save where its name counts steps, epochs or saves (step_100, ckpt-100), or is"
            " a number that its files tell too (100), and its files count nothing else"
        ),
        (
            "a .npz, .npy or .pkl is a checkpoint where its name says so, and a .tar where torch.save has"
            " written it as well: of others nobody knows whether they are data"
        ),
        "what joblib keeps, or a pickle of no arrays, is taken for a model, whatever its classes are",
        (
            "an optimizer's state that is written over beside models that are kept is of the newest of these,"
            " or of the one before it, only if both were written within seconds"
        ),
        "of two optimizers' states in one save, or of two other files, each has its name as its role",
        (
            "files of one step that hold different models are two runs: say how they belong together with"
            " [[layout]]; generator and discriminator, actor and critic, policy and value … are one"
        ),
    ),
)
