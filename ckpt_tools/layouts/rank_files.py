"""A training loop of one's own, where each rank saves its file: ``step_N/rank_R.pt``, or one for each kind of
state (``optim_rank_R.pt``, ``optim/rank_R.pt``), or ``step_N/checkpoint_R.pt``, also in ``RUN-stepN/``;
``step_N_rank_R.pt`` where all saves lie in one directory, ``rank_R/step_N.pt`` where those of a rank do;
``state_rankR.pt`` where each is written over the last; ``N/weights_tp_rank_world_size=T_OF_pp_….pth`` of
picotron. Where no framework has a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from math import prod

from msgspec.structs import replace

from ckpt_tools.layouts.common.layout import (
    Complete,
    Counting,
    Layout,
    Metadata,
    Ranks,
    Steps,
    resume_directory,
)
from ckpt_tools.layouts.common.loop_counters import EPOCHS, STEPS, number, told_otherwise
from ckpt_tools.layouts.common.lost_files import lost, without_names
from ckpt_tools.layouts.common.piece import OWN, SHARDED, SHARED, TELLS_STEP, Claim, Content, Piece, nest
from ckpt_tools.layouts.files import FORMATS
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Report

_STEP = (
    "<global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>"
)
_EPOCH = "<epoch|ep|checkpoint_epoch|ckpt_epoch>"
_BETWEEN = "[<_|-|=>]"
DATED = "checkpoint_20{name}_{name}-{metric}"
"""What Ray Train V2 calls the directory of a save: by the time, ``checkpoint_2026-11-26_08-53-44.772248``."""
DATE = re.compile(r"checkpoint_(20[0-9]{2}-[0-9]{2}-[0-9]{2}_[0-9]{2}-[0-9]{2}-[0-9]{2}\.[0-9]{6})")
"""Such a name."""
HOMES = (
    (f"[{_STEP}{_BETWEEN}]{{step}}", ""),
    (f"{_EPOCH}{_BETWEEN}{{epoch}}[<_|-><step|iter>{_BETWEEN}{{step}}]", "_epoch"),
    (DATED, "_dated"),
    (f"{{prefix}}<-|_><step|global_step|iter>{_BETWEEN}{{step}}", "_named"),
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
_SIZES = re.compile(r"world_size=[0-9]+_([0-9]{1,6})")
_RANK = "rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]"
_END = ".<pt|pth|bin|ckpt|safetensors>"


_BREAK = "<_|-|.>"
"""Between two words of a name."""
_AT = f"<{_STEP[1:-1]}>{_BETWEEN}{{step}}"
_AT_EPOCH = f"{_EPOCH}{_BETWEEN}{{epoch}}"


def _steps(part: Part, metadata: Metadata) -> Steps:
    """By what the directory counts; the file tells the rest."""
    step = number(metadata, STEPS) if part.step is None else part.step
    return step, number(metadata, EPOCHS) if part.epoch is None else part.epoch, None


def _lacks(c: Checkpoint, others: Sequence[Checkpoint]) -> Iterator[Flaw]:
    """Half of a state never is a checkpoint: the model may lie beside under a name that tells nothing."""
    if not {"model", "state"} & {p.role for p in c.parts} and not c.parts[0].home:
        text = f"{c.label} has files of ranks without a model's: nothing tells which file beside them is that"
        hint = "call it model_STEP.pt, or describe all in ckpt.toml: docs/adding-a-layout.md"
        yield Flaw("missing-part", text, path=c.parts[0].path, hint=hint)
    if gone := _places_gone(c):
        yield Flaw("missing-part", f"{gone} are not there", path=c.path)
    run = [o for o in others if o is not c and (o.layout, o.run, o.kind) == (c.layout, c.run, c.kind)]
    for name in lost(c, run, _others_of) if len(run) > 1 else ():
        text = f"{c.label} has no {name}, which the other checkpoints of the run have"
        yield Flaw("missing-part", text, path=c.path)


def _others_of(c: Checkpoint) -> frozenset[str]:
    """The names of its files of which no kind of state is known."""
    return frozenset(p.name for p in c.parts if p.role == "other")


def _for_all(c: Checkpoint) -> frozenset[str]:
    """The names of what is saved once of a model or a state, of which each rank may save its own part too."""
    return frozenset(p.name for p in c.parts if p.piece.startswith(("shared_model", "shared_state")))


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    yield from told_otherwise(parts, lambda p: (p.step, p.epoch, None))


def _of_a_rank(role: str) -> Piece:
    return Piece("", role, "", FORMATS, readers=SHARDED if role == "rng" else OWN, claim=Claim.GENERIC)


def _pieces(*, dated: bool) -> Iterator[Piece]:
    """What ranks save, and what is saved once for all of them. A name without a word is the model's."""
    for role, words in _WORDS:
        word = f"<{words}>"
        saved = replace(_of_a_rank(role), content=Content(step=dated))
        rank = f"[{word}[<_|-|.>]]{_RANK}[<_|-|.>{word}]"
        yield replace(saved, name=role, template=f"{rank}{_END}")
        yield replace(saved, name=f"inner_{role}", template=f"{_RANK}/{word}{_END}")
        yield replace(saved, name=f"below_{role}", template=f"{word}/{_RANK}{_END}")
        yield Piece(f"shared_{role}", role, f"{word}{_END}", FORMATS, claim=Claim.INSIDE)
    yield Piece("other", "other", "{name}.<pt|pth|bin>", FORMATS, claim=Claim.INSIDE)


