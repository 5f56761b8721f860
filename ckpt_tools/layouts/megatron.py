"""Megatron-LM's legacy (torch.save) checkpoints, Megatron-core's distributed ones, and those of frameworks
that have them inside: NeMo 2, NeMo-RL, and ms-swift.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from msgspec.structs import replace

from ckpt_tools.layouts import dcp
from ckpt_tools.layouts.common.arrays import array
from ckpt_tools.layouts.common.counters import borrowed, last_word, named_steps, told_otherwise
from ckpt_tools.layouts.common.layout import (
    Beside,
    Complete,
    Flaws,
    Found,
    Layout,
    Metadata,
    Ranks,
    Rows,
    Saves,
    Tracker,
    check_all,
    loss,
    read_number,
    resume_directory,
    resume_with,
    whole,
)
from ckpt_tools.layouts.common.lost_files import lost
from ckpt_tools.layouts.common.piece import (
    JSON,
    OWN,
    SAFETENSORS,
    SHARDED,
    TORCH,
    Changes,
    Claim,
    Piece,
    Readers,
    Stage,
    nest,
)
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw, Severity, Verdict
from ckpt_tools.model.part import Kind
from ckpt_tools.model.plan import Resume

# ---- torch.save, with the Ascend per-rank variant that dying jobs write

_COPIED = Readers(replicated_over=("dp", "cp"))
_ZERO = Readers(sharded=True, replicated_over=("dp", "cp"))
_ITERATION = "iter_{step:07d}"
_MP = "mp_rank_{tp:02d}[_{pp:03d}][_{ep:03d}]"


def _list_legacy() -> Iterator[Piece]:
    model = Piece("", "model", "", TORCH, readers=_COPIED, unasked=True)
    optimizer = Piece("", "optimizer", "", TORCH, readers=SHARDED, unasked=True)
    model_ms, optimizer_ms = (
        replace(piece, formats=("mindspore_ckpt",), unasked=False)
        for piece in (model, replace(optimizer, readers=_ZERO))
    )
    model_rank, optim_rank = replace(_COPIED, everyone_saves=True), replace(SHARDED, everyone_saves=True)
    for piece, name, template in (
        (model, "model", f"{_MP}/model_optim_rng.pt"),
        (replace(optimizer, readers=_ZERO), "distrib_optim", f"{_MP}/distrib_optim.pt"),
        (model, "model_rng", f"{_MP}/model_rng.pt"),
        (optimizer, "optim", "mp_rank_{tp:02d}[_{pp:03d}]_{dp:03d}/optim.pt"),
        (optimizer, "layer_wise", f"{_MP}/layer_wise_optimizer_{{dp}}.pt"),
        (replace(model, readers=model_rank), "model_rank", f"{_MP}/model_optim_rng_{{rank}}.pt"),
        (replace(optimizer, readers=optim_rank), "distrib_optim_rank", f"{_MP}/distrib_optim_{{rank}}.pt"),
        (model_ms, "model_ckpt", f"{_MP}/model_optim_rng.ckpt"),
        (optimizer_ms, "optim_ckpt", f"{_MP}/distrib_optim.ckpt"),
    ):
        yield replace(piece, name=name, template=template)


def read_tracker(data: bytes) -> int | str | None:
    """Megatron-LM's ``latest_checkpointed_iteration.txt``: a number, or the word release. Megatron strips as
    well, so a newline is harmless.
    """
    return "release" if data.strip() == b"release" else read_number(data)


def _check_legacy(parts: Rows) -> Found:
    """Files of another iteration than their directory says.

    In some versions args.iteration is what the job started from: it counts only where the file has no own
    one.
    """
    for part, report in parts:
        key = "iteration" if "iteration" in report.metadata else "args.iteration"
        said = whole(report.metadata.get(key))
        if said is not None and part.step is not None and said != part.step:
            text = f"the directory says iteration {part.step}, the file says {said} ({key})"
            yield part.path, Flaw("step-mismatch", text)


def _resume(checkpoint: Checkpoint, _path: str | None) -> Resume:
    """Megatron-LM's arguments: the directory above the iterations, and the iteration."""
    base = checkpoint.parts[0].base
    if checkpoint.kind is Kind.RELEASE:
        return Resume(base, ("--load", base))  # Megatron finds release/ through its tracker
    return Resume(base, ("--load", base, "--ckpt-step", str(checkpoint.step)))


