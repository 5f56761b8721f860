"""Lightning: ``epoch=E-step=S.ckpt`` with E from 0, ``last.ckpt`` a copy of the newest,
and names of the user's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ckpt_tools.layouts import dcp, deepspeed
from ckpt_tools.layouts.common.counters import named_steps
from ckpt_tools.layouts.common.layout import Beside, Counting, Layout, Metadata, Steps, whole
from ckpt_tools.layouts.common.piece import (
    COPIES,
    OWN,
    TELLS_STEP,
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
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.report import Report

FORMATS = ("torch_zip", "torch_legacy")
LAST = "last[-v{generation}].ckpt"
BEST = "best[<-|_>{name}]-epoch={epoch}-step={step}[-v{generation}].ckpt"
WORDS = "<end|last|step|steps|every|interval|periodic|regular>"
"""What callbacks of one run call their files, to tell them apart."""
NAME = "[{prefix}-]epoch={epoch}-step={step}[-v{generation}].ckpt"
SLASHED = "[{prefix}-]epoch={epoch}-[step={step}-]{name}/{name}={metric}[-v{generation}].ckpt"
"""With a metric whose name has a slash in it, ``{epoch}-{val/loss:.2f}``, which begins a directory's name."""
_STATE = Content(state_key="optimizer_states")
_TELLS_STEP = replace(_STATE, step=True)
_PROVEN = replace(_TELLS_STEP, proof="pytorch-lightning_version")
_SAVED = Piece("", "model", "", FORMATS, readers=COPIES, unasked=True, content=_STATE)
"""A checkpoint in one file. One of a callback with ``save_weights_only`` has no such entry."""


def _steps(_part: Part, metadata: Metadata) -> Steps:
    return whole(metadata.get("global_step")), whole(metadata.get("epoch")), None


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    yield from named_steps(parts, "global_step")
    for part, report in parts:
        said = whole(report.metadata.get("epoch"))
        if said is not None and part.epoch is not None and said != part.epoch:
            yield (
                part.path,
                Flaw("epoch-mismatch", f"the name says epoch {part.epoch}, the file says {said}"),
            )
    yield from _left_behind(parts)


def _left_behind(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    """The newest ``last.ckpt`` where it is of an earlier step than a checkpoint beside it. A run that began
    anew in the directory renews ``last-v1.ckpt`` instead, and leaves the first alone; one that was written
    before that checkpoint is of another callback, or of a job that died between the two.
    """
    named = [
        (p.step, p.mtime_ns) for p, _ in parts if p.piece in ("checkpoint", "called") and p.step is not None
    ]
    newest, at = max(named, default=(0, 0))
    rows = [(whole(r.metadata.get("global_step")), p) for p, r in parts if p.piece == "last"]
    told = [(step, p) for step, p in rows if step is not None]
    step, last = max(told, key=lambda row: row[0], default=(newest, None))
    if last is not None and step < newest:
        text = f"it is of step {step}, but a checkpoint of step {newest} lies beside it"
        if last.mtime_ns < at:
            yield last.path, Flaw("step-mismatch", text, severity=Severity.NOTE)
        else:
            text += f": every save renews {last.path.rpartition('/')[2]}"
            yield last.path, Flaw("step-mismatch", text, severity=Severity.WARNING)


def _resume(checkpoint: Checkpoint, path: str | None) -> Resume:
    path = path or checkpoint.path
    return Resume(path, ("--ckpt_path", path))


def _sharded() -> Iterator[Piece]:
    """A directory instead of a file: DCP's files, and ``meta.pt``, which is written last; or DeepSpeed's,
    with a tag that is always the same.
    """
    for home, mark in ((NAME, "_sharded"), (LAST, "_sharded_last")):
        yield from nest(home, (*dcp.PIECES, dcp.REST), mark, required=False)
        yield from nest(f"{home}/checkpoint", deepspeed.PIECES, f"{deepspeed.MARK}{mark}")
        # names the tag to the engine when it loads that
        tag = Piece("tag", "tag", "latest", claim=Claim.COMPANION, changes=Changes.MARK)
        yield from nest(home, [tag], mark, loaded=False, readers=OWN)
    of_fabric = f"{deepspeed.STEP}/checkpoint"  # Fabric.save(path)
    yield from nest(of_fabric, deepspeed.PIECES, f"{deepspeed.MARK}_fabric")


def _gasps() -> Iterator[Piece]:
    """What Lightning saves when Slurm is about to end the job, with a number that grows, and what its
    OnExceptionCheckpoint saves.
    """
    for name, file in (("hpc", "hpc_ckpt_{name}.ckpt"), ("on_exception", "on_exception.ckpt")):
        piece = Piece(name, "model", file, FORMATS, readers=COPIES, unasked=True)
        yield replace(piece, kind=Kind.DYING_GASP, content=TELLS_STEP)


def _of_model_ranks() -> Iterator[Piece]:
    """NeMo 1: each rank of the model has a directory, in which data parallel rank 0 saves."""
    piece = replace(
        _SAVED, readers=Readers(single=True, replicated_over=("dp", "cp")), claim=Claim.WEAK, content=_PROVEN
    )
    for home in ("mp_rank_{tp:02d}", "tp_rank_{tp:02d}_pp_rank_{pp:03d}"):
        template = f"{home}/{{name}}.ckpt"
        yield replace(piece, name=home[:7].rstrip("_"), template=template)


def _lost(c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Flaw]:
    yield from deepspeed.without_model(c, beside)
    yield from _half_sharded(c)


ARTIFACT = "artifact"
"""The piece of what WandbLogger has logged: a version for each save, with the file in it."""


def _half_sharded(c: Checkpoint) -> Iterator[Flaw]:
    """A directory that lacks one of the two files without which Lightning takes none of it."""
    others = ("tag", "model") if any(p.piece == ARTIFACT for p in c.parts) else ("tag",)
    files = [p for p in c.parts if p.home and p.role not in others and deepspeed.MARK not in p.piece]
    for role, name in (("metadata", ".metadata"), ("state", "meta.pt")) if files else ():
        if all(part.role != role for part in files):
            text = f"{files[0].home.rpartition('/')[2]} has no {name}: Lightning does not load it"
            yield Flaw("missing-part", text, path=files[0].path)


LAYOUT = Layout(
    name="lightning",
    title="PyTorch Lightning",
    beside=Beside(best="best_model_path", traces=(re.compile(r"\.ckpt/latest$"),)),
    counting=Counting(first_epoch=0),
    pieces=(
        replace(_SAVED, name="best", template=BEST, kind=Kind.BEST, content=_TELLS_STEP),
        *_of_model_ranks(),
        replace(_SAVED, name="called", template=NAME.replace("[{prefix}-]", f"{WORDS}-")),
        replace(_SAVED, name="checkpoint", template=NAME),
        replace(_SAVED, name="slashed", template=SLASHED, where=Where.APART, content=_TELLS_STEP),
        replace(_SAVED, name="last", template=LAST, claim=Claim.COMPANION, content=_TELLS_STEP),
        replace(_SAVED, name="named", template="{name}.ckpt", claim=Claim.WEAK, content=_PROVEN),
        replace(
            _SAVED,
            name=ARTIFACT,
            template="{prefix}:v{generation}/model.ckpt",
            claim=Claim.WEAK,
            content=_PROVEN,
        ),
        *_sharded(),
        *_gasps(),
    ),
    resume=_resume,
    steps=_steps,
    check=_check,
    lost=_lost,
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
