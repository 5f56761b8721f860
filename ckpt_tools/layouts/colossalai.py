"""ColossalAI's applications: ``epoch-E_step-S/`` with the booster's shards in ``modeling/`` and
``optimizer/``, ``lr_scheduler`` and ``running_states.json``, which is written last; Open-Sora's
``epochE-global_stepN/`` and the examples' ``epochE-stepS/`` with ``model/`` in place of ``modeling/``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from msgspec.structs import replace

from ckpt_tools.layouts.common.counters import named_epochs, named_steps
from ckpt_tools.layouts.common.layout import Complete, Counting, Layout, whole
from ckpt_tools.layouts.common.lost_files import without_index
from ckpt_tools.layouts.common.piece import Claim, Piece, nest
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.report import Report

TORCH = ("torch_zip", "torch_legacy")
ST = ("safetensors",)
_HOMES = (
    ("epoch-{epoch}_step-{step_in_epoch}", "modeling", ""),
    ("epoch{epoch}-global_step{step}", "model", "_sora"),
    ("epoch{epoch}-step{step_in_epoch}", "model", "_example"),
)
"""Templates of a directory, what the model's is called in it, and ends of the names of pieces."""
_SHARD = "[-stage-{layer:05d}-shard]-{shard:05d}[-of-{of:05d}]"


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    """running_states.json against the directory's name."""
    yield from named_epochs(parts, "epoch", role="state")
    yield from named_steps(parts, "global_step", role="state")
    for part, report in parts:
        said = whole(report.metadata.get("step")) if part.role == "state" else None
        if None not in (said, part.step_in_epoch) and said != part.step_in_epoch:
            text = f"the name says step {part.step_in_epoch}, the file's step is {said}"
            yield part.path, Flaw("step-mismatch", text)


def _resume(checkpoint: Checkpoint, _path: str | None) -> Resume:
    example = any(p.piece.endswith(("_sora", "_example")) for p in checkpoint.parts)
    flag = "--load" if example else "--load_checkpoint"
    return Resume(checkpoint.path, (flag, checkpoint.path))


def _pieces(modeling: str) -> Iterator[Piece]:
    torch, index = partial(Piece, formats=TORCH, unasked=True), partial(Piece, formats=("safetensors_index",))
    for role, at, binary, arrays in (
        ("model", modeling, "pytorch_model", "model"),
        ("optimizer", "optimizer", "pytorch_optim", "optimizer"),
    ):
        yield torch(f"{role}_bin", role, f"{at}/{binary}{_SHARD}.bin")
        yield index(f"{role}_bin_index", f"{role}_index", f"{at}/{binary}.bin.index.json")
        yield torch(f"{role}_safetensors", role, f"{at}/{arrays}{_SHARD}.safetensors", formats=ST)
        yield index(f"{role}_safetensors_index", f"{role}_index", f"{at}/{arrays}.safetensors.index.json")
    yield torch("groups", "groups", "optimizer/pytorch_optim_group.bin")
    yield torch("adapter", "model", f"{modeling}/adapter_model.safetensors", formats=ST)
    yield torch("adapter_bin", "model", f"{modeling}/adapter_model.bin")
    config = f"{modeling}/<config|generation_config|adapter_config>.json"
    described = Piece("config", "config", config, ("json_member",), claim=Claim.COMPANION)
    yield replace(described, required=False, loaded=False)
    yield torch("scheduler", "scheduler", "lr_scheduler")
    yield Piece("state", "state", "running_states.json", ("json_member",))


_EMA = Piece("ema", "ema", "ema.pt", TORCH)
_OF_SORA = (
    Piece("sampler", "sampler", "sampler", TORCH),
    Piece("ema_arrays", "ema", "ema.safetensors", ST),
    Piece("master_arrays", "master", "master.safetensors", ST),
)
"""What Open-Sora saves of an average, of the sampler and of master weights."""


def _own(p: Piece) -> Piece:
    """Anybody may call directories as the examples do: what only the booster saves tells theirs."""
    common = p.name.endswith("_example") and not p.name.startswith(("optimizer_bin", "groups", "state"))
    return replace(p, claim=Claim.COMPANION) if common else p


LAYOUT = Layout(
    name="colossalai",
    title="ColossalAI applications",
    pieces=(
        *(_own(p) for home, modeling, mark in _HOMES for p in nest(home, _pieces(modeling), mark)),
        *nest(_HOMES[1][0], [_EMA], "_sora", unasked=True),
        # before it counted steps of all epochs
        *map(_own, nest(_HOMES[2][0], [_EMA], "_example", unasked=True)),
        *nest(_HOMES[1][0], _OF_SORA, "_sora", unasked=True),
    ),
    resume=_resume,
    check=_check,
    complete=Complete(commit="state", needs=("model", "optimizer", "scheduler")),
    counting=Counting(first_epoch=0),
    lost=without_index,
    reshardable=True,
    reference=(
        "ColossalAI 0.5: applications/Colossal-LLaMA/colossal_llama/utils/ckpt_io.py and "
        "applications/ColossalChat/coati/utils/ckpt_io.py save_checkpoint(), load_checkpoint(); "
        "colossalai/checkpoint_io/general_checkpoint_io.py, utils.py get_shard_filename(); "
        "examples/community/llama/pretrain.py save() (as Open-Sora 1.0, Grok-1); "
        "Open-Sora opensora/utils/ckpt.py CheckpointIO.save(), load()"
    ),
    limits=(
        "S counts batches: in some trainers (SFT, DPO) of the whole training, in others of the epoch",
        "Open-Sora saves master weights while running_states.json is written: one that is cut off is damaged",
        "ColossalChat's scripts call the flag --checkpoint_path",
        "nothing but its directory tells of which save a model or an optimizer is",
    ),
)