TRACKER = Tracker(file="latest_checkpointed_iteration.txt", read=read_tracker)
MEGATRON = Layout(
    name="megatron",
    title="Megatron-LM legacy",
    pieces=(
        *nest(_ITERATION, _list_legacy()),
        *nest(f"{_ITERATION}_tmp", _list_legacy(), "_gasp", kind=Kind.DYING_GASP, stage=Stage.UNDER_WAY),
        *nest("release", _list_legacy(), "_release", kind=Kind.RELEASE),
    ),
    resume=_resume,
    ranks=Ranks(own_files=True),
    complete=Complete(
        needs=("model",),
        one_of=(
            ("model", "model_rng"),
            ("distrib_optim", "optim", "layer_wise"),
            ("model_rank", "distrib_optim"),  # which is called after its rank, too, where the model is
            ("model_rank", "optim"),
        ),
    ),
    tracker=TRACKER,
    check=_check_legacy,
    reference=(
        "Megatron-LM megatron/training/checkpointing.py get_checkpoint_name(), read_metadata(); Ascend "
        "ModelLink per-rank names; MindIO's adaptor tft_dump.py get_checkpoint_name(), tft_rename_callback();"
        " MindSpeed-Core-MS tools/converter (.ckpt)"
    ),
    limits=(
        "mp_rank_00_001 is pipeline stage 1 or expert 1: the file's own args decide",
        "optim.pt carries no iteration of its own, so a swapped one shows only in its tensors",
    ),
)

# ---- Megatron-core: iter_N/ with metadata.json, .metadata, __R_K.distcp and, up to mid-2026, common.pt:
# since then what it held is common_state among the entries of .metadata, and metadata.json names no
# common_backend. The formats torch_dcp and fsdp_dtensor are torch's own DCP: .metadata is written last.

_ARRAY = "array"


def _find_lost_of_core(c: Checkpoint, beside: Saves) -> Flaws:
    """Arrays of the format ``zarr``, which nothing lists; and the counters of Megatron-Bridge, without which
    its loader asks Megatron-LM's arguments, which it never saved.
    """

    def arrays(o: Checkpoint) -> frozenset[str]:
        return frozenset(p.path.removeprefix(f"{o.path}/") for p in o.parts if p.piece.startswith(_ARRAY))

    for path in lost(c, beside, arrays):
        text = f"there is no array {path.removesuffix('/.zarray')!r}, which the run's other checkpoints have"
        yield loss(text, c.path)
    roles = {p.role for p in c.parts}
    if not beside and "run_config" in roles and "train_state" not in roles:
        text = (
            "there is no train_state.pt, which is saved with run_config.yaml and tells how far training was"
        )
        yield loss(text, c.path)


def _read_iteration(metadata: Metadata) -> int | None:
    own = {k: v for k, v in metadata.items() if "args." not in k and "optim" not in k}
    return last_word(own, ("iteration",))


def without_metadata(parts: Rows) -> Found:
    """Saves of ``torch_dist`` whose metadata.json is not there: only its writer keeps a ``common_state``."""
    seen = {p.folder.directory for p, _ in parts if p.name == "metadata.json"}
    for part, report in parts:
        home = part.folder.directory
        if home not in seen and any(key.startswith("common_state/") for key in report.metadata):
            seen.add(home)
            yield (
                part.path,
                loss("metadata.json, which is written last, is not there: its loader asks for it"),
            )


_check_core = check_all(
    dcp.without_common,
    without_metadata,
    partial(named_steps, read=_read_iteration, what="iteration"),
    partial(named_steps, read="step", role="train_state"),
    partial(borrowed, keys={"data": ("optimizer_step",), "prefixed": ("optimizer_step",)}),
)


def _list_core() -> Iterator[Piece]:
    plain = Piece("", "", "", dcp.FORMATS)
    torch = replace(plain, formats=TORCH, unasked=True)
    data, sums = replace(plain, required=False), replace(plain, formats=("mcore_integrity",), loaded=False)
    mark = replace(data, formats=(), changes=Changes.MARK, loaded=False)
    for piece, name, role, file in (
        (replace(plain, formats=JSON), "metadata_json", "metadata", "metadata.json"),
        (plain, "index", "index", ".metadata"),
        (replace(torch, required=False), "common", "common", "common.pt"),
        (data, "data", "model", "__{rank}_{shard}.distcp"),
        (data, "prefixed", "model", "{name}__{rank}_{shard}.distcp"),
        (sums, "integrity", "integrity", "integrity.json"),
        (torch, "train_state", "train_state", "train_state.pt"),
        (mark, "run_config", "run_config", "run_config.yaml"),
        (torch, "dataloader", "dataloader", "train_dataloader_dprank{dp:03d}.pt"),
    ):
        yield replace(piece, name=name, role=role, template=file)
    yield replace(array(_ARRAY, "{name}", sure=False), role="index")


