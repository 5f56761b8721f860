"""A sharded model: ``model-0000i-of-0000n.safetensors`` (or ``pytorch_model-….bin``) with
``model.safetensors.index.json``: the whole directory is one checkpoint, such as ``step-N`` or ``epoch_N``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ckpt_tools.layouts.common.layout import Complete, Layout, Purpose, resume_directory
from ckpt_tools.layouts.common.lost_files import weights_of_a_trainer
from ckpt_tools.layouts.common.piece import Claim, Piece, Where, nest
from ckpt_tools.layouts.dcp import NUMBERED
from ckpt_tools.model.finding import Flaw, Severity
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Report

_HOUR_NS = 3_600_000_000_000


class _Shard(NamedTuple):
    """A shard, its number, and how many there are of its set."""

    part: Part
    at: int
    of: int


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    homes = defaultdict[str, list[Part]](list)
    for part, _ in parts:
        homes[part.home].append(part)
    for together in homes.values():
        yield from _check_set(together)


def _check_set(parts: Sequence[Part]) -> Iterator[tuple[str, Flaw]]:
    """Shards that count differently, and an index that was written long after the files it names."""
    rows = [(p, dict(p.coords)) for p in parts if p.role == "model"]
    shards = [_Shard(p, coords["shard"], coords["of"]) for p, coords in rows]
    index = next((p for p in parts if p.role == "index"), None)
    for shard in shards:
        if not 1 <= shard.at <= shard.of:
            yield shard.part.path, Flaw("extra-file", f"it is shard {shard.at} of {shard.of}")
    yield from _several_sets(shards, index)
    if index and shards and index.mtime_ns > max(shard.part.mtime_ns for shard in shards) + _HOUR_NS:
        text = "it was written more than an hour after the newest of its shards"
        yield index.path, Flaw("newer-index", text, severity=Severity.NOTE)


def _several_sets(shards: Sequence[_Shard], index: Part | None) -> Iterator[tuple[str, Flaw]]:
    """Shards of sets of different sizes beside each other."""
    found = Counter(shard.of for shard in shards)
    if len(found) < 2:
        return
    if index is None:
        sizes = " and ".join(str(n) for n in sorted(found))
        text = f"shards of sets of {sizes} lie beside each other, and no index says which belong together"
        yield shards[0].part.path, Flaw("missing-part", text)
        return
    for shard in shards:
        if found[shard.of] < shard.of:
            text = f"it is of a set of {shard.of} that is not all there, beside a whole one"
            yield shard.part.path, Flaw("extra-file", text)


_ST, _TORCH, _INDEX = ("safetensors",), ("torch_zip", "torch_legacy"), ("safetensors_index",)
_SHARD = "{prefix}-{shard:05d}-of-{of:05d}"
_MODEL = (
    Piece("index", "index", "{prefix}.safetensors.index.json", _INDEX, claim=Claim.INDEX),
    Piece("shard", "model", f"{_SHARD}.safetensors", _ST),
    Piece("index_bin", "index", "{prefix}.bin.index.json", _INDEX, claim=Claim.INDEX),
    Piece("shard_bin", "model", f"{_SHARD}.bin", _TORCH),
)
_SHARDED = f"sharded/shard-{{node:05d}}-{_SHARD}.safetensors"
_CONSOLIDATED = Piece("sharded", "sharded", _SHARDED, _ST, required=False, loaded=False)
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
    Piece(role, role, f"<{names}>.<pt|pth|bin>", _TORCH, required=required, claim=Claim.FOLLOWS)
    for role, names, required in _STATES
)
"""The files of a training state in the directory of the model."""
LAYOUT = Layout(
    name="sharded-safetensors",
    title="Sharded safetensors or torch model",
    pieces=(
        *(p for home, mark in NUMBERED for p in nest(home, (*_MODEL, _CONSOLIDATED), mark or "_step")),
        *nest("", _MODEL, where=Where.HERE),
        *(p for home, mark in NUMBERED for p in nest(home, _BESIDE, mark)),
    ),
    resume=resume_directory,  # from_pretrained(path)
    check=_check,
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
