"""Models rather than states of training: sharded safetensors and files of torch, GGUF, ONNX, SavedModels."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from msgspec.structs import replace

from ckpt_tools.layouts.common.layout import (
    Complete,
    Flaws,
    Found,
    Layout,
    Purpose,
    Rows,
    Saves,
    loss,
    resume_directory,
    resume_file,
    whole,
)
from ckpt_tools.layouts.common.lost_files import lost_shards, weights_of_a_trainer
from ckpt_tools.layouts.common.piece import SAFETENSORS, TORCH, Claim, Piece, Where, nest
from ckpt_tools.layouts.dcp import NUMBERED
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw, Severity
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.ranges import gaps, words
from ckpt_tools.model.report import Report

# ---- model-0000i-of-0000n.safetensors (or pytorch_model-….bin) with model.safetensors.index.json: the whole
# directory is one checkpoint, such as step-N or epoch_N

_HOUR_NS = 3_600_000_000_000


def _check_sets(parts: Rows) -> Found:
    """Shards that count differently, and an index that was written long after the files it names."""
    homes = defaultdict[str, list[Part]](list)
    for part, _ in parts:
        homes[part.home].append(part)
    for together in homes.values():
        shards = [(p, dict(p.coords)) for p in together if p.role == "model"]
        index = next((p for p in together if p.role == "index"), None)
        for p, at in shards:
            if not 1 <= at["shard"] <= at["of"]:
                yield p.path, Flaw("extra-file", f"it is shard {at['shard']} of {at['of']}")
        yield from _find_several_sets([(p, at["of"]) for p, at in shards], index)
        if index and shards and index.mtime_ns > max(p.mtime_ns for p, _ in shards) + _HOUR_NS:
            text = "it was written more than an hour after the newest of its shards"
            yield index.path, Flaw("newer-index", text, severity=Severity.NOTE)


def _find_several_sets(shards: Sequence[tuple[Part, int]], index: Part | None) -> Found:
    """Shards of sets of different sizes beside each other; each with the size of its set."""
    found = Counter(of for _, of in shards)
    if len(found) > 1 and index is None:
        sizes = " and ".join(str(n) for n in sorted(found))
        text = f"shards of sets of {sizes} lie beside each other, and no index says which belong together"
        yield shards[0][0].path, loss(text)
    elif len(found) > 1:
        for p, of in shards:
            if found[of] < of:
                text = f"it is of a set of {of} that is not all there, beside a whole one"
                yield p.path, Flaw("extra-file", text)


_INDEX = ("safetensors_index",)
_SHARD = "{prefix}-{shard:05d}-of-{of:05d}"
_MODEL = (
    Piece("index", "index", "{prefix}.safetensors.index.json", _INDEX, claim=Claim.INDEX),
    Piece("shard", "model", f"{_SHARD}.safetensors", SAFETENSORS),
    Piece("index_bin", "index", "{prefix}.bin.index.json", _INDEX, claim=Claim.INDEX),
    Piece("shard_bin", "model", f"{_SHARD}.bin", TORCH),
)
_CONSOLIDATED = Piece(
    "sharded",
    "sharded",
    f"sharded/shard-{{node:05d}}-{_SHARD}.safetensors",
    SAFETENSORS,
    required=False,
    loaded=False,
)
"""What consolidation made the others of: nobody loads it again."""
_STATES = (
    ("optimizer", "optimizer|optimizer_state|optimizer_states|optim", True),
    ("training", "training_state|train_state|trainer_state", True),
    ("rest", "scheduler|lr_scheduler|scaler|rng_state|rng_states|random_states", False),
)
"""By role: what loops of one's own call a file of the state beside the model, and whether all saves have it
where one has.
"""
_BESIDE = tuple(
    Piece(role, role, f"<{names}>.<pt|pth|bin>", TORCH, required=required, claim=Claim.FOLLOWS)
    for role, names, required in _STATES
)
SHARDED_SAFETENSORS = Layout(
    name="sharded-safetensors",
    title="Sharded safetensors or torch model",
    pieces=(
        *(p for home, mark in NUMBERED for p in nest(home, (*_MODEL, _CONSOLIDATED), mark or "_step")),
        *nest("", _MODEL, where=Where.HERE),
        *(p for home, mark in NUMBERED for p in nest(home, _BESIDE, mark)),
    ),
    resume=resume_directory,  # from_pretrained(path)
    check=_check_sets,
    lost=weights_of_a_trainer,
    complete=Complete(needs=("index",)),
    purpose=Purpose.MODELS,
    reshardable=True,
    reference=(
        "huggingface_hub serialization: save_torch_state_dict writes the shards, then the index; torch "
        "distributed/checkpoint/hf_storage.py (consolidation from sharded/); torchtitan (step-N), torchtune "
        "(epoch_N)"
    ),
    limits=(
        (
            "nothing but the directory's name tells the step or epoch, and nothing but the index which shards"
            " belong together"
        ),
        (
            "of a state beside the model, files of these names: optimizer, optimizer_state, training_state,"
            " trainer_state, scheduler, scaler, rng_state (.pt, .pth, .bin)"
        ),
        (
            "torchtune writes its recipe_state.pt over at every save: it belongs to the newest epoch alone,"
            " whichever is chosen"
        ),
    ),
)

# ---- PyTorch's Distributed Checkpoint written as Hugging Face shards:
# step-N/shard-RRRRR-model-….safetensors, one set per rank and no index


def _find_lost_shards(c: Checkpoint, beside: Saves) -> Flaws:
    """Shards that the saves beside it have; of a lone save the files that no rank has any of, of as many as
    their names count. A loop may count files of which it saves nothing, so a warning; as a job of one rank
    may have been told to save as one of several.
    """
    yield from lost_shards(c, beside)
    coords = [dict(p.coords) for p in c.parts]
    counted = max((at["of"] for at in coords), default=0)
    if gone := gaps((at["shard"] - 1 for at in coords), counted) if not beside else ():
        numbers = words(tuple((first + 1, last + 1) for first, last in gone))
        text = f"its files are numbered up to {counted}, and no rank has any of number {numbers}"
        yield loss(text, c.path, sure=False)
    if not beside and len({at["node"] for at in coords}) == 1:
        text = "it was saved as by several ranks, of which only one has files, and nothing lists the others'"
        yield loss(text, c.path, sure=False)


_SHARD_OF_RANK = "shard-{node:05d}-{name}-{shard:05d}-of-{of:05d}.safetensors"
DCP_HF = Layout(
    name="dcp-hf",
    title="PyTorch Distributed Checkpoint as safetensors",
    pieces=(
        *(Piece(f"shard{mark}", "model", f"{home}/{_SHARD_OF_RANK}", SAFETENSORS) for home, mark in NUMBERED),
        Piece("shard_any", "model", _SHARD_OF_RANK, SAFETENSORS, where=Where.HERE),
    ),
    resume=resume_directory,  # torch.distributed.checkpoint.HuggingFaceStorageReader(path)
    lost=_find_lost_shards,
    reshardable=True,
    purpose=Purpose.MODELS,
    reference="torch/distributed/checkpoint/hf_storage.py HuggingFaceStorageWriter",
    limits=(
        (
            "there is no index: a lost shard shows by a gap in a tensor, or where the saves beside it have "
            "one; those of the last of three and more ranks of a lone save only when its loader raises"
        ),
    ),
)

# ---- GGUF models of llama.cpp: model.gguf, or model-0000i-of-0000n.gguf as gguf-split cuts one up

_EXPORT = "an export: it holds no optimizer, and nothing tells the step at which it was made"


def _check_gguf(parts: Rows) -> Found:
    sets = defaultdict[tuple[str, int], list[tuple[Part, Report]]](list)
    for part, report in parts:
        if part.piece == "split":
            at = dict(part.coords)
            sets[part.base, at["of"]].append((part, report))
            number, count = (whole(report.metadata.get(f"split.{key}")) for key in ("no", "count"))
            if number is not None and count is not None and (number + 1, count) != (at["shard"], at["of"]):
                text = f"it was written as split {number + 1} of {count}"
                yield part.path, Flaw("rank-mismatch", text)
    for (_, of), splits in sets.items():
        yield from _check_splits(splits, of)


def _check_splits(splits: Rows, of: int) -> Found:
    """Splits of one set that are gone, or of two models: all hold as many tensors as each of them says."""
    there = [dict(part.coords)["shard"] for part, _ in splits]
    said = {whole(report.metadata.get("split.tensors.count")) for _, report in splits}
    held = sum(report.tensors for _, report in splits)
    if missing := gaps((0, *there), of + 1):
        text = f"of its {of:,} splits these are not there: {words(missing)}"
        yield splits[0][0].path, Flaw("missing-rank", text)
    elif None not in said and said != {held}:
        numbers = " and ".join(str(n) for n in sorted(n for n in said if n is not None))
        text = f"the {len(splits)} splits hold {held} tensors, and should hold {numbers}"
        yield splits[0][0].path, Flaw("missing-tensor", f"{text}: not of one model")


GGUF = Layout(
    name="gguf",
    title="GGUF models",
    pieces=(
        Piece("split", "model", "{prefix}-{shard:05d}-of-{of:05d}.gguf", ("gguf",), kind=Kind.RELEASE),
        Piece("model", "model", "{prefix}.gguf", ("gguf",), kind=Kind.RELEASE),
    ),
    resume=lambda c, path: Resume(path or min(p.path for p in c.parts)),  # llama.cpp asks for the first split
    check=_check_gguf,
    reshardable=True,
    reference="llama.cpp: tools/gguf-split; src/llama-model-loader.cpp (llama_split_path)",
    limits=(_EXPORT,),
)

# ---- ONNX models: model.onnx, and model.onnx.data or other files beside it that hold its tensors

_DATA = Piece(
    "data", "data", "{prefix}.onnx<.data|_data>", kind=Kind.RELEASE, claim=Claim.DESCRIBED, loaded=False
)
ONNX = Layout(
    name="onnx",
    title="ONNX models",
    pieces=(Piece("model", "model", "{prefix}.onnx", ("onnx",), kind=Kind.RELEASE), _DATA),
    resume=resume_file,
    reshardable=True,
    reference="onnx 1.23: onnx/external_data_helper.py; torch.onnx.export (.onnx.data), optimum (.onnx_data)",
    limits=(_EXPORT,),
)

# ---- TensorFlow SavedModels: a directory with saved_model.pb and variables/, or one for each version (1/,
# 2/), as TensorFlow Serving and the exporters of estimators have them

_VALUES, _BUNDLE = "variables/variables", ("tf_bundle",)
_HASHES = Piece("hashes", "fingerprint", "fingerprint.pb", ("tf_fingerprint",), required=False, loaded=False)
_OF_SAVED_MODEL = (
    Piece("graph", "graph", "saved_model.pb", ("saved_model",)),
    Piece("index", "index", f"{_VALUES}.index", _BUNDLE),
    Piece("data", "model", f"{_VALUES}.data-{{shard:05d}}-of-{{of:05d}}", _BUNDLE),
    replace(_HASHES, claim=Claim.COMPANION),
    Piece("asset", "asset", "assets/{name}", loaded=False, claim=Claim.DESCRIBED),
)
SAVED_MODEL = Layout(
    name="saved-model",
    title="TensorFlow SavedModel",
    pieces=(
        *nest("{generation}", _OF_SAVED_MODEL, kind=Kind.RELEASE),
        *nest("{name}", _OF_SAVED_MODEL, "_named", kind=Kind.RELEASE),
    ),
    resume=resume_directory,  # tf.saved_model.load(path)
    complete=Complete(needs=("graph",)),
    reshardable=True,
    reference="tensorflow/python/saved_model/save.py; tensorflow_serving: the highest version is served",
    limits=(
        "the number of a version is no step of training: exporters count up, or take the time",
        "an export: of the optimizer it holds what its writer left in, and most leave nothing",
    ),
)
