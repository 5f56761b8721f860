"""NeMo-RL: ``step_N/policy/weights`` (Megatron-core's ``iter_0000000``, or DCP) and ``policy/optimizer``,
``training_info.json`` and ``train_dataloader.pt``; ``tmp_step_N`` until the save is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ckpt_tools.layouts import dcp, megatron_core
from ckpt_tools.layouts.common.counters import named_steps
from ckpt_tools.layouts.common.layout import Complete, Layout, resume_directory
from ckpt_tools.layouts.common.piece import OWN, Changes, Claim, Piece, Stage, nest
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw, Severity
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Report

_MODELS = "policy", "value"
"""Of a job; the second one in PPO."""


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    yield from dcp.without_common(parts)
    yield from megatron_core.without_metadata(parts)
    yield from named_steps(parts, "step", role="info")


def _lost(c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Flaw]:
    """What Megatron-core writes last, with which common.pt was saved; and the place in the data, which the
    loops of the framework save each time, and ask for: a loop of the user's own may do without. Other saves
    beside it show that by themselves.
    """
    roles = {p.role for p in c.parts}
    if beside:
        return
    for who in _MODELS:
        if (who == "policy" or f"{who}_optimizer_index" in roles) and roles.isdisjoint(_models(who)):
            text = f"there is no model in {who}/weights"
            yield Flaw("missing-part", text, path=c.path)
        if f"{who}_model_index" in roles and f"{who}_optimizer_index" not in roles:
            text = f"there is no {who}/optimizer, and no other save tells whether there was one"
            yield Flaw("missing-part", text, path=c.path, severity=Severity.WARNING)
        if {f"{who}_common", f"{who}_index"} <= roles and f"{who}_metadata" not in roles:
            text = (
                f"there is no metadata.json with {who}/weights/iter_0000000/common.pt: its loader asks for it"
            )
            yield Flaw("missing-part", text, path=c.path)
    if "data" not in roles:
        text = "there is no train_dataloader.pt, without which NeMo-RL's own loops do not resume"
        yield Flaw("missing-part", text, path=c.path, severity=Severity.WARNING)


def _models(who: str) -> tuple[str, ...]:
    """The roles of files that hold a model, or describe those that do."""
    return f"{who}_index", f"{who}_model_index", f"{who}_model"


def _model(who: str) -> Iterator[Piece]:
    """One of the models of a job: the policy, and in PPO the value model."""
    for piece in nest("weights/iter_0000000", megatron_core.PIECES, f"_mcore_{who}"):
        yield replace(piece, role=f"{who}_{piece.role}")
    for directory, role, mark in (
        ("weights", "model", ""),
        ("weights/model", "model", "_inner"),
        ("optimizer", "optimizer", ""),
        ("optimizer/optim", "optimizer", "_inner"),
    ):
        yield from nest(directory, dcp.of_role(f"{who}_{role}"), f"_{who}_{role}{mark}")
    weights = "weights/model/{name}.safetensors"
    yield Piece(f"safetensors_{who}", f"{who}_model", weights, ("safetensors",))


def _pieces() -> Iterator[Piece]:
    for who in _MODELS:
        yield from nest(who, _model(who))
    yield Piece("info", "info", "training_info.json", ("json_member",))
    yield Piece("data", "data", "train_dataloader.pt", ("torch_zip", "torch_legacy"), unasked=True)
    config = Piece("config", "config", "config.yaml", readers=OWN, required=False, loaded=False)
    yield replace(config, changes=Changes.MARK, claim=Claim.COMPANION)  # others call it so, too


LAYOUT = Layout(
    name="nemo-rl",
    title="NeMo-RL",
    pieces=(
        *nest("step_{step}", _pieces()),
        *nest("tmp_step_{step}", _pieces(), "_tmp", stage=Stage.UNDER_WAY),
    ),
    resume=resume_directory,
    check=_check,
    lost=_lost,
    complete=Complete(needs=("info",)),
    reshardable=True,
    reference=(
        "nemo_rl/utils/checkpoint.py CheckpointManager; nemo_rl/utils/native_checkpoint.py save_checkpoint; "
        "nemo_rl/algorithms/{grpo,sft,dpo,rm,distillation}.py"
    ),
    limits=(
        "the framework takes the highest step_N there is: move a damaged one away, or give a view",
        "config.yaml and the tokenizer are not read",
    ),
)