_OF_CORE = tuple(_list_core())
"""The files of a checkpoint in its directory."""
MEGATRON_CORE = Layout(
    name="megatron-core",
    title="Megatron-core distributed checkpoint",
    pieces=(*nest(_ITERATION, _OF_CORE), *nest("release", _OF_CORE, "_release", kind=Kind.RELEASE)),
    resume=_resume,
    check=_check_core,
    lost=_find_lost_of_core,
    beside=Beside(written=re.compile(".*")),  # zarr.create(…, write_empty_chunks=True)
    tracker=replace(TRACKER, state_copy="latest_train_state.pt"),
    ranks=Ranks(told_by="common"),
    complete=Complete(commit="metadata", commit_beside=("common",), commit_alone="index", needs=("index",)),
    reshardable=True,
    reference=(
        "Megatron-LM megatron/core/dist_checkpointing/serialization.py save(), strategies/{torch,zarr}.py; "
        "metadata.json is written last; Megatron-Bridge src/megatron/bridge/training/checkpointing.py "
        "(train_state.pt, latest_train_state.pt and run_config.yaml after it)"
    ),
    limits=(
        "of Megatron-Bridge's trackers 'ckpt repair --tracker' writes the text alone, which Bridge asks last",
        (
            "a data file of another iteration with the same sizes is seen through integrity.json, or while "
            "that iteration is there"
        ),
    ),
)

# ---- NeMo 2: <name>--val_loss=1.23-step=99-consumed_samples=100.0[-last]/ with Megatron-core's files in
# weights/ and the configuration in context/; …-unfinished lies beside it until the save is done

_OF_NEMO = "[{name}-][epoch={epoch}-]step={step}[-{name}]"
_CONFIG = Piece("config", "config", "", changes=Changes.MARK, required=False, loaded=False, readers=OWN)
_UNFINISHED = replace(_CONFIG, name="unfinished", role="unfinished", template=f"{_OF_NEMO}-unfinished")


