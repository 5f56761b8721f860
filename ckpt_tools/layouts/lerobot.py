"""LeRobot: ``checkpoints/000300/`` with ``pretrained_model/`` and ``training_state/``; ``last`` is a link to
the newest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ckpt_tools.findings import finding
from ckpt_tools.layouts.common.counters import named_steps
from ckpt_tools.layouts.common.layout import Layout, Piece, whole
from ckpt_tools.layouts.common.lost_files import lost
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.report import Report

ST, JSON = ("safetensors",), ("json_member",)
HOME = "{step:06d}"
_MODEL = f"{HOME}/pretrained_model"
_STATE = f"{HOME}/training_state"
_OPTIMIZER = ("optimizer_state.safetensors", "optimizer_param_groups.json")
"""What each optimizer is saved as; several have a directory each."""


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Finding]]:
    """training_step.json against the directory's name."""
    steps = [row for row in parts if row[0].piece == "progress"]
    yield from named_steps(steps, lambda m: whole(m.get("step")), "step")


def _lost(c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Finding]:
    for name in lost(c, beside, lambda o: frozenset(p.path.removeprefix(f"{o.path}/") for p in o.parts)):
        text = f"there is no {name}, which the run's other checkpoints have"
        yield finding("missing-part", text, path=c.path)


def _resume(checkpoint: Checkpoint, _path: str | None) -> Resume:
    return Resume(checkpoint.path)


def _pieces() -> Iterator[Piece]:
    model = Piece("model", "model", f"{_MODEL}/model.safetensors", ST, shared=True)
    yield model
    yield replace(model, name="adapter", template=f"{_MODEL}/adapter_model.safetensors")
    config = replace(model, name="config", role="config", formats=JSON)
    yield replace(config, template=f"{_MODEL}/train_config.json")
    policy = f"{_MODEL}/<config|adapter_config>.json"
    yield replace(config, name="policy", role="policy", template=policy)
    around = (
        f"{_MODEL}/policy_<preprocessor|postprocessor>"  # what is done to data before and after the policy
    )
    yield replace(config, name="processor", role="processor", template=f"{around}.json")
    processor = f"{around}_step_{{layer}}_{{name}}.safetensors"
    statistics = replace(model, name="statistics", role="statistics", constant=True)  # of the data
    yield replace(statistics, template=processor)
    progress = replace(config, name="progress", role="progress", step_from="content")
    yield replace(progress, template=f"{_STATE}/training_step.json")
    yield replace(model, name="rng", role="rng", template=f"{_STATE}/rng_state.safetensors")
    for mark, below in (("", ""), ("_each", "{name}/")):
        state, groups = (f"{_STATE}/{below}{name}" for name in _OPTIMIZER)
        yield replace(model, name=f"optimizer{mark}", role="optimizer", template=state)
        yield replace(config, name=f"groups{mark}", role="groups", template=groups)
    schedule = f"{_STATE}/scheduler_state.json"
    yield replace(config, name="scheduler", role="scheduler", template=schedule)


LAYOUT = Layout(
    name="lerobot",
    title="LeRobot",
    pieces=tuple(_pieces()),
    resume=_resume,
    check=_check,
    lost=_lost,
    commit="groups",
    needs=("model", "config", "policy", "progress", "rng", "optimizer"),
    reshardable=True,
    compare_steps=False,
    reference=(
        "lerobot 0.4.4: utils/train_utils.py save_checkpoint(), load_training_state(); optim/optimizers.py, "
        "optim/schedulers.py; configs/train.py TrainPipelineConfig.validate()"
    ),
    limits=(
        "lerobot-train is given a file of the choice: --config_path=PATH/pretrained_model/train_config.json",
        "of a lone checkpoint nothing tells that it had a schedule, which is saved last",
        "nothing but its directory tells of which save a model or an optimizer is",
    ),
)
