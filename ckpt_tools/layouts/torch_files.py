"""Trainers that save in files of torch, all of a run in one directory: timm, MMEngine, Detectron2, fairseq,
Composer, Stable-Baselines3, the ImageNet sample of PyTorch, ESPnet and BasicSR.
"""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from ckpt_tools.layouts.common.counters import as_int, check_steps, read_steps
from ckpt_tools.layouts.common.layout import Flaws, Found, Metadata, Rows, Saves, Steps, Tracker, read_fitting
from ckpt_tools.layouts.common.lost_files import compare_names, find_lost_shards, loss
from ckpt_tools.layouts.declared import declare
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw, Severity, Verdict
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Resume

TIMM = declare("torch_files", "timm")


def _name_last(checkpoint: Checkpoint) -> str:
    """Return what ``last_checkpoint`` says: the later of two files, or MMEngine's directory iter_N.pth."""
    part = max(checkpoint.parts, key=lambda p: p.piece == "final")
    return (part.home if part.home.endswith(".pth") else part.path).rpartition("/")[2]


_LAST = Tracker(file="last_checkpoint", read=partial(read_fitting, r".+\.pth"), name=_name_last)
DETECTRON2 = declare("torch_files", "detectron2", tracker=_LAST)


def _read_mmengine(part: Part, metadata: Metadata) -> Steps:
    """Return what the name counts: a damaged epoch_E.pth tells no step, and would sort before all others."""
    if part.epoch is not None:
        return part.step, part.epoch, None
    return read_steps(part, metadata, step=("meta.iter",), epoch=("meta.epoch",))


# CheckpointHook(save_last=False), and MMCV links latest.pth instead
MMENGINE = declare("torch_files", "mmengine", steps=_read_mmengine, tracker=replace(_LAST, always=False))

_UPDATES, _ITERATOR = "optimizer_history.num_updates", "extra_state.train_iterator"


def _read_epoch_of_fairseq(metadata: Metadata) -> int | None:
    """Return the epoch of the last update: after an epoch's last one the iterator is at the next epoch."""
    epoch = as_int(metadata.get(f"{_ITERATOR}.epoch"))
    at_start = metadata.get(f"{_ITERATOR}.iterations_in_epoch") == 0 and as_int(metadata.get(_UPDATES))
    return epoch - 1 if epoch and at_start else epoch


def _read_fairseq(part: Part, metadata: Metadata) -> Steps:
    """Return the number of updates, and the epoch in the name, else that of the last update."""
    step, epoch, _ = read_steps(part, metadata, step=(_UPDATES,))
    return step, _read_epoch_of_fairseq(metadata) if epoch is None else epoch, None


def _check_fairseq(parts: Rows) -> Found:
    """Yield files of another update or epoch than their name, and an old checkpoint_last beside new ones."""
    named = [(p, r) for p, r in parts if p.piece.removesuffix("_shard") in ("update", "epoch")]
    yield from check_steps(named, _UPDATES, "num_updates")
    yield from check_steps(named, _read_epoch_of_fairseq, "train iterator", unit="epoch")
    newest = max((n for _, r in named if (n := as_int(r.metadata.get(_UPDATES))) is not None), default=0)
    for part, report in parts:
        own = as_int(report.metadata.get(_UPDATES))
        if part.piece in ("last", "last_shard") and own is not None and own < newest:
            text = f"it is of update {own}, but one of update {newest} lies beside it: every save renews it"
            yield part.path, Flaw("step-mismatch", text, severity=Severity.WARNING)


FAIRSEQ = declare("torch_files", "fairseq", steps=_read_fairseq, check=_check_fairseq)
COMPOSER = declare("torch_files", "composer", lost=find_lost_shards)
STABLE_BASELINES3 = declare("torch_files", "stable-baselines3")


def _check_sample(parts: Rows) -> Found:
    """Yield files of an older epoch than other nodes', and a best one later than its original."""
    rows = [(p, epoch) for p, r in parts if (epoch := as_int(r.metadata.get("epoch"))) is not None]
    newest = {p.piece: max(e for o, e in rows if o.piece == p.piece) for p, _ in rows}
    origin = {p.rank: epoch for p, epoch in rows if p.piece == "checkpoint"}
    for p, epoch in sorted(rows, key=lambda row: row[0].piece):
        if epoch != newest[p.piece]:
            text = f"it holds epoch {epoch}, another rank's {newest[p.piece]}"
            yield p.path, Flaw("epoch-mismatch", text, severity=Severity.WARNING)
    for p, epoch in rows:
        if p.piece == "model_best" and p.rank in origin and epoch > origin[p.rank]:
            text = f"the best is of epoch {epoch}, the checkpoint beside it of {origin[p.rank]}"
            yield p.path, Flaw("epoch-mismatch", text, severity=Severity.WARNING)


PYTORCH_SAMPLE = declare(
    "torch_files",
    "pytorch-sample",
    resume=lambda _c, path: Resume(path, ("--resume", path) if path else ()),
    check=_check_sample,
)

_STATE = "checkpoint"


def _check_espnet(parts: Rows) -> Found:
    """Yield checkpoint.pth, from which ESPnet resumes, if it is no state of training but a weights' copy."""
    for part, report in parts:
        if part.piece == _STATE and report.verdict is Verdict.OK and "reporter.epoch" not in report.metadata:
            text = f"{part.name} holds no reporter that tells its epoch, which ESPnet needs to resume"
            yield part.path, Flaw("missing-key", text)


def _find_weights_alone(c: Checkpoint, others: Saves) -> Flaws:
    """Yield files of weights in a run with traces of training: they never stand in for its state."""
    run = {p.piece for o in (c, *others) if (o.layout, o.run) == (c.layout, c.run) for p in o.parts}
    for part in c.parts:
        if part.piece != _STATE and run & {_STATE, "weights", "latest"}:
            text = f"{part.name} holds the weights alone: ESPnet resumes from checkpoint.pth and nothing else"
            hint = "restore checkpoint.pth; a job that shall start from weights takes them by --init_param"
            yield loss(text, part.path, hint=hint)


ESPNET = declare(
    "torch_files",
    "espnet",
    resume=lambda c, path: Resume(path or c.path, ("--resume", "true")),
    check=_check_espnet,
    lacks=_find_weights_alone,
)


def _find_lost_networks(c: Checkpoint, beside: Saves) -> Flaws:
    """Yield networks (``NETWORK_STEP.pth``) of BasicSR that the saves ``beside`` it have."""
    text = f"there is no {{}}_{c.step}.pth, and the run's other saves have that network"

    def list_networks(o: Checkpoint) -> frozenset[str]:
        return frozenset(p.name.rpartition("_")[0] for p in o.parts if p.piece == "network")

    return compare_names(c, beside, list_networks, text)


def _find_networks_alone(c: Checkpoint, others: Saves) -> Flaws:
    """Yield networks saved once more at the end of a run: training cannot go on from them."""
    if c.kind is Kind.RELEASE and any((o.layout, o.run) == (c.layout, c.run) for o in others if o is not c):
        text = f"{c.parts[0].name} holds a network alone: the optimizers are in training_states"
        yield loss(text, c.path, hint="a start from the networks alone needs --kind")


BASICSR = declare("torch_files", "basicsr", lacks=_find_networks_alone, lost=_find_lost_networks)
