"""ColossalAI's applications: ``epoch-E_step-S/`` with the booster's shards in ``modeling/`` and
``optimizer/``, ``lr_scheduler`` and ``running_states.json``, which is written last; Open-Sora's
``epochE-global_stepN/`` and the examples' ``epochE-stepS/`` with ``model/`` in place of ``modeling/``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
    states = [row for row in parts if row[0].role == "state"]
    yield from named_epochs(states, lambda m: whole(m.get("epoch")), "epoch")
    counted = [row for row in states if row[0].step is not None]
    yield from named_steps(counted, lambda m: whole(m.get("global_step")), "global_step")
    for part, report in states:
        said = whole(report.metadata.get("step"))
        if None not in (said, part.step_in_epoch) and said != part.step_in_epoch:
            text = f"the name says step {part.step_in_epoch}, the file's step is {said}"
            yield part.path, Flaw("step-mismatch", text)


def _resume(checkpoint: Checkpoint, _path: str | None) -> Resume:
    example = any(p.piece.endswith(("_sora", "_example")) for p in checkpoint.parts)
    flag = "--load" if example else "--load_checkpoint"
    return Resume(checkpoint.path, (flag, checkpoint.path))


def _pieces(modeling: str) -> Iterator[Piece]:
    torch = Piece("", "", "", TORCH, unasked=True)
    index = Piece("", "", "", ("safetensors_index",))
    for role, at, names in (
        ("model", modeling, ("pytorch_model.bin", "model.safetensors")),
        ("optimizer", "optimizer", ("pytorch_optim.bin", "optimizer.safetensors")),
    ):
        for name in names:
            stem, _, suffix = name.partition(".")
            formats = TORCH if suffix == "bin" else ST
            shard = f"{at}/{stem}{_SHARD}.{suffix}"
            yield replace(torch, name=f"{role}_{suffix}", role=role, template=shard, formats=formats)
            said = f"{at}/{name}.index.json"
            yield replace(index, name=f"{role}_{suffix}_index", role=f"{role}_index", template=said)
    groups = "optimizer/pytorch_optim_group.bin"
    yield replace(torch, name="groups", role="groups", template=groups)
    adapter = f"{modeling}/adapter_model"
    lora = replace(torch, name="adapter", role="model", template=f"{adapter}.safetensors", formats=ST)
    yield lora
    yield replace(lora, name="adapter_bin", template=f"{adapter}.bin", formats=TORCH)
    described = Piece("", "config", "", ("json_member",), claim=Claim.COMPANION, required=False)
    config = f"{modeling}/<config|generation_config|adapter_config>.json"
    yield replace(described, name="config", template=config, loaded=False)
    yield replace(torch, name="scheduler", role="scheduler", template="lr_scheduler")
    state = "running_states.json"
    yield Piece("state", "state", state, ("json_member",))


def _beside(home: str) -> Iterator[Piece]:
    """What Open-Sora saves of an average, of the sampler and of master weights."""
    torch = Piece("", "", "", TORCH, unasked=True)
    for at, mark in ((home, "sora"), (_HOMES[2][0], "example")):  # before it counted steps of all epochs
        yield replace(torch, name=f"ema_{mark}", role="ema", template=f"{at}/ema.pt")
    yield replace(torch, name="sampler_sora", role="sampler", template=f"{home}/sampler")
    for role in ("ema", "master"):
        arrays = f"{home}/{role}.safetensors"
        yield replace(torch, name=f"{role}_arrays_sora", role=role, template=arrays, formats=ST)


def _own(p: Piece) -> Piece:
    """Anybody may call directories as the examples do: what only the booster saves tells theirs."""
    common = p.name.endswith("_example") and not p.name.startswith(("optimizer_bin", "groups", "state"))
    return replace(p, claim=Claim.COMPANION) if common else p


LAYOUT = Layout(
    name="colossalai",
    title="ColossalAI applications",
    pieces=(
        *(_own(p) for home, modeling, mark in _HOMES for p in nest(home, _pieces(modeling), mark)),
        *map(_own, _beside(_HOMES[1][0])),
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
