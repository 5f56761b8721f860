"""EasyLM: ``streaming_train_state_N`` (or ``streaming_params_N``) at milestones, and one file without a
number that is written over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ckpt_tools.layouts.common.counters import named_steps
from ckpt_tools.layouts.common.layout import Compared, Complete, Layout, Metadata, Steps, resume_file, whole
from ckpt_tools.layouts.common.piece import COPIES, TELLS_STEP, UNTOLD, Changes, Claim, Piece
from ckpt_tools.model.finding import Flaw
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Report


def _step(metadata: Metadata) -> int | None:
    return whole(metadata.get("step"))


def _steps(part: Part, metadata: Metadata) -> Steps:
    return _step(metadata) if part.step is None else part.step, None, None


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    yield from named_steps(parts, _step, "step")


def _pieces() -> Iterator[Piece]:
    for name in ("train_state", "params"):
        saved = Piece(
            name, "model", f"streaming_{name}", ("msgpack_stream",), readers=COPIES, content=TELLS_STEP
        )
        yield replace(saved, name=f"{name}_milestone", template=f"streaming_{name}_{{step}}", content=UNTOLD)
        yield saved
    for name in ("metadata", "dataset"):
        template = f"{name}_{{step}}.pkl"
        beside = Piece(
            name, name, template, ("pickle_plain",), claim=Claim.COMPANION, loaded=False, required=False
        )
        yield beside
        yield replace(beside, name=f"{name}_last", template=f"{name}.pkl", changes=Changes.ROLLING)


LAYOUT = Layout(
    name="easylm",
    title="EasyLM",
    pieces=tuple(_pieces()),
    resume=resume_file,
    steps=_steps,
    check=_check,
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
