"""ColossalAI's applications: ``epoch-E_step-S/`` with the booster's shards in ``modeling/`` and
``optimizer/``, ``lr_scheduler`` and ``running_states.json``, which is written last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ckpt_tools.findings import finding
from ckpt_tools.layouts.common.counters import named_epochs
from ckpt_tools.layouts.common.layout import Layout, Piece, whole
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.report import Report

TORCH = ("torch_zip", "torch_legacy")
ST = ("safetensors",)
_HOME = "epoch-{epoch}_step-{step_in_epoch}"
_SHARD = "[-stage-{layer:05d}-shard]-{shard:05d}"


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Finding]]:
    """running_states.json against the directory's name."""
    states = [row for row in parts if row[0].piece == "state"]
    yield from named_epochs(states, lambda m: whole(m.get("epoch")), "epoch")
    for part, report in states:
        said = whole(report.metadata.get("step"))
        if said is not None and said != part.step_in_epoch:
            text = f"the name says step {part.step_in_epoch}, the file's step is {said}"
            yield part.path, finding("step-mismatch", text)


def _resume(checkpoint: Checkpoint, _path: str | None) -> Resume:
    return Resume(checkpoint.path, ("--load_checkpoint", checkpoint.path))


def _pieces() -> Iterator[Piece]:
    torch = Piece("", "", "", TORCH, shared=True, unasked=True)
    index = Piece("", "", "", ("safetensors_index",), shared=True)
    for role, at, names in (
        ("model", "modeling", ("pytorch_model.bin", "model.safetensors")),
        ("optimizer", "optimizer", ("pytorch_optim.bin", "optimizer.safetensors")),
    ):
        for name in names:
            stem, _, suffix = name.partition(".")
            formats = TORCH if suffix == "bin" else ST
            shard = f"{_HOME}/{at}/{stem}{_SHARD}.{suffix}"
            yield replace(torch, name=f"{role}_{suffix}", role=role, template=shard, formats=formats)
            said = f"{_HOME}/{at}/{name}.index.json"
            yield replace(index, name=f"{role}_{suffix}_index", role=f"{role}_index", template=said)
    groups = f"{_HOME}/optimizer/pytorch_optim_group.bin"
    yield replace(torch, name="groups", role="groups", template=groups)
    adapter = f"{_HOME}/modeling/adapter_model"
    yield replace(torch, name="adapter", role="model", template=f"{adapter}.safetensors", formats=ST)
    yield replace(torch, name="adapter_bin", role="model", template=f"{adapter}.bin")
    config = f"{_HOME}/modeling/<config|generation_config|adapter_config>.json"
    yield Piece(
        "config",
        "config",
        config,
        ("json_member",),
        shared=True,
        companion=True,
        required=False,
        loaded=False,
    )
    yield replace(torch, name="scheduler", role="scheduler", template=f"{_HOME}/lr_scheduler")
    yield Piece("state", "state", f"{_HOME}/running_states.json", ("json_member",), shared=True)


LAYOUT = Layout(
    name="colossalai",
    title="ColossalAI applications",
    pieces=tuple(_pieces()),
    resume=_resume,
    check=_check,
    commit="state",
    needs=("model", "optimizer", "scheduler"),
    epoch_base=0,
    reshardable=True,
    compare_steps=False,
    reference=(
        "ColossalAI 0.5: applications/Colossal-LLaMA/colossal_llama/utils/ckpt_io.py and "
        "applications/ColossalChat/coati/utils/ckpt_io.py save_checkpoint(), load_checkpoint(); "
        "colossalai/checkpoint_io/general_checkpoint_io.py, utils.py get_shard_filename()"
    ),
    limits=(
        "S counts batches: in some trainers (SFT, DPO) of the whole training, in others of the epoch",
        "ColossalChat's scripts call the flag --checkpoint_path",
        "nothing but its directory tells of which save a model or an optimizer is",
    ),
)
