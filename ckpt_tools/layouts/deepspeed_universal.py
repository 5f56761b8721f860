"""DeepSpeed's universal checkpoints: ``<tag>_universal/zero/<parameter>/{fp32,exp_avg,…}.pt``,
which any number of ranks can load.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ckpt_tools.layouts.common.layout import Complete, Layout, Tracker
from ckpt_tools.layouts.common.piece import Content, Piece
from ckpt_tools.layouts.deepspeed import FORMATS, lacking, missed, tag
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.report import Report


def _read_tracker(data: bytes) -> str | None:
    text = data.decode("utf-8", "replace").strip()
    return text.rpartition("/")[2] if text and "\n" not in text and len(text) <= 4096 else None


def _name(part: Part) -> str | None:
    return part.path.removeprefix(f"{part.home}/zero/") if part.piece == "parameter" else None


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    yield from [*missed(parts, _name)] or _half_parameters([part for part, _ in parts if _name(part)])


def _lacks(c: Checkpoint, others: Sequence[Checkpoint]) -> Iterator[Flaw]:
    return lacking(c, others, _name)


def _half_parameters(parts: Sequence[Part]) -> Iterator[tuple[str, Flaw]]:
    """Parameters without a file that every other one of the checkpoint has."""
    homes: dict[str, dict[str, dict[str, Part]]] = {}
    for part in parts:
        directory, _, name = part.path.rpartition("/")
        homes.setdefault(part.home, {}).setdefault(directory, {})[name] = part
    for parameters in homes.values():
        for directory, files in parameters.items():
            others = [set(names) for other, names in parameters.items() if other != directory]
            if gone := sorted(set[str]().union(*others[:1]).intersection(*others) - files.keys()):
                text = f"{', '.join(gone)} is not beside it, which every other parameter has"
                yield next(iter(files.values())).path, Flaw("missing-part", text)


def _resume(checkpoint: Checkpoint, _path: str | None) -> Resume:
    base, name = checkpoint.parts[0].base, tag(checkpoint)
    return Resume(
        checkpoint.path,
        ("--load_dir", base, "--tag", name, "--universal-checkpoint"),
        {"CKPT_LOAD_DIR": base, "CKPT_TAG": name},
    )


HOME = "global_step{step}_universal"
_FIRST = "zero_pp_rank_0_mp_rank_{tp:02d}_model_states.pt"
_OTHERS = "zero_pp_rank_{dp}_mp_rank_{tp:02d}_model_states.pt"
_PARAMETER = "zero/{name}/<fp32|exp_avg|exp_avg_sq|step>.pt"
_MODEL = Piece("", "model", "", FORMATS, unasked=True, content=Content(tensors_in=("parameter",)))
_LAYER = "layer_{layer:02d}-model_{tp:02d}-model_states.pt"
LAYOUT = Layout(
    name="deepspeed-universal",
    title="DeepSpeed universal checkpoint",
    pieces=(
        Piece("parameter", "parameter", f"{HOME}/{_PARAMETER}", FORMATS, unasked=True),
        Piece("optimizer", "optimizer", f"{HOME}/zero/optimizer_state.pt", FORMATS, unasked=True),
        replace(_MODEL, name="model", template=f"{HOME}/mp_rank_{{tp:02d}}_model_states.pt"),
        # of stage 3; each rank loads those of the first
        replace(_MODEL, name="zero3", template=f"{HOME}/{_FIRST}"),
        Piece("zero3_others", "unread", f"{HOME}/{_OTHERS}", FORMATS, required=False, loaded=False),
        Piece("layer", "layer", f"{HOME}/{_LAYER}", FORMATS, unasked=True),
    ),
    resume=_resume,
    check=_check,
    lacks=_lacks,
    tracker=Tracker(file="latest_universal", read=_read_tracker, name=tag),
    complete=Complete(
        needs=("parameter",), needs_any=("model", "layer"), saved_with=(("parameter", "optimizer"),)
    ),
    reshardable=True,
    reference="deepspeed/checkpoint/ds_to_universal.py; latest_universal holds the tag",
    limits=(
        (
            "nothing lists the parameters: one that is gone as a whole is missed only where the run's other "
            "checkpoints have it"
        ),
    ),
)