_NUMBERED = f"<global_step|step|iter|iteration>{_BETWEEN}{{step}}/checkpoint_{{rank}}.pt"
"""What torch.distributed.checkpoint's experimental checkpointers write: ``step_N/checkpoint_R.pt``."""
_PLACE = "weights_tp_rank_world_size={tp}_{name}_pp_rank_world_size={pp}_{name}.pth"
"""What picotron saves, one for each place of its grid: it works out which one a rank loads."""


def _places_gone(c: Checkpoint) -> str:
    """How many files such a save lacks, by the sizes of the grid in their names; "" for none."""
    names = [_SIZES.findall(p.name) for p in c.parts if p.piece == "place"]
    wanted = max((prod(int(size) for size in sizes) for sizes in names), default=0)
    return f"{wanted - len(names)} of the {wanted} files of its grid" if len(names) < wanted else ""


def _flat(at: str, mark: str) -> Iterator[Piece]:
    """The same where all saves lie in one directory: ``step_10_rank_0.pt``, ``optim_10.rank1.pt``."""
    for role, words in _WORDS:
        word = f"<{words}>"
        saved = _of_a_rank(role)
        first = f"[{word}{_BREAK}]" if role == "model" else f"{word}{_BREAK}"
        for name, template in (
            ("flat", f"{first}{at}{_BREAK}{_RANK}"),
            ("turned", f"{first}{_RANK}{_BREAK}{at}"),
            ("between", f"{at}{_BREAK}{first}{_RANK}"),
        ):
            yield replace(saved, name=f"{name}_{role}{mark}", template=f"{template}{_END}")
        if not mark:
            plain = f"{word}{_BREAK}{{step}}{_BREAK}{_RANK}{_END}"
            yield replace(saved, name=f"plain_{role}", template=plain)
        once = replace(saved, readers=SHARED, claim=Claim.COMPANION)
        yield replace(once, name=f"once_{role}{mark}", template=f"{word}{_BREAK}{at}{_END}")
        if not mark:
            yield replace(once, name=f"plain_once_{role}", template=f"{word}{_BREAK}{{step}}{_END}")


def _in_rank_directories() -> Iterator[Piece]:
    """The same where each rank has a directory: ``rank0/step10.pt``, ``rank_1/optim_epoch_2.pt``."""
    for role, words in _WORDS:
        word = f"<{words}>{_BREAK}"
        first = f"[{word}]" if role == "model" else word
        for at, mark in ((_AT, ""), (_AT_EPOCH, "_epoch")):
            template = f"rank[<_|->]{{rank}}/{first}{at}{_END}"
            saved = replace(_of_a_rank(role), name=f"own_{role}{mark}", template=template)
            yield replace(saved, claim=Claim.COUNTED)


def _written_over() -> Iterator[Piece]:
    """Files that each save writes anew, which tell of which step they are: ``state_rank0.pt``."""
    for role, words in _WORDS:
        word = f"<{words}>"
        saved = replace(_of_a_rank(role), name=f"over_{role}", content=TELLS_STEP)
        first = f"[{word}{_BREAK}]" if role == "model" else f"{word}{_BREAK}"
        yield replace(saved, template=f"{first}{_RANK}{_END}")
        yield replace(saved, name=f"over_{role}_turned", template=f"{_RANK}{_BREAK}{word}{_END}")


LAYOUT = Layout(
    name="rank-files",
    title="A file for each rank",
    pieces=(
        *(p for home, mark in HOMES for p in nest(home, _pieces(dated=home == DATED), mark)),
        Piece("counted", "state", _NUMBERED, FORMATS, claim=Claim.COUNTED, readers=OWN),
        Piece("place", "state", f"{{step}}/{_PLACE}", FORMATS, claim=Claim.GENERIC),
        *_flat(_AT, ""),
        *_flat(_AT_EPOCH, "_epoch"),
        *_in_rank_directories(),
        *_written_over(),
    ),
    resume=resume_directory,
    ranks=Ranks(own_files=True),
    complete=Complete(needs_any=("model", "state", "other")),
    counting=Counting(dated=DATE),
    steps=_steps,
    lacks=_lacks,
    lost=partial(without_names, names=_for_all),
    check=_check,
    reference=(
        "the names that training loops give; no framework's files lie in such a directory; picotron"
        " picotron/checkpoint.py CheckpointManager"
    ),
    limits=(
        "how many ranks saved is the highest rank of any checkpoint, where the names do not tell it",
        "files that are written over (state_rank0.pt) must tell their step: without one nothing joins them",
        "the number is a step unless the word before it says epoch",
    ),
)