NEMO = Layout(
    name="nemo",
    title="NeMo 2",
    pieces=(
        *nest(f"{_OF_NEMO}/weights", _OF_CORE),
        Piece("context", "context", f"{_OF_NEMO}/context/io.json", JSON),
        replace(_CONFIG, template=f"{_OF_NEMO}/context/model.yaml"),
        replace(_UNFINISHED, stage=Stage.MARKS),
    ),
    resume=resume_with("resume.resume_from_path={path}"),  # AutoResume(resume_from_path=…)
    check=check_all(
        dcp.without_common,
        # the name counts from 0, ``global_step`` in common.pt from 1
        partial(told_otherwise, named_by=lambda p: (p.step, None, None)),
    ),
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

# ---- NeMo-RL: step_N/policy/weights (Megatron-core's iter_0000000, or DCP) and policy/optimizer,
# training_info.json and train_dataloader.pt; tmp_step_N until the save is done

_MODELS = "policy", "value"
"""Of a job; the second one in PPO."""


def _find_lost_of_nemo_rl(c: Checkpoint, beside: Saves) -> Flaws:
    """What Megatron-core writes last, with which common.pt was saved; and the place in the data, which the
    loops of the framework save each time, and ask for: a loop of the user's own may do without. Other saves
    beside it show that by themselves.
    """
    roles = {p.role for p in c.parts}
    if beside:
        return
    for who in _MODELS:
        # the roles of files that hold a model, or describe those that do
        models = f"{who}_index", f"{who}_model_index", f"{who}_model"
        if (who == "policy" or f"{who}_optimizer_index" in roles) and roles.isdisjoint(models):
            yield loss(f"there is no model in {who}/weights", c.path)
        if f"{who}_model_index" in roles and f"{who}_optimizer_index" not in roles:
            text = f"there is no {who}/optimizer, and no other save tells whether there was one"
            yield loss(text, c.path, sure=False)
        if {f"{who}_common", f"{who}_index"} <= roles and f"{who}_metadata" not in roles:
            text = f"there is no metadata.json with {who}/weights/iter_0000000/common.pt"
            yield loss(f"{text}: its loader asks for it", c.path)
    if "data" not in roles:
        text = "there is no train_dataloader.pt, without which NeMo-RL's own loops do not resume"
        yield loss(text, c.path, sure=False)


def _list_nemo_rl() -> Iterator[Piece]:
    for who in _MODELS:
        for piece in nest(f"{who}/weights/iter_0000000", _OF_CORE, f"_mcore_{who}"):
            yield replace(piece, role=f"{who}_{piece.role}")
        for directory, role, mark in (
            ("weights", "model", ""),
            ("weights/model", "model", "_inner"),
            ("optimizer", "optimizer", ""),
            ("optimizer/optim", "optimizer", "_inner"),
        ):
            yield from nest(f"{who}/{directory}", dcp.of_role(f"{who}_{role}"), f"_{who}_{role}{mark}")
        weights = f"{who}/weights/model/{{name}}.safetensors"
        yield Piece(f"safetensors_{who}", f"{who}_model", weights, SAFETENSORS)
    yield Piece("info", "info", "training_info.json", JSON)
    yield Piece("data", "data", "train_dataloader.pt", TORCH, unasked=True)
    yield replace(_CONFIG, template="config.yaml", claim=Claim.COMPANION)  # others call it so, too


NEMO_RL = Layout(
    name="nemo-rl",
    title="NeMo-RL",
    pieces=(
        *nest("step_{step}", _list_nemo_rl()),
        *nest("tmp_step_{step}", _list_nemo_rl(), "_tmp", stage=Stage.UNDER_WAY),
    ),
    resume=resume_directory,
    check=check_all(dcp.without_common, without_metadata, partial(named_steps, read="step", role="info")),
    lost=_find_lost_of_nemo_rl,
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

# ---- ms-swift: checkpoint-N/iter_000000N/ as Megatron-core saves it, the tracker in checkpoint-N/, and
# beside it the model as it is exported; checkpoint-N-merged/ with LoRA

_OF_SWIFT = "checkpoint-{step}"


def _find_lost_of_swift(c: Checkpoint, beside: Saves) -> Flaws:
    """The indexes, unless only the model was saved: what all ranks share is there then, and an export."""
    roles = {p.role for p in c.parts}
    alone = "export" in roles and roles <= {"export", "common", "tracker"}
    if c.kind is not Kind.PERIODIC or alone:
        return
    for role, name in (("index", ".metadata"), ("metadata", "metadata.json")):
        if role not in roles and (role == "index" or "common" in roles):  # Megatron-FSDP saves neither
            yield loss(f"there is no {name}: it was never finished, or lost it", c.path)
    yield from _find_lost_of_core(c, beside)


def _check_swift(parts: Rows) -> Found:
    """Also that the tracker names the directory beside it, which is the only one that is asked for."""
    yield from _check_core(parts)
    yield from named_steps(parts, "value", "the iteration in it", role="tracker")
    for p, r in parts:
        said = r.metadata.get("value")
        named = p.role != "tracker" or whole(said) is not None or said == "release"
        if not named and r.verdict is not Verdict.BROKEN:
            text = "it holds neither a number nor 'release': nothing is loaded by it"
            yield p.path, Flaw("bad-tracker", text, severity=Severity.ERROR)


_EXPORT = Piece("model", "export", "<model|adapter_model>.safetensors", SAFETENSORS, loaded=False)
_EXPORTED = replace(_EXPORT, required=False)
_INDEX = replace(_EXPORTED, name="model_index", template="model.safetensors.index.json")
_BESIDE = (
    # the tracker, which all that is loaded goes by
    Piece("tracker", "tracker", TRACKER.file, ("text_member",)),
    _EXPORTED,
    replace(_EXPORTED, name="shard", template="model-{shard:05d}-of-{of:05d}.safetensors"),
    replace(_INDEX, formats=("safetensors_index",)),
)


def _list_swift() -> Iterator[Piece]:
    for piece in nest(f"{_OF_SWIFT}/{_ITERATION}", _OF_CORE):
        yield replace(piece, required=piece.required and piece.role in ("index", "model"))
    yield from nest(_OF_SWIFT, _BESIDE, claim=Claim.INSIDE)
    merged = f"{_OF_SWIFT}-merged"
    common = Piece("merged", "common", f"{merged}/{_ITERATION}/common.pt", TORCH, kind=Kind.RELEASE)
    yield replace(common, unasked=True)
    yield from nest(merged, _BESIDE, "_merged", kind=Kind.RELEASE, claim=Claim.INSIDE)


MS_SWIFT = Layout(
    name="ms-swift",
    title="ms-swift with Megatron",
    pieces=tuple(_list_swift()),
    resume=resume_directory,  # what ``--model`` or, with LoRA, ``--adapters`` names.
    check=_check_swift,
    lost=_find_lost_of_swift,
    complete=Complete(commit="tracker"),
    reshardable=True,
    reference=(
        "ms-swift 4.6 swift/megatron/trainers/base.py save_checkpoint, "
        "swift/megatron/utils/megatron_lm_utils.py save_mcore_checkpoint"
    ),
    limits=("the link to the last checkpoint is not asked: it is written after the exports",),
)
