"""Saves in which each rank has a file: of training loops of one's own, PyTorch's torch_checkpointing,
DLRover, nvidia-resiliency-ext and nanochat.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from math import prod

from msgspec.structs import replace

from ckpt_tools.layouts.common.counters import (
    EPOCHS,
    STEPS,
    borrowed,
    named_steps,
    number,
    read_steps,
    told_otherwise,
)
from ckpt_tools.layouts.common.layout import (
    Beside,
    Compared,
    Complete,
    Counting,
    Flaws,
    Layout,
    Metadata,
    Ranks,
    Saves,
    Steps,
    Tracker,
    check_all,
    loss,
    read_number,
    resume_directory,
    resume_file,
)
from ckpt_tools.layouts.common.lost_files import lost, without_names
from ckpt_tools.layouts.common.piece import (
    JSON,
    OWN,
    SHARDED,
    SHARED,
    TELLS_STEP,
    TORCH,
    Changes,
    Claim,
    Content,
    Piece,
    Readers,
    Stage,
    nest,
)
from ckpt_tools.layouts.files import FORMATS
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import Resume

# ---- a training loop of one's own: step_N/rank_R.pt, or one for each kind of state (optim_rank_R.pt,
# optim/rank_R.pt), or step_N/checkpoint_R.pt, also in RUN-stepN/; step_N_rank_R.pt where all saves lie in one
# directory, rank_R/step_N.pt where those of a rank do; state_rankR.pt where each is written over the last;
# N/weights_tp_rank_world_size=T_OF_pp_….pth of picotron. Where no framework has a file.

_STEP = (
    "<global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>"
)
_EPOCH = "<epoch|ep|checkpoint_epoch|ckpt_epoch>"
_BETWEEN = "[<_|-|=>]"
DATED = "checkpoint_20{name}_{name}-{metric}"
"""What Ray Train V2 calls the directory of a save: by the time, ``checkpoint_2026-11-26_08-53-44.772248``."""
DATE = re.compile(r"checkpoint_(20[0-9]{2}-[0-9]{2}-[0-9]{2}_[0-9]{2}-[0-9]{2}-[0-9]{2}\.[0-9]{6})")
"""Such a name."""
_HOMES = (
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
_NUMBERED = f"<global_step|step|iter|iteration>{_BETWEEN}{{step}}/checkpoint_{{rank}}.pt"
"""What torch.distributed.checkpoint's experimental checkpointers write: ``step_N/checkpoint_R.pt``."""
_PLACE = "{step}/weights_tp_rank_world_size={tp}_{name}_pp_rank_world_size={pp}_{name}.pth"
"""What picotron saves, one for each place of its grid: it works out which one a rank loads."""


def _read_loop(part: Part, metadata: Metadata) -> Steps:
    """By what the directory counts; the file tells the rest."""
    step = number(metadata, STEPS) if part.step is None else part.step
    return step, number(metadata, EPOCHS) if part.epoch is None else part.epoch, None


def _find_half_states(c: Checkpoint, others: Saves) -> Flaws:
    """Half of a state never is a checkpoint: the model may lie beside under a name that tells nothing. What
    picotron lacks, the sizes of the grid in its names tell.
    """
    if not {"model", "state"} & {p.role for p in c.parts} and not c.parts[0].home:
        text = f"{c.label} has files of ranks without a model's: nothing tells which file beside them is that"
        hint = "call it model_STEP.pt, or describe all in ckpt.toml: docs/adding-a-layout.md"
        yield loss(text, c.parts[0].path, hint=hint)
    grid = [_SIZES.findall(p.name) for p in c.parts if p.piece == "place"]
    wanted = max((prod(int(size) for size in sizes) for sizes in grid), default=0)
    if len(grid) < wanted:
        yield loss(f"{wanted - len(grid)} of the {wanted} files of its grid are not there", c.path)

    def names(o: Checkpoint) -> frozenset[str]:
        """Of its files of which no kind of state is known."""
        return frozenset(p.name for p in o.parts if p.role == "other")

    run = [o for o in others if o is not c and (o.layout, o.run, o.kind) == (c.layout, c.run, c.kind)]
    for name in lost(c, run, names) if len(run) > 1 else ():
        yield loss(f"{c.label} has no {name}, which the other checkpoints of the run have", c.path)


