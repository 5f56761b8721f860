"""A training loop of one's own, where each rank saves its file: ``step_N/rank_R.pt``, or one for each kind of
state (``optim_rank_R.pt``, ``optim/rank_R.pt``). Only in directories in which no framework has a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ckpt_tools.layouts.common.layout import Layout, Metadata, Piece, Steps
from ckpt_tools.layouts.files import EPOCHS, FORMATS, STEPS, number, told_otherwise
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.report import Report

_STEP = (
    "<global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>"
)
_EPOCH = "<epoch|ep|checkpoint_epoch|ckpt_epoch>"
_BETWEEN = "[<_|-|=>]"
HOMES = (
    (f"[{_STEP}{_BETWEEN}]{{step}}", ""),
    (f"{_EPOCH}{_BETWEEN}{{epoch}}[<_|-><step|iter>{_BETWEEN}{{step}}]", "_epoch"),
)
"""Directories of which each holds one checkpoint, each with a mark for the names of the pieces in it."""
_WORDS = (
    ("model", "model|weights|state_dict|model_state|model_states|pytorch_model"),
    ("optimizer", "optimizer|optim|opt|optimizer_state|optimizer_states|optim_state|optim_states"),
    ("scheduler", "scheduler|lr_scheduler|sched"),
    ("rng", "rng|rng_state|rng_states|random_state|random_states"),
    (
        "state",
        "state|states|train|trainer|train_state|trainer_state|training_state|extra_state|extra|meta|metadata",
    ),
    ("data", "data|dataloader|loader|sampler|dataset"),
    ("ema", "ema|ema_model|model_ema"),
    ("scaler", "scaler|grad_scaler"),
)
"""What files of a role are called."""
_RANK = "rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]"
_END = ".<pt|pth|bin|ckpt|safetensors>"


def _steps(part: Part, metadata: Metadata) -> Steps:
    """By what the directory counts; the file tells the rest."""
    step = number(metadata, STEPS) if part.step is None else part.step
    return step, number(metadata, EPOCHS) if part.epoch is None else part.epoch, None


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Finding]]:
    yield from told_otherwise(parts, lambda p: (p.step, p.epoch, None))


def _resume(checkpoint: Checkpoint, _path: str | None) -> Resume:
    return Resume(checkpoint.path)


def _pieces(home: str, mark: str) -> Iterator[Piece]:
    """What ranks save, and what is saved once for all of them. A name without a word is the model's."""
    for role, words in _WORDS:
        word = f"<{words}>"
        rank = f"[{word}[<_|-|.>]]{_RANK}[<_|-|.>{word}]"
        saved = Piece(f"{role}{mark}", role, f"{home}/{rank}{_END}", FORMATS, generic=True)
        yield replace(saved, sharded=role == "rng")
        yield replace(
            saved, sharded=role == "rng", name=f"inner_{role}{mark}", template=f"{home}/{_RANK}/{word}{_END}"
        )
        yield replace(
            saved, sharded=role == "rng", name=f"below_{role}{mark}", template=f"{home}/{word}/{_RANK}{_END}"
        )
        once = Piece(f"shared_{role}{mark}", role, f"{home}/{word}{_END}", FORMATS, shared=True)
        yield replace(once, companion=True, inside=True)
    other = replace(once, name=f"other{mark}", role="other", template=f"{home}/{{name}}.<pt|pth|bin>")
    yield replace(other, companion=True, inside=True)


LAYOUT = Layout(
    name="rank-files",
    title="A file for each rank",
    pieces=tuple(piece for home, mark in HOMES for piece in _pieces(home, mark)),
    resume=_resume,
    own_files=True,
    steps=_steps,
    check=_check,
    reference="the names that training loops give; no framework's files lie in such a directory",
    limits=(
        "how many ranks saved is the highest rank of any checkpoint, where the names do not tell it",
        "the number is a step unless the word before it says epoch",
        "of files of other names no kind of state is known: one of several that is lost is not missed",
    ),
)
