"""NeMo 2: ``<name>--val_loss=1.23-step=99-consumed_samples=100.0[-last]/`` with Megatron-core's files in
``weights/`` and the configuration in ``context/``; ``…-unfinished`` lies beside it until the save is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ckpt_tools.layouts import megatron_core
from ckpt_tools.layouts.common.layout import Complete, Layout
from ckpt_tools.layouts.common.loop_counters import told_otherwise
from ckpt_tools.layouts.common.piece import OWN, Changes, Piece, Stage, nest
from ckpt_tools.layouts.dcp import without_common
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.report import Report

HOME = "[{name}-][epoch={epoch}-]step={step}[-{name}]"


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    """The name counts from 0, ``global_step`` in common.pt from 1."""
    yield from without_common(parts)
    yield from told_otherwise(parts, lambda p: (p.step, None, None))


def _resume(checkpoint: Checkpoint, _path: str | None) -> Resume:
    path = checkpoint.path
    return Resume(path, (f"resume.resume_from_path={path}",))  # AutoResume(resume_from_path=…)


def _pieces() -> Iterator[Piece]:
    yield from nest(f"{HOME}/weights", megatron_core.PIECES)
    yield Piece("context", "context", f"{HOME}/context/io.json", ("json_member",))
    mark = Piece(
        "config",
        "config",
        f"{HOME}/context/model.yaml",
        changes=Changes.MARK,
        required=False,
        loaded=False,
        readers=OWN,
    )
    yield mark
    unfinished = replace(mark, name="unfinished", role="unfinished", template=f"{HOME}-unfinished")
    yield replace(unfinished, stage=Stage.MARKS)


LAYOUT = Layout(
    name="nemo",
    title="NeMo 2",
    pieces=tuple(_pieces()),
    resume=_resume,
    check=_check,
    complete=Complete(commit="metadata", needs=("index",)),
    reshardable=True,
    reference=(
        "nemo/lightning/pytorch/callbacks/model_checkpoint.py _save_checkpoint, "
        "set_checkpoint_unfinished_marker; nemo/lightning/ckpt_utils.py; "
        "nemo/lightning/resume.py _find_trainer_ckpt_path"
    ),
    limits=(
        "AutoResume(resume_if_exists=True) takes the directory that ends in -last and was written last",
        "the step is that of the name, which counts from 0: global_step in common.pt is one more",
        "of context/ only io.json is read, and no YAML",
        "NeMo 1: mp_rank_XX/*.ckpt are files of Lightning, told by what is in them",
    ),
)
