"""Lightning: ``epoch=E-step=S.ckpt`` with E from 0, ``last.ckpt`` a copy of the newest,
and names of the user's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from ckpt_tools.layouts import dcp, deepspeed
from ckpt_tools.layouts.common.counters import named_steps
from ckpt_tools.layouts.common.layout import (
    Beside,
    Counting,
    Flaws,
    Found,
    Layout,
    Rows,
    Saves,
    loss,
    resume_with,
    whole,
)
from ckpt_tools.layouts.common.piece import (
    COPIES,
    OWN,
    TELLS_STEP,
    TORCH,
    Changes,
    Claim,
    Content,
    Piece,
    Readers,
    Where,
    nest,
)
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw, Severity
from ckpt_tools.model.part import Kind

_LAST = "last[-v{generation}].ckpt"
_BEST = "best[<-|_>{name}]-epoch={epoch}-step={step}[-v{generation}].ckpt"
_WORDS = "<end|last|step|steps|every|interval|periodic|regular>"
"""What callbacks of one run call their files, to tell them apart."""
_NAME = "[{prefix}-]epoch={epoch}-step={step}[-v{generation}].ckpt"
_SLASHED = "[{prefix}-]epoch={epoch}-[step={step}-]{name}/{name}={metric}[-v{generation}].ckpt"
"""With a metric whose name has a slash in it, ``{epoch}-{val/loss:.2f}``, which begins a directory's name."""
_ARTIFACT = "artifact"
"""The piece of what WandbLogger has logged: a version for each save, with the file in it."""
_STATE = Content(state_key="optimizer_states")
_TELLS_STEP = replace(_STATE, step=True)
_PROVEN = replace(_TELLS_STEP, proof="pytorch-lightning_version")
_SAVED = Piece("", "model", "", TORCH, readers=COPIES, unasked=True, content=_STATE)
"""A checkpoint in one file. One of a callback with ``save_weights_only`` has no such entry."""


def _check(parts: Rows) -> Found:
    """Also the newest ``last.ckpt`` where it is of an earlier step than a checkpoint beside it. A run that
    began anew in the directory renews ``last-v1.ckpt`` instead, and leaves the first alone; one that was
    written before that checkpoint is of another callback, or of a job that died between the two.
    """
    yield from named_steps(parts, "global_step")
    for part, report in parts:
        said = whole(report.metadata.get("epoch"))
        if None not in (said, part.epoch) and said != part.epoch:
            yield part.path, Flaw("epoch-mismatch", f"the name says epoch {part.epoch}, the file says {said}")
    named = [
        (p.step, p.mtime_ns) for p, _ in parts if p.piece in ("checkpoint", "called") and p.step is not None
    ]
    newest, at = max(named, default=(0, 0))
    rows = [(whole(r.metadata.get("global_step")), p) for p, r in parts if p.piece == "last"]
    told = [(step, p) for step, p in rows if step is not None]
    step, last = max(told, key=lambda row: row[0], default=(newest, None))
    if last is not None and step < newest:
        text, early = (
            f"it is of step {step}, but a checkpoint of step {newest} lies beside it",
            last.mtime_ns < at,
        )
        text += "" if early else f": every save renews {last.name}"
        severity = Severity.NOTE if early else Severity.WARNING
        yield last.path, Flaw("step-mismatch", text, severity=severity)


def _list_sharded() -> Iterator[Piece]:
    """A directory instead of a file: DCP's files, and ``meta.pt``, which is written last; or DeepSpeed's,
    with a tag that is always the same.
    """
    for home, mark in ((_NAME, "_sharded"), (_LAST, "_sharded_last")):
        yield from nest(home, (*dcp.PIECES, dcp.REST), mark, required=False)
        yield from nest(f"{home}/checkpoint", deepspeed.PIECES, f"{deepspeed.MARK}{mark}")
        # names the tag to the engine when it loads that
        tag = Piece("tag", "tag", "latest", claim=Claim.COMPANION, changes=Changes.MARK)
        yield from nest(home, [tag], mark, loaded=False, readers=OWN)
    of_fabric = f"{deepspeed.STEP}/checkpoint"  # Fabric.save(path)
    yield from nest(of_fabric, deepspeed.PIECES, f"{deepspeed.MARK}_fabric")


def _find_lost(c: Checkpoint, beside: Saves) -> Flaws:
    """Also a directory that lacks one of the two files without which Lightning takes none of it."""
    yield from deepspeed.without_model(c, beside)
    others = ("tag", "model") if any(p.piece == _ARTIFACT for p in c.parts) else ("tag",)
    files = [p for p in c.parts if p.home and p.role not in others and deepspeed.MARK not in p.piece]
    for role, name in (("metadata", ".metadata"), ("state", "meta.pt")) if files else ():
        if all(part.role != role for part in files):
            text = f"{files[0].home.rpartition('/')[2]} has no {name}: Lightning does not load it"
            yield loss(text, files[0].path)


_OF_RANKS = Readers(single=True, replicated_over=("dp", "cp"))
_OF_MODEL_RANK = replace(_SAVED, readers=_OF_RANKS, claim=Claim.WEAK, content=_PROVEN)
"""NeMo 1: each rank of the model has a directory, in which data parallel rank 0 saves."""
_GASP = replace(_SAVED, kind=Kind.DYING_GASP, content=TELLS_STEP)
_WEAK = replace(_SAVED, claim=Claim.WEAK, content=_PROVEN)
LIGHTNING = Layout(
    name="lightning",
    title="PyTorch Lightning",
    beside=Beside(best="best_model_path", traces=(re.compile(r"\.ckpt/latest$"),)),
    counting=Counting(first_epoch=0),
    pieces=(
        replace(_SAVED, name="best", template=_BEST, kind=Kind.BEST, content=_TELLS_STEP),
        replace(_OF_MODEL_RANK, name="mp_rank", template="mp_rank_{tp:02d}/{name}.ckpt"),
        replace(_OF_MODEL_RANK, name="tp_rank", template="tp_rank_{tp:02d}_pp_rank_{pp:03d}/{name}.ckpt"),
        replace(_SAVED, name="called", template=_NAME.replace("[{prefix}-]", f"{_WORDS}-")),
        replace(_SAVED, name="checkpoint", template=_NAME),
        replace(_SAVED, name="slashed", template=_SLASHED, where=Where.APART, content=_TELLS_STEP),
        replace(_SAVED, name="last", template=_LAST, claim=Claim.COMPANION, content=_TELLS_STEP),
        replace(_WEAK, name="named", template="{name}.ckpt"),
        replace(_WEAK, name=_ARTIFACT, template="{prefix}:v{generation}/model.ckpt"),
        *_list_sharded(),
        # when Slurm is about to end the job, with a number that grows; and by OnExceptionCheckpoint
        replace(_GASP, name="hpc", template="hpc_ckpt_{name}.ckpt"),
        replace(_GASP, name="on_exception", template="on_exception.ckpt"),
    ),
    resume=resume_with("--ckpt_path", "{path}", file=True),
    steps=lambda _part, metadata: (whole(metadata.get("global_step")), whole(metadata.get("epoch")), None),
    check=_check,
    lost=_find_lost,
    reshardable=True,
    reference=(
        "lightning/pytorch/callbacks/model_checkpoint.py; epoch counts from 0, global_step counts optimizer "
        "steps; trainer/connectors/checkpoint_connector.py hpc_save_path; "
        "callbacks/on_exception_checkpoint.py"
    ),
    limits=(
        "last.ckpt may be a link or a copy: a copy that is whole stands in for a broken original",
        "a fully sharded checkpoint is a directory of that name",
    ),
)
