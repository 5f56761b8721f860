"""Trainers that save in files of torch, all of a run in one directory: timm, MMEngine, Detectron2, fairseq,
Composer, Stable-Baselines3, the ImageNet sample of PyTorch, ESPnet and BasicSR.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from msgspec.structs import replace

from ckpt_tools.layouts import dcp
from ckpt_tools.layouts.common.counters import named_epochs, named_steps, read_steps
from ckpt_tools.layouts.common.layout import (
    Compared,
    Complete,
    Counting,
    Flaws,
    Found,
    Layout,
    Metadata,
    Ranks,
    Rows,
    Saves,
    Steps,
    Tracker,
    check_all,
    loss,
    resume_directory,
    resume_file,
    resume_with,
    whole,
)
from ckpt_tools.layouts.common.lost_files import lost_shards, without_names
from ckpt_tools.layouts.common.piece import (
    COPIES,
    TELLS_STEP,
    TORCH,
    Changes,
    Claim,
    Content,
    Piece,
    Readers,
    Where,
    nest,
    prove,
)
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw, Severity, Verdict
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Resume

# ---- timm: checkpoint-E.pth.tar of the best epochs, counted from 0, last.pth.tar, model_best.pth.tar, and
# recovery-E-B.pth.tar after B batches of epoch E

_OF_TIMM = prove("version")
TIMM = Layout(
    name="timm",
    title="timm",
    pieces=(
        replace(_OF_TIMM, name="epoch", template="checkpoint-{epoch}.pth.tar"),
        replace(_OF_TIMM, name="last", template="last.pth.tar"),
        replace(_OF_TIMM, name="recovery", template="recovery-{epoch}-{step_in_epoch}.pth.tar"),
        replace(_OF_TIMM, name="best", template="model_best.pth.tar", kind=Kind.BEST),
    ),
    resume=resume_with("--resume", "{path}", file=True),
    steps=partial(read_steps, epoch=("epoch",)),
    check=partial(named_epochs, read="epoch"),
    counting=Counting(first_epoch=0),
    reshardable=True,
    reference="timm 1.0.31: utils/checkpoint_saver.py, models/_helpers.py resume_checkpoint()",
    limits=(
        "timm goes on with epoch E + 1 after recovery-E-B.pth.tar: the rest of epoch E is left out",
        "last.pth.tar and a checkpoint-E.pth.tar of its epoch are copies: a whole one stands in for it",
    ),
)

# ---- Detectron2 (fvcore's PeriodicCheckpointer): model_0000499.pth, model_final.pth, and last_checkpoint
# with the name of the newest


def _read_last(data: bytes) -> str | None:
    """The name of the file that ``last_checkpoint`` names, whose path may be that of another machine."""
    name = data.decode("utf-8", "surrogateescape").strip().rpartition("/")[2]
    return name if name.endswith(".pth") and name.isprintable() else None


def _name_last(checkpoint: Checkpoint) -> str:
    """What ``last_checkpoint`` holds: of two files of one step the later, ``model_final.pth``; MMEngine's
    DeepSpeed makes ``iter_N.pth`` a directory.
    """
    part = max(checkpoint.parts, key=lambda p: p.piece == "final")
    return (part.home if part.home.endswith(".pth") else part.path).rpartition("/")[2]


_LAST = Tracker(file="last_checkpoint", read=_read_last, name=_name_last)
_OF_DETECTRON2 = replace(prove("iteration"), name="model", template="model_{step:07d}.pth")
DETECTRON2 = Layout(
    name="detectron2",
    title="Detectron2",
    pieces=(_OF_DETECTRON2, replace(_OF_DETECTRON2, name="final", template="model_final.pth")),
    resume=resume_file,  # checkpointer.load(path)
    steps=partial(read_steps, step=("iteration",)),
    check=partial(named_steps, read="iteration"),
    tracker=_LAST,
    reshardable=True,
    reference=(
        "fvcore/common/checkpoint.py PeriodicCheckpointer.step(), Checkpointer.tag_last_checkpoint(); "
        "iterations count from 0, so model_0000499.pth is written after 500 of them"
    ),
    limits=(
        "resume_or_load(resume=True) follows last_checkpoint, and not the plan: load the planned path",
        "model_final.pth is a whole training state where it holds its iteration",
    ),
)

# ---- MMEngine and MMCV: iter_N.pth, epoch_E.pth, and last_checkpoint with the path of the newest


def _read_mmengine(part: Part, metadata: Metadata) -> Steps:
    """By what the name counts: a damaged epoch_E.pth tells no step, and would come before all that do."""
    if part.epoch is not None:
        return part.step, part.epoch, None
    return read_steps(part, metadata, step=("meta.iter",), epoch=("meta.epoch",))


_OF_MMENGINE = prove("meta.iter", unasked=True)
MMENGINE = Layout(
    name="mmengine",
    title="MMEngine",
    pieces=(
        replace(_OF_MMENGINE, name="iter", template="iter_{step}.pth"),
        replace(_OF_MMENGINE, name="epoch", template="epoch_{epoch}.pth"),
        replace(_OF_MMENGINE, name="best_iter", template="best_{name}_iter_{step}.pth", kind=Kind.BEST),
        replace(_OF_MMENGINE, name="best_epoch", template="best_{name}_epoch_{epoch}.pth", kind=Kind.BEST),
    ),
    resume=resume_with("--resume", "{path}", file=True),
    steps=_read_mmengine,
    check=check_all(partial(named_steps, read="meta.iter"), partial(named_epochs, read="meta.epoch")),
    # CheckpointHook(save_last=False), and MMCV links latest.pth instead
    tracker=replace(_LAST, always=False),
    counting=Counting(first_epoch=1),  # epoch_E.pth is written after epoch E
    reshardable=True,
    reference=(
        "mmengine/hooks/checkpoint_hook.py _save_checkpoint_with_step(), runner/runner.py save_checkpoint(); "
        "tools/train.py --resume of OpenMMLab's projects"
    ),
    limits=(
        "of epoch_E.pth the epoch is told, and not the step",
        "names of other file_name or filename_tmpl are files of no known arrangement",
        "--resume without a path, or auto, follows last_checkpoint, and not the plan",
    ),
)

# ---- fairseq: checkpoint_E_U.pt within epoch E after U updates, checkpointE.pt after it, checkpoint_last.pt
# a copy of the newest

_UPDATES, _ITERATOR = "optimizer_history.num_updates", "extra_state.train_iterator"


def _read_epoch_of_fairseq(metadata: Metadata) -> int | None:
    """The epoch of the last update: at the end of one the iterator stands before the first of the next."""
    epoch = whole(metadata.get(f"{_ITERATOR}.epoch"))
    at_start = metadata.get(f"{_ITERATOR}.iterations_in_epoch") == 0 and whole(metadata.get(_UPDATES))
    return epoch - 1 if epoch and at_start else epoch


def _read_fairseq(part: Part, metadata: Metadata) -> Steps:
    step, epoch, _ = read_steps(part, metadata, step=(_UPDATES,))
    return step, _read_epoch_of_fairseq(metadata) if epoch is None else epoch, None


def _check_fairseq(parts: Rows) -> Found:
    named = [(p, r) for p, r in parts if p.piece.removesuffix("_shard") in ("update", "epoch")]
    yield from named_steps(named, _UPDATES, "num_updates")
    yield from named_epochs(named, _read_epoch_of_fairseq, "train iterator")
    newest = max((n for _, r in named if (n := whole(r.metadata.get(_UPDATES))) is not None), default=0)
    for part, report in parts:
        said = whole(report.metadata.get(_UPDATES))
        if part.piece in ("last", "last_shard") and said is not None and said < newest:
            text = f"it is of update {said}, but one of update {newest} lies beside it: every save renews it"
            yield part.path, Flaw("step-mismatch", text, severity=Severity.WARNING)


def _list_fairseq() -> Iterator[Piece]:
    saved = prove(_UPDATES, unasked=True)
    # with --use-sharded-state each data parallel rank saves its own, and loads that alone
    sharded = replace(saved, readers=Readers(sharded=True, single=True))
    for piece, mark, end in ((sharded, "_shard", "-shard{rank}.pt"), (saved, "", ".pt")):
        for name, template in (
            ("update", "checkpoint_{epoch}_{step}"),
            ("epoch", "checkpoint{epoch}"),
            ("last", "checkpoint_last"),
            ("best", "checkpoint_best"),
            ("best_of", "checkpoint.best_{name}"),
        ):
            kind = Kind.BEST if name.startswith("best") else Kind.PERIODIC
            yield replace(piece, name=f"{name}{mark}", template=f"{template}{end}", kind=kind)


FAIRSEQ = Layout(
    name="fairseq",
    title="fairseq",
    pieces=tuple(_list_fairseq()),
    resume=resume_with("--restore-file", "{path}", file=True),
    steps=_read_fairseq,
    check=_check_fairseq,
    counting=Counting(first_epoch=1),
    reshardable=True,
    reference=(
        "fairseq/checkpoint_utils.py save_checkpoint(), trainer.py state_dict(), "
        "data/iterators.py EpochBatchIterator.state_dict()"
    ),
    limits=(
        "the step of a checkpointE.pt is in it alone: a damaged one has no place in the order of steps",
        "as many ranks as have saved with --use-sharded-state load that again, each its own file",
        "checkpoint_last.pt is a copy: one that is whole stands in for a broken original",
    ),
)

# ---- MosaicML Composer, llm-foundry: epE-baB-rank0.pt after B batches, or a directory epE-baB of shards;
# latest-rank0.pt leads to the newest

_HOME = "ep{epoch}-ba{step}"
_BATCHES, _EPOCHS = (
    tuple(f"state.{time}.{unit}" for time in ("timestamp.Timestamp", "timestamp"))
    for unit in ("batch", "epoch")
)


_OF_RANK = Piece("rank", "model", f"{_HOME}-rank{{shard}}.pt", TORCH, unasked=True)
_LATEST = replace(_OF_RANK, name="latest", template="latest-rank{shard}.pt", content=TELLS_STEP)
COMPOSER = Layout(
    name="composer",
    title="MosaicML Composer",
    pieces=(
        _OF_RANK,
        replace(_LATEST, role="latest", loaded=False, required=False, claim=Claim.COMPANION),
        *nest(_HOME, dcp.PIECES, "_sharded", required=False),
    ),
    resume=resume_file,  # Trainer(load_path=…)
    steps=partial(read_steps, step=_BATCHES, epoch=_EPOCHS),
    check=check_all(
        partial(named_steps, read=_BATCHES, what="timestamp.batch"),
        partial(named_epochs, read=_EPOCHS, what="timestamp.epoch"),
    ),
    lost=lost_shards,
    reshardable=True,
    reference=(
        "composer/callbacks/checkpoint_saver.py, composer/utils/checkpoint.py; composer/core/state.py "
        "state_dict()"
    ),
    limits=(
        "names of a save_filename of the user's own are files of no known arrangement",
        "the timestamp of a sharded checkpoint is not read: its step is that of its name",
    ),
)

# ---- Stable-Baselines3's CheckpointCallback: PREFIX_N_steps.zip, and beside it the replay buffer and the
# statistics of VecNormalize where they are kept; best_model.zip of EvalCallback

_COUNT = "num_timesteps"
_ZIP = Piece("model", "model", "{prefix}_{step}_steps.zip", ("zip_archive",), readers=COPIES)
_BUFFER = Piece(
    "replay_buffer",
    "replay_buffer",
    "{prefix}_replay_buffer_{step}_steps.pkl",
    ("pickle_plain",),
    readers=COPIES,
    unasked=True,
)
_STATISTICS = replace(_BUFFER, name="vecnormalize", template="{prefix}_vecnormalize_{step}_steps.pkl")
_BEST = replace(_ZIP, name="best", template="best_model.zip", kind=Kind.BEST)
STABLE_BASELINES3 = Layout(
    name="stable-baselines3",
    title="Stable-Baselines3 callbacks",
    pieces=(
        _ZIP,
        replace(_BUFFER, changes=Changes.MOVES),
        replace(_STATISTICS, role="vecnormalize"),  # may be frozen
        replace(_BEST, claim=Claim.WEAK, content=Content(step=True, proof=_COUNT)),
    ),
    # what ``PPO.load`` takes; ``load_replay_buffer`` and ``VecNormalize.load`` take the files beside it
    resume=resume_file,
    steps=partial(read_steps, step=(_COUNT,)),
    check=partial(named_steps, read=_COUNT),
    complete=Complete(needs=("model",)),
    compared=Compared.BY_PIECE,
    reshardable=True,
    reference="stable_baselines3/common/callbacks.py CheckpointCallback, EvalCallback; common/save_util.py",
    limits=(
        "models under names of the user's own are zip archives of no known arrangement",
        "a replay buffer or statistics of another step look right where that step's are gone",
    ),
)

# ---- the PyTorch ImageNet sample: every node's first rank saves rank_R/checkpoint.pth.tar and copies it to
# model_best.pth.tar


def _check_sample(parts: Rows) -> Found:
    """All nodes save after the same epoch, and ``model_best`` is a copy.

    A file that is behind the others, or a best ahead of its origin, is not theirs.
    """
    told = [(p, epoch) for p, r in parts if (epoch := whole(r.metadata.get("epoch"))) is not None]
    newest = {p.piece: max(e for o, e in told if o.piece == p.piece) for p, _ in told}
    origin = {p.rank: epoch for p, epoch in told if p.piece == "checkpoint"}
    for p, epoch in sorted(told, key=lambda row: row[0].piece):
        if epoch != newest[p.piece]:
            text = f"it holds epoch {epoch}, another rank's {newest[p.piece]}"
            yield p.path, Flaw("epoch-mismatch", text, severity=Severity.WARNING)
    for p, epoch in told:
        if p.piece == "model_best" and p.rank in origin and epoch > origin[p.rank]:
            text = f"the best is of epoch {epoch}, the checkpoint beside it of {origin[p.rank]}"
            yield p.path, Flaw("epoch-mismatch", text, severity=Severity.WARNING)


_OF_NODE = Piece(
    "checkpoint",
    "model",
    "rank_{rank}/checkpoint.pth.tar",
    TORCH,
    readers=Readers(replicated_over=("dp",)),
    content=TELLS_STEP,
)
PYTORCH_SAMPLE = Layout(
    name="pytorch-sample",
    title="PyTorch data-parallel sample",
    pieces=(
        _OF_NODE,
        replace(_OF_NODE, name="model_best", template="rank_{rank}/model_best.pth.tar", kind=Kind.BEST),
    ),
    resume=lambda _c, path: Resume(path, ("--resume", path) if path else ()),
    ranks=Ranks(own_files=True),  # main.py: torch.load(args.resume), and nothing else
    counting=Counting(first_epoch=1),  # main.py saves epoch + 1, so the number counts finished epochs
    compared=Compared.NONE,  # the names say no step, so siblings of one rank are not comparable in order
    steps=partial(read_steps, step=("global_step", "step", "iteration"), epoch=("epoch",)),
    check=_check_sample,
    reference=(
        "pytorch/examples imagenet/main.py save_checkpoint(): torch.save then shutil.copyfile; 'epoch' is "
        "epoch + 1"
    ),
    limits=(
        "names tell no epoch: it is read from each file before grouping",
        (
            "the sample saves in place: a crash while saving leaves a truncated file and no older one of the "
            "same name"
        ),
    ),
)

# ---- ESPnet 2: checkpoint.pth, all that training goes on from, written over after each epoch; beside it
# Nepoch.pth, the weights alone, and links and averages of these

_STATE = "checkpoint"
_EPOCH_OF_ESPNET = "reporter.epoch"
_CRITERION = "<train|valid>.{name}"
"""A phase and what it measured: each run has a link to its best weights by one, and no other loop does so."""


def _check_espnet(parts: Rows) -> Found:
    """Whether what ESPnet resumes from is a state of training: weights copied over it are none."""
    for part, report in parts:
        if part.piece == _STATE and report.verdict is Verdict.OK and _EPOCH_OF_ESPNET not in report.metadata:
            text = f"{part.name} holds no reporter that tells its epoch, which ESPnet needs to resume"
            yield part.path, Flaw("missing-key", text)


def _find_weights_alone(c: Checkpoint, others: Saves) -> Flaws:
    """Weights are no state of training, and never stand in for it; without a trace of training they are an
    export.
    """
    run = {p.piece for o in (c, *others) if (o.layout, o.run) == (c.layout, c.run) for p in o.parts}
    for part in c.parts:
        if part.piece != _STATE and run & {_STATE, "weights", "latest"}:
            text = f"{part.name} holds the weights alone: ESPnet resumes from checkpoint.pth and nothing else"
            hint = "restore checkpoint.pth; a job that shall start from weights takes them by --init_param"
            yield loss(text, part.path, hint=hint)


_OPTIONAL = partial(Piece, formats=TORCH, kind=Kind.RELEASE, required=False)
ESPNET = Layout(
    name="espnet",
    title="ESPnet 2",
    pieces=(
        _OPTIONAL("best", "model", f"{_CRITERION}.best.pth", kind=Kind.BEST),
        _OPTIONAL("average", "model", f"{_CRITERION}.ave.pth"),
        _OPTIONAL("averaged", "model", f"{_CRITERION}.ave_{{shard}}best[.{{name}}].pth"),
        _OPTIONAL("weights", "model", "{epoch}epoch.pth", claim=Claim.INSIDE),
        # a link to Nepoch.pth, or its copy
        _OPTIONAL("latest", "model", "latest.pth", claim=Claim.INSIDE, changes=Changes.CONSTANT),
        Piece(_STATE, "model", "checkpoint.pth", TORCH, claim=Claim.INSIDE, content=TELLS_STEP),
    ),
    resume=lambda c, path: Resume(path or c.path, ("--resume", "true")),
    steps=partial(read_steps, epoch=(_EPOCH_OF_ESPNET,), by_name=False),
    check=_check_espnet,
    lacks=_find_weights_alone,
    counting=Counting(first_epoch=1),  # Nepoch.pth is written after epoch N
    reshardable=True,
    reference=(
        "espnet2/train/trainer.py Trainer.run(), resume(); train/reporter.py Reporter.state_dict(); "
        "main_funcs/average_nbest_models.py"
    ),
    limits=(
        "ESPnet has one checkpoint.pth, so that there is no older one: where it is damaged a person must say",
        "a directory without a link to the best weights (valid.acc.best.pth) is one of bare files",
    ),
)

# ---- BasicSR: training_states/N.state with the optimizers, and each network as models/net_x_N.pth


def _find_lost_networks(c: Checkpoint, beside: Saves) -> Flaws:
    text = f"there is no {{}}_{c.step}.pth, and the run's other saves have that network"

    def networks(o: Checkpoint) -> frozenset[str]:
        return frozenset(p.name.rpartition("_")[0] for p in o.parts if p.piece == "network")

    return without_names(c, beside, networks, text)


def _find_networks_alone(c: Checkpoint, others: Saves) -> Flaws:
    """The networks once more, as they are at the end of a run: nothing to go on training from."""
    if c.kind is Kind.RELEASE and any((o.layout, o.run) == (c.layout, c.run) for o in others if o is not c):
        text = f"{c.parts[0].name} holds a network alone: the optimizers are in training_states"
        yield loss(text, c.path, hint="a start from the networks alone needs --kind")


_OF_BASICSR = (
    Piece("state", "state", "training_states/{step}.state", TORCH),
    Piece("network", "model", "models/net_{name}_{step}.pth", TORCH),
    replace(
        Piece("latest", "model", "models/net_{name}_latest.pth", TORCH, Kind.RELEASE),
        required=False,
        claim=Claim.COMPANION,
    ),
)
BASICSR = Layout(
    name="basicsr",
    title="BasicSR",
    pieces=tuple(nest("", _OF_BASICSR, where=Where.APART, unasked=True)),
    resume=resume_directory,  # the directory of the experiment
    check=partial(named_steps, read="iter"),
    lacks=_find_networks_alone,
    lost=_find_lost_networks,
    complete=Complete(needs=("model",), saved_with=(("network", "state"),)),
    reshardable=True,
    reference=(
        "basicsr 1.4.2: models/base_model.py save_network(), save_training_state(); "
        "train.py load_resume_state(); utils/misc.py check_resume()"
    ),
    limits=(
        (
            "--auto_resume takes the highest N.state there is: where the choice is older, give it as"
            " path.resume_state"
        ),
        "a network tells no step: one of another save is not seen but by its name",
    ),
)