def _find_lost_shared(c: Checkpoint, beside: Saves) -> Flaws:
    """What is saved once of a model or a state, of which each rank may save its own part too."""

    def names(o: Checkpoint) -> frozenset[str]:
        return frozenset(p.name for p in o.parts if p.piece.startswith(("shared_model", "shared_state")))

    return without_names(c, beside, names)


def _of_a_rank(role: str) -> Piece:
    return Piece("", role, "", FORMATS, readers=SHARDED if role == "rng" else OWN, claim=Claim.GENERIC)


def _list_in_directory(*, dated: bool) -> Iterator[Piece]:
    """What ranks save, and what is saved once for all of them. A name without a word is the model's."""
    for role, words in _WORDS:
        word = f"<{words}>"
        saved = replace(_of_a_rank(role), content=Content(step=dated))
        yield replace(saved, name=role, template=f"[{word}[<_|-|.>]]{_RANK}[<_|-|.>{word}]{_END}")
        yield replace(saved, name=f"inner_{role}", template=f"{_RANK}/{word}{_END}")
        yield replace(saved, name=f"below_{role}", template=f"{word}/{_RANK}{_END}")
        yield Piece(f"shared_{role}", role, f"{word}{_END}", FORMATS, claim=Claim.INSIDE)
    yield Piece("other", "other", "{name}.<pt|pth|bin>", FORMATS, claim=Claim.INSIDE)


def _list_flat(at: str, mark: str) -> Iterator[Piece]:
    """The same where all saves lie in one directory: ``step_10_rank_0.pt``, ``optim_10.rank1.pt``."""
    for role, words in _WORDS:
        word, saved = f"<{words}>{_BREAK}", _of_a_rank(role)
        once = replace(saved, readers=SHARED, claim=Claim.COMPANION)
        first = f"[{word}]" if role == "model" else word
        named = [
            (saved, f"flat_{role}{mark}", f"{first}{at}{_BREAK}{_RANK}"),
            (saved, f"turned_{role}{mark}", f"{first}{_RANK}{_BREAK}{at}"),
            (saved, f"between_{role}{mark}", f"{at}{_BREAK}{first}{_RANK}"),
            (saved, f"plain_{role}", f"{word}{{step}}{_BREAK}{_RANK}"),
            (once, f"once_{role}{mark}", f"{word}{at}"),
            (once, f"plain_once_{role}", f"{word}{{step}}"),
        ]
        for piece, name, template in named:
            if not (mark and name.startswith("plain")):
                yield replace(piece, name=name, template=f"{template}{_END}")


def _list_by_rank() -> Iterator[Piece]:
    """The same where each rank has a directory: ``rank0/step10.pt``, ``rank_1/optim_epoch_2.pt``."""
    for role, words in _WORDS:
        word = f"<{words}>{_BREAK}"
        first = f"[{word}]" if role == "model" else word
        for at, mark in ((_AT, ""), (_AT_EPOCH, "_epoch")):
            template = f"rank[<_|->]{{rank}}/{first}{at}{_END}"
            saved = replace(_of_a_rank(role), name=f"own_{role}{mark}", template=template)
            yield replace(saved, claim=Claim.COUNTED)


def _list_written_over() -> Iterator[Piece]:
    """Files that each save writes anew, which tell of which step they are: ``state_rank0.pt``."""
    for role, words in _WORDS:
        word = f"<{words}>"
        saved = replace(_of_a_rank(role), name=f"over_{role}", content=TELLS_STEP)
        first = f"[{word}{_BREAK}]" if role == "model" else f"{word}{_BREAK}"
        yield replace(saved, template=f"{first}{_RANK}{_END}")
        yield replace(saved, name=f"over_{role}_turned", template=f"{_RANK}{_BREAK}{word}{_END}")


