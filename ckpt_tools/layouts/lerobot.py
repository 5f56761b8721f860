"""LeRobot: ``checkpoints/000300/`` with ``pretrained_model/`` and ``training_state/``; ``last`` is a link to
the newest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ckpt_tools.layouts.common.counters import named_steps
from ckpt_tools.layouts.common.layout import Complete, Layout, resume_directory
from ckpt_tools.layouts.common.lost_files import without_names
from ckpt_tools.layouts.common.piece import TELLS_STEP, Changes, Piece, nest
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw, Severity
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Report

ST, JSON = ("safetensors",), ("json_member",)
HOME = "{step:06d}"
_OPTIMIZER = ("optimizer_state.safetensors", "optimizer_param_groups.json")
"""What each optimizer is saved as; several have a directory each."""
_PROCESSOR_STATE = re.compile(r"(policy_(?:pre|post)processor)_step_\d+_.+\.safetensors")


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    """training_step.json against the directory's name."""
    yield from named_steps(parts, "step", role="progress")
    yield from _untold(parts)


def _untold(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    """Files that a JSON file beside them tells of: the states of processors, and the schedule that has noted
    its first learning rate in an optimizer's groups (torch/optim/lr_scheduler.py).
    """
    there = {p.path for p, _ in parts}
    for part, report in parts:
        around = part.path.removesuffix(part.name)
        stem = part.name.removesuffix(".json")
        for name in [str(v) for k, v in report.metadata.items() if k.startswith("state_file.")]:
            if f"{around}{name}" not in there:
                text = f"there is no {name}, which it says holds the state of one of its steps"
                yield part.path, Flaw("missing-part", text)
            elif not name.startswith(stem):
                text = f"it says that {name} holds the state of one of its steps, which is not one of {stem}"
                yield part.path, Flaw("wrong-role", text)
        # a file that was asked about alone has nothing beside it
        scheduled = part.role == "groups" and "initial_lr" in report.metadata and len(there) > 1
        if scheduled and f"{part.home}/training_state/scheduler_state.json" not in there:
            text = "there is no scheduler_state.json, although a schedule has set its learning rate"
            yield part.path, Flaw("missing-part", text, severity=Severity.WARNING)


def _lost(c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Flaw]:
    """What other saves have; where there are none, what is one of two that are saved together."""
    mine = _names(c)
    yield from without_names(c, beside, _names)
    for name in sorted(() if beside else mine):
        other = _saved_with(name)
        if other and other not in mine:
            text = f"there is no {other}, which is saved with {name.rpartition('/')[2]}"
            yield Flaw("missing-part", text, path=c.path)


def _names(c: Checkpoint) -> frozenset[str]:
    return frozenset(p.path.removeprefix(f"{c.path}/") for p in c.parts)


def _saved_with(name: str) -> str:
    """The other half of an optimizer, or what says how the state of a processor is used; else ""."""
    home, _, file = name.rpartition("/")
    processor = _PROCESSOR_STATE.fullmatch(file)
    if file in _OPTIMIZER:
        return f"{home}/{_OPTIMIZER[1 - _OPTIMIZER.index(file)]}"
    return f"{home}/{processor[1]}.json" if processor else ""


_AROUND = "policy_<preprocessor|postprocessor>"
"""What is done to data before and after the policy."""
_STATISTICS = Piece("statistics", "statistics", f"{_AROUND}_step_{{layer}}_{{name}}.safetensors", ST)
_MODEL = (
    Piece("model", "model", "model.safetensors", ST),
    Piece("adapter", "model", "adapter_model.safetensors", ST),
    Piece("config", "config", "train_config.json", JSON),
    Piece("policy", "policy", "<config|adapter_config>.json", JSON),
    Piece("processor", "processor", f"{_AROUND}.json", JSON),
    replace(_STATISTICS, changes=Changes.CONSTANT),  # of the data
)
_OF_OPTIMIZER = (
    Piece("optimizer", "optimizer", _OPTIMIZER[0], ST),
    Piece("groups", "groups", _OPTIMIZER[1], JSON),
)
_STATE = (
    Piece("progress", "progress", "training_step.json", JSON, content=TELLS_STEP),
    Piece("rng", "rng", "rng_state.safetensors", ST),
    *_OF_OPTIMIZER,
    *nest("{name}", _OF_OPTIMIZER, "_each"),
    Piece("scheduler", "scheduler", "scheduler_state.json", JSON),
)
LAYOUT = Layout(
    name="lerobot",
    title="LeRobot",
    pieces=(*nest(f"{HOME}/pretrained_model", _MODEL), *nest(f"{HOME}/training_state", _STATE)),
    resume=resume_directory,
    check=_check,
    lost=_lost,
    complete=Complete(commit="groups", needs=("model", "config", "policy", "progress", "rng", "optimizer")),
    reshardable=True,
    reference=(
        "lerobot 0.4.4: utils/train_utils.py save_checkpoint(), load_training_state(); optim/optimizers.py, "
        "optim/schedulers.py; configs/train.py TrainPipelineConfig.validate(); "
        "processor/pipeline.py from_pretrained(), which opens each state_file"
    ),
    limits=(
        "lerobot-train is given a file of the choice: --config_path=PATH/pretrained_model/train_config.json",
        "of a lone checkpoint nothing tells that a processor without a state, with all its files, is lost",
        "nothing but its directory tells of which save a model or an optimizer is",
    ),
)
