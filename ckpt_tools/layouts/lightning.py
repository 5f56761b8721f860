"""Lightning: ``epoch=E-step=S.ckpt`` with E from 0, ``last.ckpt`` a copy of the newest,
and names of the user's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ckpt_tools.findings import finding
from ckpt_tools.layouts import dcp, deepspeed
from ckpt_tools.layouts.common.counters import named_steps
from ckpt_tools.layouts.common.layout import Layout, Metadata, Piece, Steps, whole
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.report import Report

FORMATS = ("torch_zip", "torch_legacy")
LAST = "last[-v{generation}].ckpt"
NAME = "[{prefix}-]epoch={epoch}-step={step}[-v{generation}].ckpt"


def _steps(_part: Part, metadata: Metadata) -> Steps:
    return whole(metadata.get("global_step")), whole(metadata.get("epoch")), None


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Finding]]:
    yield from named_steps(parts, lambda m: whole(m.get("global_step")), "global_step")
    yield from _half_sharded(parts)
    for part, report in parts:
        said = whole(report.metadata.get("epoch"))
        if said is not None and part.epoch is not None and said != part.epoch:
            yield (
                part.path,
                finding("epoch-mismatch", f"the name says epoch {part.epoch}, the file says {said}"),
            )
    newest = max((p.step for p, _ in parts if p.piece == "checkpoint" and p.step is not None), default=0)
    for part, report in parts:
        said = whole(report.metadata.get("global_step"))
        if part.piece == "last" and part.path.endswith("/last.ckpt") and said is not None and said < newest:
            text = (
                f"it is of step {said}, but a checkpoint of step {newest} lies beside it: every save renews "
                "last.ckpt"
            )
            yield part.path, finding("step-mismatch", text, severity=Severity.WARNING)


def _resume(checkpoint: Checkpoint, path: str | None) -> Resume:
    path = path or checkpoint.path
    return Resume(path, ("--ckpt_path", path))


def _sharded() -> Iterator[Piece]:
    """A directory instead of a file: DCP's files, and ``meta.pt``, which is written last; or DeepSpeed's,
    with a tag that is always the same.
    """
    for home, mark in ((NAME, "_sharded"), (LAST, "_sharded_last")):
        for piece in dcp.pieces(home, mark):
            yield replace(piece, required=False)
        yield replace(dcp.rest_of_state(home, mark), required=False)
        yield from deepspeed.pieces(f"{home}/checkpoint", f"_deepspeed{mark}")
        # names the tag to the engine when it loads that
        yield Piece(f"tag{mark}", "tag", f"{home}/latest", mark=True, loaded=False, companion=True)
    yield from deepspeed.pieces(f"{deepspeed.STEP}/checkpoint", "_deepspeed_fabric")  # Fabric.save(path)


def _gasps() -> Iterator[Piece]:
    """What Lightning saves when Slurm is about to end the job, with a number that grows, and what its
    OnExceptionCheckpoint saves.
    """
    for name, file in (("hpc", "hpc_ckpt_{name}.ckpt"), ("on_exception", "on_exception.ckpt")):
        piece = Piece(name, "model", file, FORMATS, shared=True, unasked=True, single=True)
        yield replace(piece, kind=Kind.DYING_GASP, step_from="content")


def _half_sharded(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Finding]]:
    """Directories that lack one of the two files without which Lightning takes none of it."""
    homes: dict[str, list[Part]] = {}
    for part, _ in parts:
        if part.home and "_deepspeed" not in part.piece:
            homes.setdefault(part.home, []).append(part)
    for home, files in homes.items():
        for role, name in (("metadata", ".metadata"), ("state", "meta.pt")):
            if all(part.role != role for part in files):
                text = f"{home.rpartition('/')[2]} has no {name}: Lightning does not load it"
                yield files[0].path, finding("missing-part", text)


LAYOUT = Layout(
    name="lightning",
    title="PyTorch Lightning",
    pieces=(
        Piece("checkpoint", "model", NAME, FORMATS, shared=True, unasked=True, single=True),
        Piece(
            "last",
            "model",
            LAST,
            FORMATS,
            shared=True,
            unasked=True,
            single=True,
            step_from="content",
            companion=True,
        ),
        Piece(
            "named",
            "model",
            "{name}.ckpt",
            FORMATS,
            shared=True,
            unasked=True,
            single=True,
            step_from="content",
            weak=True,
            proof="pytorch-lightning_version",
        ),
        *_sharded(),
        *_gasps(),
    ),
    resume=_resume,
    steps=_steps,
    check=_check,
    epoch_base=0,
    reshardable=True,
    compare_steps=False,
    renewed="last",
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