RANK_FILES = Layout(
    name="rank-files",
    title="A file for each rank",
    pieces=(
        *(p for home, mark in _HOMES for p in nest(home, _list_in_directory(dated=home == DATED), mark)),
        Piece("counted", "state", _NUMBERED, FORMATS, claim=Claim.COUNTED, readers=OWN),
        Piece("place", "state", _PLACE, FORMATS, claim=Claim.GENERIC),
        *_list_flat(_AT, ""),
        *_list_flat(_AT_EPOCH, "_epoch"),
        *_list_by_rank(),
        *_list_written_over(),
    ),
    resume=resume_directory,
    ranks=Ranks(own_files=True),
    complete=Complete(needs_any=("model", "state", "other")),
    counting=Counting(dated=DATE),
    steps=_read_loop,
    lacks=_find_half_states,
    lost=_find_lost_shared,
    check=partial(told_otherwise, named_by=lambda p: (p.step, p.epoch, None)),
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

# ---- PyTorch's torch_checkpointing: a directory of any name, in which each rank has a file for each item
# (step_10/model_0.pt, optimizer_0.pt), beside metadata.pkl where items may be resharded. It is written as
# tmp_step_10 and renamed when all ranks are done.

_ITEMS = (
    ("model", "model|weights|state_dict"),
    ("optimizer", "optimizer|optimizers|optim|opt"),
    ("scheduler", "lr_scheduler|scheduler"),
    ("data", "dataloader|data"),
    ("rng", "rng|rng_state"),
    ("state", "step|train_state|trainer_state|trainer"),
)


def _list_items() -> Iterator[Piece]:
    """What an optimizer's files lie beside: else the number in ``model_0.pt`` may count anything."""
    for role, words in _ITEMS:
        claim = Claim.GENERIC if role == "optimizer" else Claim.INSIDE
        changes = Changes.MOVES if role == "state" else Changes.PER_SAVE
        item = Piece(role, role, f"<{words}>_{{rank}}.pt", TORCH, readers=SHARDED)
        yield replace(item, claim=claim, changes=changes)
    yield Piece("other", "other", "{name}_{rank}.pt", TORCH, readers=SHARDED, claim=Claim.INSIDE)
    once = Piece("metadata", "metadata", "metadata.pkl", ("pickle_plain",), claim=Claim.INSIDE)
    yield replace(once, required=False)


def _find_lost_items(c: Checkpoint, beside: Saves) -> Flaws:
    def items(o: Checkpoint) -> frozenset[str]:
        return frozenset(p.name.rpartition("_")[0] for p in o.parts if p.rank is not None)

    return without_names(c, beside, items, "there is no {}_RANK.pt, which the run's other checkpoints have")


TORCH_CHECKPOINTING = Layout(
    name="torch-checkpointing",
    title="torch_checkpointing",
    pieces=tuple(
        p
        # what its users call a directory so that its name tells the place in the training
        for home, mark in (
            ("[<global_step|step|iteration|iter|checkpoint|ckpt>[<_|-|=>]]{step}", ""),
            ("<epoch|ep>[<_|-|=>]{epoch}", "_epoch"),
        )
        for p in (
            *nest(home, _list_items(), mark, unasked=True),
            *nest(f"tmp_{home}", _list_items(), f"{mark}_begun", unasked=True, stage=Stage.UNDER_WAY),
        )
    ),
    resume=resume_directory,
    complete=Complete(needs=("model",)),
    # checkpoint_reader.py: the files of its rank, unless the items are resharded
    ranks=Ranks(own_files=True, told_by="metadata"),
    lost=_find_lost_items,
    reference=(
        "torch_checkpointing 0.1 checkpoint_layout.py default_torch_layout_info, checkpoint_writer.py "
        "_temp_dir_path, metadata_serialization.py METADATA_FILE_NAME"
    ),
    limits=(
        "a model without an optimizer's files beside it may be anything: it is not taken for its save",
        "items that are given files of other names are not known",
        "blocking saves write metadata.pkl with the first of a process alone: one without it is whole",
    ),
)

# ---- DLRover flash checkpoint: files of the job's own names, dlrover_latest.txt, and ._dlrover_ckpt_stage
# while shards are being counted

_COUNTED = ("step", "iteration", "global_step")
_OF_RANK = Piece("rank", "model", "rank_{rank}.pt", TORCH, readers=SHARDED, claim=Claim.GENERIC)
_WHOLE = Piece("whole", "model", "checkpoint-{step}<.pt|.pth>", TORCH, claim=Claim.COMPANION)
_STAGED = Piece("stage", "stage", "._dlrover_ckpt_stage/{step}.done/{rank}", readers=OWN)
DLROVER = Layout(
    name="dlrover",
    title="DLRover flash checkpoint",
    pieces=(
        *nest("checkpoint-{step}", [_OF_RANK]),
        *nest("{step}", [_OF_RANK], "_plain"),
        replace(_WHOLE, readers=Readers(replicated_over=("dp",))),
        replace(_STAGED, stage=Stage.UNDER_WAY, required=False, loaded=False),
    ),
    resume=resume_file,
    steps=partial(read_steps, step=_COUNTED),
    check=partial(named_steps, read=_COUNTED, what="step"),
    tracker=Tracker(file="dlrover_latest.txt", read=read_number, always=False),
    # FullCheckpointEngine._gen_restore_checkpoint_path: rank_0.pt, or the rank's own
    ranks=Ranks(own_files=True),
    reference=(
        "dlrover/python/elastic_agent/torch/ckpt_saver.py commit_checkpoint; "
        "dlrover/trainer/torch/flash_checkpoint"
    ),
    limits=(
        (
            "FSDP and Megatron checkpoints saved through DLRover have the layout of DCP and Megatron; only"
            " the tracker is DLRover's"
        ),
    ),
)

# ---- nvidia-resiliency-ext's local checkpoints: <session>/<rank>/iter_N_<saved rank>_local.pt, replicas of
# other ranks among them

_LOCAL = "{node}/iter_{step:07d}_{rank}_local"
_SAVED = Piece("local", "model", f"{_LOCAL}.pt", TORCH, readers=SHARDED)
_DIRTY = replace(_SAVED, name="dirty", template=f"{_LOCAL}.dirty.pt", stage=Stage.UNDER_WAY)
NVRX_LOCAL = Layout(
    name="nvrx-local",
    title="NVIDIA resiliency extension, local",
    pieces=(
        _DIRTY,
        replace(_DIRTY, name="dirty_end", template=f"{_LOCAL}.pt.dirty"),
        replace(_SAVED, unasked=True),
    ),
    # LocalCheckpointManager(root).load() takes the newest iteration that all ranks of the group have
    resume=lambda _c, path: Resume(path),
    # LocalCheckpointManager lists and opens the directory of its rank alone
    ranks=Ranks(own_files=True, keepers=True),
    reference="nvidia-resiliency-ext checkpointing/local/ckpt_managers/local_manager.py",
    limits=(
        (
            "the saved rank is in the name, the rank that keeps the copy is the directory: a rank's own copy "
            "is preferred"
        ),
        "files name classes of the extension, so it loads them with weights_only=False",
    ),
)

# ---- nanochat: model_NNNNNN.pt and meta_NNNNNN.json of rank 0, and optim_NNNNNN_rankR.pt of each rank, whose
# optimizer is sharded


NANOCHAT = Layout(
    name="nanochat",
    title="nanochat",
    pieces=(
        Piece("optimizer", "optimizer", "optim_{step:06d}_rank{rank}.pt", TORCH, readers=SHARDED),
        Piece("model", "model", "model_{step:06d}.pt", TORCH, claim=Claim.INSIDE),
        Piece("meta", "metadata", "meta_{step:06d}.json", JSON, claim=Claim.INSIDE),
    ),
    resume=resume_directory,  # base_train's --resume-from-step takes the step below it
    check=check_all(
        partial(named_steps, read="step", role="metadata"),
        partial(borrowed, keys={"optimizer": ("optimizer_step",)}),
    ),
    beside=Beside(
        traces=(re.compile(r"(?:^|/)(?:base|mid|chatsft|chatrl)_checkpoints/[^/]+/meta_\d{6}\.json$"),)
    ),
    complete=Complete(needs=("model", "metadata", "optimizer")),
    ranks=Ranks(own_files=True),
    compared=Compared.NONE,
    reference="nanochat/checkpoint_manager.py save_checkpoint(), load_checkpoint(), find_last_step()",
    limits=(
        "find_last_step() takes the highest model_N.pt there is: say --resume-from-step with the plan's step",
        "models without an optimizer (of fine-tuning) are files of no known arrangement",
    ),
)
