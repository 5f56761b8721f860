"""EasyLM: ``streaming_train_state_N`` (or ``streaming_params_N``) at milestones, and one file without a
number that is written over.
"""

from __future__ import annotations

from functools import partial

from ckpt_tools.layouts.common.counters import named_steps
from ckpt_tools.layouts.common.layout import Compared, Complete, Layout, Metadata, Steps, resume_file, whole
from ckpt_tools.layouts.common.piece import COPIES, TELLS_STEP, Changes, Claim, Piece
from ckpt_tools.model.part import Part


def _step(metadata: Metadata) -> int | None:
    return whole(metadata.get("step"))


def _steps(part: Part, metadata: Metadata) -> Steps:
    return _step(metadata) if part.step is None else part.step, None, None


_STREAM, _PICKLE = ("msgpack_stream",), ("pickle_plain",)
_BESIDE = partial(Piece, formats=_PICKLE, claim=Claim.COMPANION, loaded=False, required=False)
_PIECES = tuple(
    piece
    for name in ("train_state", "params")
    for piece in (
        Piece(f"{name}_milestone", "model", f"streaming_{name}_{{step}}", _STREAM, readers=COPIES),
        Piece(name, "model", f"streaming_{name}", _STREAM, readers=COPIES, content=TELLS_STEP),
    )
)
LAYOUT = Layout(
    name="easylm",
    title="EasyLM",
    pieces=(
        *_PIECES,
        _BESIDE("metadata", "metadata", "metadata_{step}.pkl"),
        _BESIDE("metadata_last", "metadata", "metadata.pkl", changes=Changes.ROLLING),
        _BESIDE("dataset", "dataset", "dataset_{step}.pkl"),
        _BESIDE("dataset_last", "dataset", "dataset.pkl", changes=Changes.ROLLING),
    ),
    resume=resume_file,
    steps=_steps,
    check=partial(named_steps, read=_step, what="step"),
    complete=Complete(needs=("model",)),
    compared=Compared.BY_ROLE,
    reshardable=True,
    reference="EasyLM/checkpoint.py StreamingCheckpointer.save_all(), load_trainstate_checkpoint()",
    limits=(
        "--load_checkpoint wants trainstate:: or params:: before the path",
        "a file that ends between two arrays looks whole: that it has fewer than others of its run is said",
        "streaming_params tells no step",
    ),
)
